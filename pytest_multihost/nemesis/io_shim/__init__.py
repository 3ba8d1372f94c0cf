"""Slow and broken files for every caller of the C library, C++ readers included."""
