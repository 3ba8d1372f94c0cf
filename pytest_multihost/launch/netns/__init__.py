"""Worlds whose hosts are Linux network namespaces."""
