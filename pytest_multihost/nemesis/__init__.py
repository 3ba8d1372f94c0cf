"""Perform faults: each module makes one kind of trouble, in the rank that it is meant for."""
