"""Threads of torch that have taken over the stacks of a parent's threads are torch's own."""

from __future__ import annotations

import pytest

from pytest_multihost.core.watch.probes import SpiedThread
from pytest_multihost.extensions.live.remains import states_of, without_remains
from pytest_multihost.testing import KernelSnapshot, Process, Thread

pytestmark = pytest.mark.unit

TORCH, PYTHON = "/v/torch/lib/libtorch_cpu.so", "/usr/lib/libpython3.11.so.1.0"
SOCKET = "/usr/lib/python3.11/lib-dynload/_socket.cpython-311-x86_64-linux-gnu.so"
LIBC = "/usr/lib/libc.so.6"


def spied(tid: int) -> SpiedThread:
    """Return a thread that Python knows."""
    return SpiedThread(tid, "", is_main=tid == 10, holds_gil=False, frames=())


def codes(states: dict[int, frozenset[int]]) -> list[tuple[str, ...] | None]:
    """Return the code of three threads of one process: Python's main one, torch's and another."""
    threads = (
        Thread(tid=10, code=(LIBC, PYTHON, TORCH)),
        Thread(tid=11, code=(LIBC, PYTHON, SOCKET, TORCH)),
        Thread(tid=12),
    )
    process = Process(pid=10, rank=0, threads=threads)
    now = without_remains(KernelSnapshot(at_s=1.0, processes=(process,)), states)
    return [each.code for each in now.processes[0].threads]


def test_a_thread_that_python_does_not_know_has_remains_of_it() -> None:
    """Only a thread with a state can be inside of the interpreter."""
    assert codes({10: frozenset({10})}) == [(LIBC, PYTHON, TORCH), (LIBC, TORCH), None]


def test_a_thread_that_python_knows_keeps_its_code() -> None:
    """It may run the test's code, whatever is further in."""
    assert codes({10: frozenset({10, 11})})[1] == (LIBC, PYTHON, SOCKET, TORCH)


def test_nothing_is_taken_from_a_process_that_could_not_be_read() -> None:
    """Without all states, any of its threads may be Python's."""
    assert codes({})[1] == (LIBC, PYTHON, SOCKET, TORCH)


def test_states_need_the_id_of_each_thread() -> None:
    """Python 3.10 and older do not give them, so a thread may be one of those without an id."""
    assert states_of({0: 10, 1: 20}, {0: (spied(10), spied(11)), 1: (spied(20), spied(0))}) == {
        10: frozenset({10, 11})
    }
