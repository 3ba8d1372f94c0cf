"""Frozen values that everything else speaks of; standard library only, JSON both ways."""
