"""A process chooses no size for its watchdog: its waits are read in bounded time and memory."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator

import psutil
import pytest

from pytest_multihost.core.watch.kernel import proc_files
from pytest_multihost.core.watch.kernel.membership import HarnessProcesses
from pytest_multihost.core.watch.kernel.process_reader import _MOST_DESCRIPTORS, ProcessReader

BEGIN = """
import ctypes, os, resource, threading
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
memory = libc.mmap(None, 1 << 28, 3, 0x22 | 0x4000, -1, 0)
r, w = os.pipe()
def bits(count):
    ctypes.memset(memory, 255, count // 8)
def bit(number):
    ctypes.c_ubyte.from_address(memory + number // 8).value |= 1 << number % 8
def select(count, *sets):
    libc.select(ctypes.c_int(count), *map(ctypes.c_void_p, sets), *[None] * (4 - len(sets)))
def polls(*numbers):
    for at, number in enumerate(numbers):
        ctypes.c_int.from_address(memory + 8 * at).value = number
        ctypes.c_short.from_address(memory + 8 * at + 4).value = 1
print("ready", flush=True)
"""


@contextlib.contextmanager
def waiting(code: str) -> Iterator[int]:
    """Run a program until it waits in its last call."""
    with subprocess.Popen([sys.executable, "-c", BEGIN + code], stdout=subprocess.PIPE) as child:
        try:
            assert child.stdout is not None
            child.stdout.readline()
            until_s = time.monotonic() + 60
            while time.monotonic() < until_s:
                call, _ = proc_files.read_call(f"/proc/{child.pid}/task/{child.pid}")
                if call.name in {"select", "pselect6", "poll", "ppoll"}:
                    break
                time.sleep(0.05)
            yield child.pid
        finally:
            child.kill()


def fds_of(pid: int) -> tuple[int, ...] | None:
    """Return the descriptors that the main thread waits for."""
    reader = ProcessReader(pid, 0.0, lambda *_: (0.0, True), HarnessProcesses())
    with contextlib.closing(reader.memory):
        call, _ = proc_files.read_call(f"/proc/{pid}/task/{pid}")
        before_mb = psutil.Process().memory_info().rss >> 20
        found = reader._polled(call)
        assert (psutil.Process().memory_info().rss >> 20) - before_mb < 200
        return found


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        pytest.param("bit(r); select(0x7FFFFFFF, memory)", {3}, id="a count of 2**31"),
        pytest.param("bit(r); select(-1 & 0x7FFFFFF0, memory)", {3}, id="nearly as many"),
        pytest.param("bit(r); select(r + 1, memory)", {3}, id="as everybody calls select"),
        pytest.param("bit(r); select(1024, memory)", {3}, id="as with FD_SETSIZE"),
        pytest.param(
            "bit(r); bit(700); select(r + 1, memory)", {3}, id="bits beyond the count are none"
        ),
        pytest.param("polls(r); libc.poll(ctypes.c_void_p(memory), 1, -1)", {3}, id="poll"),
        pytest.param("polls(r, -1); libc.poll(ctypes.c_void_p(memory), 2, -1)", {3}, id="unused"),
        pytest.param("select(0, None)", set(), id="a sleep"),
    ],
)
def test_the_descriptors_of_a_wait_are_those_that_the_kernel_looks_at(
    code: str, expected: set[int]
) -> None:
    """The kernel stops at the size of the process's table, whatever the process asks for."""
    with waiting(code) as pid:
        assert set(fds_of(pid) or ()) == expected


def test_many_threads_that_wait_for_everything_have_a_limit_together() -> None:
    """A thread costs a process nothing, and each may name a million descriptors."""
    reader = ProcessReader(1, 0.0, lambda *_: (0.0, True), HarnessProcesses())
    assert reader._descriptors(0, _MOST_DESCRIPTORS - 5, 8) is None  # nothing is at address 0
    assert reader._described == _MOST_DESCRIPTORS - 5
    reader.memory.read_up_to = lambda *_: pytest.fail("it was read")  # type: ignore[method-assign]
    assert reader._descriptors(1 << 20, 6, 48) is None
