"""A clock that jumps, shared by the processes of one world.

`clock.c` is a library that is preloaded into ranks: it adds an offset to every clock that they
read, and says until when each of their threads waits. `page` is the shared memory between it and
the controller, which makes the clock jump; `library` gives both to a process.
"""

from pytest_multihost.clock.library import (
    THREAD_NAME,
    attach_clock,
    clock_page_path,
    find_clock_library,
    why_clock_missing,
)
from pytest_multihost.clock.page import ClockPage, ClockWait

__all__ = [
    "THREAD_NAME",
    "ClockPage",
    "ClockWait",
    "attach_clock",
    "clock_page_path",
    "find_clock_library",
    "why_clock_missing",
]
