"""The console script `multihost`."""
