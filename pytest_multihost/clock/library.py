"""The library of a clock that jumps, and the page of which world this process lives by."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

from pytest_multihost.preload import PreloadedLibrary

LIBRARY = PreloadedLibrary(Path(__file__).with_name("clock.c"))

PAGE_VARIABLE = "PYTEST_MULTIHOST_CLOCK_PAGE"
"""Names the page that a process lives by from its exec on."""

THREAD_NAME = "multihost-clock"
"""A thread of each process: it wakes those that wait for condition variables, and nothing else."""

find_clock_library = LIBRARY.find
"""Returns the library, compiled now if it must be; None if there is no way."""

why_clock_missing = LIBRARY.why_missing
"""Returns why there is no library; empty if there is one."""


def clock_page_path(scratch: Path) -> Path:
    """Return where the page of a world's clock is, in the world's own directory."""
    return scratch / "clock"


def attach_clock(path: Path) -> None:
    """Live by the clock in the page at `path` from now on; so do processes that this one execs.

    Raises:
        RuntimeError: The library is not loaded: this process was exec'd without it.
        OSError: There is no such page.
    """
    try:
        attach = ctypes.CDLL(None).multihost_clock_attach
    except (AttributeError, OSError, TypeError):  # absent; Windows has no program to look in
        reason = why_clock_missing() or "it must be preloaded when the process is exec'd"
        raise RuntimeError(f"This process has no clock that jumps: {reason}.") from None
    attach.argtypes, attach.restype = [ctypes.c_char_p], ctypes.c_int
    if error := attach(os.fsencode(path)):
        raise OSError(error, os.strerror(error), os.fspath(path))
    os.environ[PAGE_VARIABLE] = os.fspath(path)
