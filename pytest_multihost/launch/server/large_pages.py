"""Have this process's memory in large pages: each fork then copies one entry instead of 512.

A fork copies the tables of all memory, and the end of a process takes them apart: with torch
imported both together are some seven milliseconds of CPU, for each rank. Where a rank writes, its
large page is taken apart again, in its own tables alone.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

WORTH_IT = 24
"""So many forks cost as much as they save: memory is copied once."""

_MADV_COLLAPSE = 25  # madvise(2), since Linux 6.1; before, it is refused and nothing changes
_SIZE = Path("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size")
_ENTRY = 8
_FULL = 7 / 8
"""What part of a large page must be in use already: what is reserved only is not to be filled."""


def use_large_pages() -> None:
    """Have what this process has written so far in large pages, as far as the system can."""
    with suppress(OSError, ValueError, AttributeError):
        size, madvise = int(_SIZE.read_text()), ctypes.CDLL(None).madvise
        for start in _starts(size):
            madvise(ctypes.c_void_p(start), ctypes.c_size_t(size), _MADV_COLLAPSE)


def _starts(size: int) -> Iterator[int]:
    """Yield where a large page fits into private memory that is in use."""
    page = os.sysconf("SC_PAGESIZE")
    with Path("/proc/self/pagemap").open("rb", buffering=0) as pagemap:
        for begin, end in _written():
            for start in range(-(-begin // size) * size, end - size + 1, size):
                entries = os.pread(pagemap.fileno(), size // page * _ENTRY, start // page * _ENTRY)
                present = sum(byte >> 7 for byte in entries[_ENTRY - 1 :: _ENTRY])
                if present >= _FULL * size / page:
                    yield start


def _written() -> list[tuple[int, int]]:
    """Return where the memory is that no file stands behind and only this process writes."""
    lines = (line.split() for line in Path("/proc/self/maps").read_text().splitlines())
    spans = [
        part[0].split("-") for part in lines if part[1] == "rw-p" and part[5:] in ([], ["[heap]"])
    ]
    return [(int(begin, 16), int(end, 16)) for begin, end in spans]
