"""Threads that wait in turns, as the kernel shows them."""

from __future__ import annotations

import subprocess
import sys

import pytest

from pytest_multihost.core.watch.kernel import HarnessProcesses
from pytest_multihost.core.watch.kernel.process_reader import ProcessReader
from pytest_multihost.testing import IN_TURNS, NEVER

WAITING = """
import ctypes, os, select, sys, threading

def wait():
    reading, _ = os.pipe()
    poll = select.poll()
    poll.register(reading)
    print(threading.get_native_id(), flush=True)
    poll.poll(600_000)

ctypes.CDLL(None).prctl(15, NAME, 0, 0, 0)
if sys.argv[1] == "beside":
    threading.Thread(target=wait, daemon=True).start()
    print(sys.stdin.readline())
else:
    wait()
"""


@pytest.mark.parametrize(
    ("name", "where", "is_endless"),
    [(IN_TURNS, "main", True), ("python", "main", False), (IN_TURNS, "beside", False)],
)
def test_only_a_main_thread_of_that_name_waits_in_turns(
    name: str, where: str, *, is_endless: bool
) -> None:
    """Threads inherit the name of the thread that starts them."""
    source = WAITING.replace("NAME", repr(name.encode()))
    process = subprocess.Popen(
        [sys.executable, "-c", source, where], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        tid = int(process.stdout.readline())
        reader = ProcessReader(process.pid, 0.0, lambda _, at_s: (at_s, True), HarnessProcesses())
        while (found := reader.thread(tid)) is None or found.call != "poll":
            assert process.poll() is None
        assert (found.ends_s == NEVER) is is_endless
        reader.memory.close()
    finally:
        process.kill()
        process.communicate()
