"""Waits that their loops begin again after each timeout, such as those of torch's data loaders."""

from __future__ import annotations

import subprocess
import sys

import pytest

from pytest_multihost.core.model.process import (
    IN_TURNS,
    NEVER,
    Descriptor,
    KernelSnapshot,
    Process,
    Thread,
)
from pytest_multihost.core.proof import Snapshot
from pytest_multihost.core.proof.blockers import blockers
from pytest_multihost.core.watch.kernel.membership import HarnessProcesses
from pytest_multihost.core.watch.kernel.process_reader import ProcessReader

RANK, CHILD = 100, 200
PIPE = Descriptor(fd=3, target="pipe:[5]", kind="pipe")


def waiting(pid: int, name: str = IN_TURNS, where: str = "inside") -> Process:
    """Return a process whose main thread waits for a pipe, without an end that counts."""
    main = Thread(tid=pid, name=name, call="poll", fds=(3,), ends_s=NEVER, runs=5)
    found = Descriptor(fd=3, target=PIPE.target, kind="pipe", where=where)  # type: ignore[arg-type]
    return Process(pid=pid, rank=0, is_rank=pid == RANK, threads=(main,), descriptors={3: found})


def dead(pid: int, rank: int | None) -> Process:
    """Return a child that has ended and that its parent has not asked for its end."""
    return Process(pid=pid, rank=rank, is_rank=False, threads=(Thread(tid=pid, state="Z"),))


def found_in(*processes: Process) -> str:
    """Return what may end a wait in a world that does not move."""
    first = Snapshot(KernelSnapshot(at_s=100.0, processes=processes, is_deep=True))
    second = Snapshot(KernelSnapshot(at_s=101.0, processes=processes, is_deep=True))
    return "\n".join(blockers(first, second, deadline_s=160.0))


def test_a_rank_and_its_child_that_wait_for_each_other_in_turns_hang() -> None:
    """Nothing is in their pipes, and both live."""
    assert found_in(waiting(RANK), waiting(CHILD)) == ""


def test_a_pipe_that_leads_outside_may_end_a_wait_in_turns() -> None:
    """Its turns do not matter; the writer does."""
    assert "leads outside the world" in found_in(waiting(RANK, where="outside"))


@pytest.mark.parametrize(
    ("name", "rank", "is_blocker"),
    [(IN_TURNS, 0, True), ("python", 0, False), (IN_TURNS, 1, False)],
    ids=["its child", "no turns", "another rank's child"],
)
def test_a_wait_in_turns_may_end_when_a_child_has_ended(
    name: str, rank: int, *, is_blocker: bool
) -> None:
    """Between two turns a data loader looks whether its processes live."""
    found = found_in(waiting(RANK, name), dead(CHILD, rank))
    assert (found == f"rank 0: main thread may see that its child process {CHILD} has ended") is (
        is_blocker
    )


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


def test_a_thread_gets_its_name_back() -> None:
    """What the kernel shows is the marker only during a turn."""
    source = """
from pytest_multihost.core.launch.libc import rename_thread
old = rename_thread("waits in turns")
print(open("/proc/self/comm").read(), end="")
rename_thread(old)
print(open("/proc/self/comm").read() == old + "\\n")
"""
    command = [sys.executable, "-c", source]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert printed == f"{IN_TURNS}\nTrue\n"
