"""Start and reap ranks: one server protocol for every way of launching."""
