"""The library of a clock that jumps, in real processes: this test plays the controller."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_multihost.clock import ClockPage, find_clock_library, why_clock_missing
from pytest_multihost.clock.library import PAGE_VARIABLE
from pytest_multihost.preload import preload_variables

pytestmark = pytest.mark.skipif(find_clock_library() is None, reason=why_clock_missing())

STUCK_S = 60.0
"""Real time in which every program here has long ended."""

PRELUDE = """
import asyncio, ctypes, errno, faulthandler, json, multiprocessing, os, queue, select, signal
import socket, subprocess, sys, threading, time
libc = ctypes.CDLL(None, use_errno=True)
class timespec(ctypes.Structure):
    _fields_ = [("s", ctypes.c_long), ("ns", ctypes.c_long)]
MINUTES = ctypes.byref(timespec(600, 0))
began, wall = time.monotonic(), time.time()
"""
CODA = """
print(json.dumps([time.monotonic() - began, time.time() - wall, locals().get("found")]))
"""

Lives = Callable[[str], tuple[float, float, object]]


@pytest.fixture
def page(tmp_path: Path) -> ClockPage:
    """Return the page of a clock."""
    return ClockPage.create(tmp_path / "clock")


@pytest.fixture
def live(tmp_path: Path, page: ClockPage) -> Lives:
    """Run a program, and let the clock jump whenever all its timed waits have begun.

    Returns its seconds on both clocks, and what it has left in `found`.
    """

    def live(program: str) -> tuple[float, float, object]:
        path = tmp_path / "program.py"
        path.write_text(PRELUDE + program + CODA)
        library = preload_variables(os.environ, [find_clock_library()])
        process = subprocess.Popen(
            [sys.executable, str(path)],
            env={**os.environ, **library, PAGE_VARIABLE: str(tmp_path / "clock")},
            stdout=subprocess.PIPE,
            text=True,
        )
        before, stuck_s = None, time.monotonic() + STUCK_S
        while process.poll() is None and time.monotonic() < stuck_s:
            time.sleep(0.005)
            waits = [e for e in page.waits() if Path(f"/proc/{e.pid}/task/{e.tid}").exists()]
            if any(each.due_s <= page.now() for each in waits):
                page.wake()
                continue
            seen = tuple((each.tid, each.serial) for each in waits)
            if waits and seen == before:
                page.jump(min(each.due_s for each in waits))
            before = seen
        process.kill()
        output, _ = process.communicate()
        monotonic_s, wall_s, found = json.loads(output.splitlines()[-1])
        return monotonic_s, wall_s, found

    return live


@pytest.mark.parametrize(
    ("program", "seconds"),
    [
        ("time.sleep(600)", 600),
        ("select.select([], [], [], 600)", 600),
        ("found = select.poll().poll(600_000)", 600),
        ("found = select.epoll().poll(600)", 600),
        ("libc.ppoll(None, 0, MINUTES, None)", 600),
        ("libc.usleep(900_000)", 0.9),
        ("libc.sleep(600)", 600),
        ("lock = threading.Lock(); lock.acquire(); found = lock.acquire(timeout=600)", 600),
        ("it = threading.Condition(); it.acquire(); found = it.wait(600)", 600),
        ("found = threading.Event().wait(600)", 600),
        ("found = multiprocessing.Semaphore(0).acquire(timeout=600)", 600),
        ("asyncio.run(asyncio.sleep(3600))", 3600),
        ("found = signal.sigtimedwait([signal.SIGUSR1], 600)", 600),
        ("subprocess.run(['sleep', '600'], check=True)", 600),
        ("os.waitpid(os.fork() or time.sleep(600) or os._exit(0), 0)", 600),
        ("word = ctypes.c_int(7); libc.syscall(202, ctypes.byref(word), 0, 7, MINUTES)", 600),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)
def test_a_wait_ends_when_the_clock_has_jumped(live: Lives, program: str, seconds: float) -> None:
    """As by its timeout, on the very second, on both clocks, and ten minutes take none."""
    monotonic_s, wall_s, found = live(program)
    assert seconds <= monotonic_s < seconds + 5
    assert abs(wall_s - monotonic_s) < 0.1
    assert not found


def test_the_errors_of_timeouts_are_as_ever(live: Lives) -> None:
    """Nobody sees EINTR."""
    _, _, found = live(
        """
a, b = socket.socketpair()
a.settimeout(600)
found = []
try:
    a.recv(1)
except TimeoutError as error:
    found.append(str(error))
try:
    queue.Queue().get(timeout=600)
except queue.Empty:
    found.append("empty")
async def wait():
    await asyncio.wait_for(asyncio.sleep(3600), 600)
try:
    asyncio.run(wait())
except TimeoutError:
    found.append("asyncio")
"""
    )
    assert found == ["timed out", "empty", "asyncio"]


def test_only_the_wait_that_is_due_ends(live: Lives) -> None:
    """And each at its own time."""
    _, _, found = live(
        """
found, threads = [], []
def nap(seconds):
    time.sleep(seconds)
    found.append(round(time.monotonic() - began))
threads = [threading.Thread(target=nap, args=(each,)) for each in (300, 100, 200)]
[each.start() for each in threads]
[each.join() for each in threads]
"""
    )
    assert found == [100, 200, 300]


def test_what_happens_ends_a_wait_early(live: Lives) -> None:
    """A byte that arrives after 100 s ends a poll of 600 s."""
    monotonic_s, _, found = live(
        """
r, w = os.pipe()
threading.Thread(target=lambda: (time.sleep(100), os.write(w, b"x"))).start()
found = select.select([r], [], [], 600)[0] == [r]
"""
    )
    assert found is True
    assert 100 <= monotonic_s < 105


def test_condition_variables_may_be_destroyed_after_their_wait(live: Lives) -> None:
    """The thread that wakes their waiters never touches one that is gone."""
    monotonic_s, _, found = live(
        """
found = 0
def waits():
    global found
    for _ in range(100):
        memory = ctypes.create_string_buffer(48)
        mutex = ctypes.create_string_buffer(40)
        libc.pthread_mutex_lock(mutex)
        at = time.time() + 10
        until = timespec(int(at), int(at % 1 * 1e9))
        while libc.pthread_cond_timedwait(memory, mutex, ctypes.byref(until)) != errno.ETIMEDOUT:
            pass
        libc.pthread_cond_destroy(memory)
        ctypes.memset(memory, 0xFF, 48)
        found += 1
threads = [threading.Thread(target=waits) for _ in range(4)]
[each.start() for each in threads]
[each.join() for each in threads]
"""
    )
    assert found == 400
    assert 1000 <= monotonic_s < 1100


def test_without_a_page_the_clock_is_the_machines() -> None:
    """The library passes every call on."""
    library = preload_variables(os.environ, [find_clock_library()])
    code = "import time; a = time.monotonic(); time.sleep(0.01); print(time.monotonic() - a)"
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **library}, capture_output=True, check=True
    )
    assert float(done.stdout) >= 0.01


def test_a_file_that_is_no_page_is_refused(tmp_path: Path) -> None:
    """It may be of another version."""
    (tmp_path / "clock").write_bytes(b"something else")
    with pytest.raises(ValueError, match="no page of a clock"):
        ClockPage.open(tmp_path / "clock")
