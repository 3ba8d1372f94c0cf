"""The memory of a server lies in huge pages, so that forks of it are cheap."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

from pytest_multihost.core.launch.server.huge_pages import use_huge_pages

PROGRAM = """
import re
from pathlib import Path
from pytest_multihost.core.launch.server.huge_pages import use_huge_pages

def huge_kb():
    text = Path("/proc/self/smaps_rollup").read_text()
    return int(re.search(r"AnonHugePages: +(\\d+) kB", text)[1])

kept = [str(number) * 10 for number in range(400_000)]
before = huge_kb()
moved = use_huge_pages()
assert kept == [str(number) * 10 for number in range(400_000)]
print(moved, huge_kb() - before)
"""


def test_memory_is_moved_into_huge_pages_and_keeps_its_content() -> None:
    """As many as it returns, of 2 MiB each."""
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True
    )
    moved, grown_kb = map(int, ended.stdout.split())
    assert (moved > 4) is _can_collapse()
    assert grown_kb == moved * 2048


def _can_collapse() -> bool:
    kernel = tuple(map(int, platform.release().split(".")[:2]))
    return kernel >= (6, 1) and Path("/sys/kernel/mm/transparent_hugepage").exists()


def test_memory_of_files_and_of_other_rights_stays_where_it_is(tmp_path: Path) -> None:
    """Only private writable memory without a file, and the heap, would be moved."""
    maps = tmp_path / "maps"
    maps.write_text(
        "100000000000-100001000000 r--p 00000000 00:00 0\n"
        "200000000000-200001000000 rw-s 00000000 00:01 7 /dev/shm/x\n"
        "300000000000-300001000000 rw-p 00000000 08:01 9 /usr/lib/libtorch.so\n"
        "400000000000-400001000000 rw-p 00000000 00:00 0 [stack]\n"
    )
    assert use_huge_pages(maps) == 0


def test_a_kernel_that_refuses_is_no_error(tmp_path: Path) -> None:
    """Addresses that do not exist are refused as an old kernel refuses all."""
    maps = tmp_path / "maps"
    maps.write_text("400000000000-400001000000 rw-p 00000000 00:00 0\n")
    assert use_huge_pages(maps) == 0
