"""Threads that wait in turns, as the kernel shows them."""

from __future__ import annotations

import subprocess
import sys

import pytest

from pytest_multihost.core.watch.kernel import HarnessProcesses
from pytest_multihost.core.watch.kernel.process_reader import ProcessReader
from pytest_multihost.testing import IN_TURNS, NEVER, TICKS

WAITING = """
import ctypes, os, select, sys, threading

def wait():
    reading, _ = os.pipe()
    poll = select.CALL()
    poll.register(reading)
    print(threading.get_native_id(), flush=True)
    poll.poll(600_000 if "CALL" == "poll" else 600)

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
    assert ends_never(name, where, "poll") is is_endless


@pytest.mark.parametrize(("name", "is_endless"), [(f"{TICKS}0001", True), ("python", False)])
@pytest.mark.parametrize("where", ["main", "beside"])
def test_an_event_loop_of_that_name_ticks_in_any_thread(
    name: str, where: str, *, is_endless: bool
) -> None:
    """A server may run beside a test."""
    assert ends_never(name, where, "epoll") is is_endless


def ends_never(name: str, where: str, call: str) -> bool:
    """Return whether a wait of a thread of that name is read as one without an end.

    Args:
        where: "main" thread, or "beside" it.
        call: How it waits.
    """
    source = WAITING.replace("NAME", repr(name.encode())).replace("CALL", call)
    process = subprocess.Popen(
        [sys.executable, "-c", source, where], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        tid = int(process.stdout.readline())
        reader = ProcessReader(process.pid, 0.0, lambda _, at_s: (at_s, True), HarnessProcesses())
        while (found := reader.thread(tid)) is None or not found.call.startswith(call):
            assert process.poll() is None
        reader.memory.close()
        return found.ends_s == NEVER
    finally:
        process.kill()
        process.communicate()
