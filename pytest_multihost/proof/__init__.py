"""Whether a world hangs: pure functions over snapshots of its processes."""
