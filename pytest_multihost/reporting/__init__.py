"""What people and programs look at after a run."""
