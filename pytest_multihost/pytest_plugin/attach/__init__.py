"""Runs of pytest over several processes that a launcher has started."""
