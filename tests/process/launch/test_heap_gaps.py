"""The gaps in the heap of a server are filled, so that what a rank adds lies together."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import ctypes
from pytest_multihost.core.launch.server.heap_gaps import fill_gaps

libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
pieces = [libc.malloc(2000) for _ in range(4000)]
for each in pieces[::2]:
    libc.free(each)
gaps = set(pieces[::2])
if FILLED:
    fill_gaps()
print(sum(libc.malloc(2000) in gaps for _ in range(500)))
"""


def gaps_that_are_used(*, after_filling: bool) -> int:
    """Return how many of 500 new pieces lie in gaps between others."""
    program = PROGRAM.replace("FILLED", str(after_filling))
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return int(ended.stdout)


def test_new_memory_lies_in_no_gap_once_they_are_filled() -> None:
    """Before, nearly all of it does."""
    assert gaps_that_are_used(after_filling=False) > 400
    assert gaps_that_are_used(after_filling=True) < 10
