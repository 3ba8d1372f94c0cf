"""Memory that processes share, as a mapped file."""

from __future__ import annotations

import errno
import mmap
import os
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path


def anonymous_map(size: int) -> mmap.mmap:
    """Return memory of `size` bytes without a file."""
    return mmap.mmap(-1, size)


def new_map(path: Path, size: int, begin: Sequence[bytes | bytearray]) -> mmap.mmap:
    """Make a file of `size` bytes at `path`, which must not exist; return a mapping of it.

    By bare system calls: Python's files would have every rank make copies of memory. And what it
    begins with is written, not assigned: each page that is touched through a mapping is a fault.

    Raises:
        OSError: It exists, or the disk is full.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
    try:
        if os.writev(descriptor, begin) != sum(map(len, begin)):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        os.ftruncate(descriptor, size)
        return mmap.mmap(descriptor, size)
    finally:
        os.close(descriptor)


def call_in_children(method: Callable[[], None]) -> None:
    """Call a bound method in every forked child of this process, while its object is alive."""
    reference = weakref.WeakMethod(method)
    os.register_at_fork(after_in_child=lambda: _call_if_alive(reference))


def _call_if_alive(method: weakref.WeakMethod[Callable[[], None]]) -> None:
    call = method()
    if call is not None:
        call()
