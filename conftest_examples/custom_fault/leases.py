"""Leases that hosts give each other by the clock on the wall."""

import time

GRACE_S = 2.0


def grant(seconds):
    """Return when a lease that begins now ends."""
    return time.time() + seconds


def has_run_out(end):
    """Whether a lease is over, also by the clock of a host that is a little off."""
    return time.time() > end + GRACE_S
