"""A clock that jumps, shared by the processes of one world."""
