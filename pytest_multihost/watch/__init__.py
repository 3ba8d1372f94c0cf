"""Observe ranks from outside."""
