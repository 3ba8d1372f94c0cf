"""The only rooms that know pytest."""
