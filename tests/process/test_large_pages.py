"""Large pages: memory in use is in them afterwards, memory that is only reserved stays reserved."""

from __future__ import annotations

import subprocess
import sys

import pytest

# Of its own process: what is in large pages stays there.
PROGRAM = """
import mmap, re
from pathlib import Path
from pytest_multihost.launch.server.large_pages import use_large_pages

def kilobytes(name):
    told = Path("/proc/self/smaps_rollup").read_text()
    return int(re.search(rf"^{name}:\\s+(\\d+)", told, re.M)[1])

MB = 1 << 20
used = mmap.mmap(-1, 16 * MB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
used.write(bytes(range(256)) * (16 * MB // 256))
reserved = mmap.mmap(-1, 64 * MB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
reserved[:4096] = bytes(4096)
before = kilobytes("AnonHugePages"), kilobytes("Rss")
use_large_pages()
assert used[:] == bytes(range(256)) * (16 * MB // 256)
print(kilobytes("AnonHugePages") - before[0], kilobytes("Rss") - before[1])
"""


@pytest.fixture(scope="module")
def grown() -> tuple[int, int]:
    """By how many kB large pages, and memory in all, have grown."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=True
    )
    large, resident = map(int, done.stdout.split())
    return large, resident


def test_what_is_in_use_is_in_large_pages(grown: tuple[int, int]) -> None:
    """Where the kernel can: each fork then copies an entry for 2 MiB."""
    if not grown[0]:
        pytest.skip("this kernel does not collapse pages when it is asked to (before Linux 6.1?)")
    assert grown[0] >= 10 << 10


def test_what_is_only_reserved_is_not_filled(grown: tuple[int, int]) -> None:
    """Runtimes reserve gigabytes that they never touch."""
    assert grown[1] <= 8 << 10
