"""Worlds whose hosts are containers."""
