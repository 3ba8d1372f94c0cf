"""Stacks show which threads around the ranks only look for ends, and which serve pytest."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
from builders import kernel_snapshot

from pytest_multihost.core.watch.probes import SpiedThread
from pytest_multihost.extensions.live.parents import (
    looks_in_turns,
    threads_of_others,
    waiting_shells,
)
from pytest_multihost.testing import Frame, Process, Thread

pytestmark = pytest.mark.unit

NEVER = math.inf
PYTHON = "/usr/lib/python3.11"


def main(*frames: Frame, **values: str) -> SpiedThread:
    """Return a main thread with some frames, the innermost first, all with these variables."""
    found = tuple(dict(values) for _ in frames)
    return SpiedThread(1, "MainThread", is_main=True, holds_gil=False, frames=frames, values=found)


def other(*files: str, name: str = "Thread-1") -> SpiedThread:
    """Return a second thread with a frame of each file."""
    frames = tuple(Frame(file, 1, "run") for file in files)
    return SpiedThread(2, name, is_main=False, holds_gil=False, frames=frames)


def test_the_limit_of_a_subprocess_is_read_from_its_variables() -> None:
    """Its wait sleeps in short turns until then."""
    frame = Frame(f"{PYTHON}/subprocess.py", 2045, "_wait")
    assert looks_in_turns({1: (main(frame, endtime="99.5"),)}, ()) == {1: 99.5}


@pytest.mark.parametrize("text", ["", "None", "inf", "'9'"])
def test_a_limit_that_cannot_be_read_is_not_guessed(text: str) -> None:
    """The polls of its thread then keep the ranks from being proven to hang."""
    frame = Frame(f"{PYTHON}/subprocess.py", 2045, "_wait")
    assert looks_in_turns({1: (main(frame, endtime=text),)}, ()) == {}


def test_torchs_test_case_only_looks_for_ended_ranks() -> None:
    """Its limit of five minutes fails the test, as a hang does."""
    frame = Frame("/v/torch/testing/_internal/common_distributed.py", 1170, "_join_processes")
    assert looks_in_turns({1: (main(frame),)}, ()) == {1: NEVER}


def test_xdists_controller_only_looks_for_what_its_workers_say() -> None:
    """Its loop asks a queue every two seconds."""
    frames = (
        Frame(f"{PYTHON}/queue.py", 180, "get"),
        Frame("/v/xdist/dsession.py", 154, "loop_once"),
    )
    assert looks_in_turns({1: (main(*frames),)}, ()) == {1: NEVER}


def test_torchrun_only_looks_while_its_loop_sleeps() -> None:
    """In its other functions it starts ranks, or ends them, as when it sees that one has ended."""
    name, file = b"pt_elastic\0", "/v/torch/distributed/elastic/agent/server/api.py"
    loop, other = Frame(file, 923, "_invoke_run"), Frame(file, 860, "_exit_barrier")
    old = Path("/proc/self/comm").read_text()
    try:
        set_name(name)
        own = os.getpid()
        assert looks_in_turns({own: (main(loop),)}, ()) == {own: NEVER}
        assert looks_in_turns({own: (main(other, loop),)}, ()) == {}
        with subprocess.Popen([sys.executable, "-c", "pass"]) as ended:
            os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
            assert looks_in_turns({own: (main(loop),)}, ()) == {}
    finally:
        set_name(old.encode())


def set_name(name: bytes) -> None:
    """Name this process."""
    Path(f"/proc/{os.getpid()}/comm").write_bytes(name.strip(b"\n\0"))


@pytest.mark.parametrize(
    ("name", "call", "waits"),
    [("sh", "rt_sigsuspend", True), ("sh", "read", False), ("python", "rt_sigsuspend", False)],
)
def test_a_shell_that_waits_for_a_signal_waits_for_its_children(
    name: str, call: str, *, waits: bool
) -> None:
    """Another program may wait for a signal of anybody."""
    main = Thread(tid=7, call=call)
    found = Process(pid=7, rank=None, is_rank=False, name=name, threads=(main,))
    assert waiting_shells(kernel_snapshot(found)) == ({7: NEVER} if waits else {})


def test_a_loop_of_the_users_own_may_do_anything() -> None:
    """Nobody knows what a function of his that sleeps does next."""
    assert looks_in_turns({1: (main(Frame("/t/helpers.py", 9, "_join_processes")),)}, ()) == {}


def test_threads_of_plugins_end_no_wait_of_a_test() -> None:
    """Execnet talks to xdist's controller, and rerunfailures serves its workers."""
    files = (f"{PYTHON}/threading.py", "/v/execnet/gateway_base.py")
    assert threads_of_others({1: (other(*files),)}) == {2}
    assert threads_of_others(
        {1: (other(f"{PYTHON}/socket.py", "/v/pytest_rerunfailures.py"),)}
    ) == {2}


def test_a_thread_of_the_test_counts_although_a_plugin_has_started_it() -> None:
    """It may do something for the test when it wakes up."""
    files = ("/t/test_a.py", f"{PYTHON}/threading.py", "/v/execnet/gateway_base.py")
    assert threads_of_others({1: (other(*files),)}) == frozenset()
    assert threads_of_others({1: (other(f"{PYTHON}/threading.py"),)}) == frozenset()


def test_a_timer_that_fails_the_test_does_not_keep_it_from_hanging() -> None:
    """pytest-timeout waits in a thread with the name of the test."""
    found = other(f"{PYTHON}/threading.py", name="pytest_timeout test_a.py::test_b")
    assert threads_of_others({1: (found,)}) == {2}
