"""Locks of files that other processes take, too: no process waits for one without an end.

Any reader of a file may lock it with flock(2), also a process that never ends. A lock here
only keeps processes of one user in order, so a process that has waited long enough goes on.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

MOMENT_S = 1.0
"""How long a lock is waited for that others hold only for a moment."""

_FIRST_S, _LAST_S = 0.001, 0.05
"""Time between two tries."""


def open_lock(path: Path) -> int:
    """Open a file to be locked, which only this user may open; return its descriptor.

    Raises:
        OSError: It cannot be opened, or is a link.
    """
    # Opened for writing as well: NFS grants no exclusive lock otherwise.
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o600)
    with contextlib.suppress(OSError):  # another user's, or a file system without modes
        os.fchmod(descriptor, 0o600)  # an earlier version has made it for everybody
    return descriptor


def lock(descriptor: int, *, within_s: float, shared: bool = False) -> bool:
    """Lock an open file; return whether that succeeded in time.

    Args:
        within_s: How long to wait for the processes that hold it; 0: not at all.
        shared: Whether others may hold the same lock.

    Raises:
        OSError: The file system has no locks.
    """
    import fcntl  # not on every system that can import this package

    wanted = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    until_s, pause_s = time.monotonic() + within_s, _FIRST_S
    while True:
        try:
            fcntl.flock(descriptor, wanted | fcntl.LOCK_NB)
        except BlockingIOError:
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                return False
            time.sleep(min(pause_s, left_s))
            pause_s = min(2 * pause_s, _LAST_S)
        else:
            return True


LONGEST_S = 3600.0
"""How long a lock is waited for that others hold while they work."""
