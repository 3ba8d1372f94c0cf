"""Pure functions over recorded facts."""
