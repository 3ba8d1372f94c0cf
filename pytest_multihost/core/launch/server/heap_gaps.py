"""Makes the memory that forked ranks add lie together, not in gaps of shared pages.

The heap of a process that has imported torch has a thousand free gaps, on hundreds of pages.
malloc(3) fills gaps first, and a rank copies each shared page of which it fills a gap. So a server
takes the gaps for itself before it forks many ranks: 1.5 MB once, and 0.6 MB less for each rank.
"""

from __future__ import annotations

import ctypes

_SIZES = (*(1 << power for power in range(16, 9, -1)), *range(1008, 0, -16))
"""Bytes of the pieces that are taken, the largest first: larger pieces have mappings of their own.
"""


class _Info(ctypes.Structure):
    """The result of mallinfo2(3)."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        )
    ]


def fill_gaps() -> int:
    """Take the gaps of this process's heap for ever; return how many pieces have filled them.

    It does nothing where the C library does not say whether a piece was a gap (glibc before 2.33,
    musl). It takes about 10 ms.
    """
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mallinfo2"):
        return 0
    libc.mallinfo2.restype = _Info
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    return sum(_fill(libc, size) for size in _SIZES)


def _fill(libc: ctypes.CDLL, size: int) -> int:
    """Take pieces of one size until one comes from the end of the heap; return their number."""
    count, end = 0, libc.mallinfo2().keepcost
    while True:
        libc.malloc(size)
        if libc.mallinfo2().keepcost != end:
            return count
        count += 1
