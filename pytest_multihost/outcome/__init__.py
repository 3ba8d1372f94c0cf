"""What happened to a world, cause first: pure functions over its history."""
