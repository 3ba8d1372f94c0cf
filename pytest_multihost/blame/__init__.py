"""Who makes a world hang: pure functions from snapshots and events to a diagnosis."""
