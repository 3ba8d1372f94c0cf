"""What became of the faults of a world: which have happened, and which go on."""
