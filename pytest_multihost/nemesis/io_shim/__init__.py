"""Slow and broken files for every caller of the C library, C++ readers included.

`shim.c` is a library that is preloaded into ranks (LD_PRELOAD, ld.so(8)): its `open`, `read`,
`write`, ... stand in front of those of the C library. `library` gives it to a process, and
`rules_page` is the shared memory in which rules tell it what to do.
"""

from pytest_multihost.nemesis.io_shim.library import (
    attach,
    detach,
    find_library,
    is_loaded,
    why_missing,
)
from pytest_multihost.nemesis.io_shim.rules_page import IoPage, IoRule

__all__ = [
    "IoPage",
    "IoRule",
    "attach",
    "detach",
    "find_library",
    "is_loaded",
    "why_missing",
]
