"""A process that has started ranks and waits for them is judged with them."""

from __future__ import annotations

import math

from builders import kernel_snapshot

from pytest_multihost.core.proof import Snapshot
from pytest_multihost.core.proof.blockers import blockers
from pytest_multihost.testing import Process, Thread

HORIZON_S = 60.0
NEVER = math.inf


def waiting(pid: int, *, ends_s: float = NEVER) -> Thread:
    """Return a main thread that waits for any of its children."""
    return Thread(
        tid=pid, call="wait4", child=-1, ends_s=ends_s, started_s=0.0, code=("/usr/bin/python3",)
    )


def found_with(parent: Process, in_turns: dict[int, float] | None = None) -> tuple[str, ...]:
    """Return what may end a wait of a rank that rests, and of its parent."""
    rank = Process(pid=40, rank=0, threads=(waiting(40),))
    looks = {} if in_turns is None else in_turns
    before, now = (
        Snapshot(kernel_snapshot(rank, parent, at_s=at_s), in_turns=looks) for at_s in (1.0, 2.0)
    )
    return blockers(before, now, deadline_s=2.0 + HORIZON_S)


def parent(*threads: Thread) -> Process:
    """Return a process that has started the rank."""
    return Process(pid=30, rank=None, is_rank=False, is_parent=True, name="pytest", threads=threads)


def test_a_parent_that_waits_without_end_ends_no_wait() -> None:
    """Nobody but its ranks can end its wait."""
    assert found_with(parent(waiting(30))) == ()


def test_a_limit_of_a_parent_counts_however_late_it_is() -> None:
    """A test may pass after a join of two minutes, far behind the horizon of the ranks."""
    assert found_with(parent(waiting(30, ends_s=120.0))) == (
        "process `pytest` 30: main thread waits in wait4 for another 118.0 s",
    )


def test_a_parent_that_polls_may_do_anything_unless_it_only_looks_for_ends() -> None:
    """A loop with short sleeps may succeed at any turn."""
    sleeps = Thread(tid=30, call="nanosleep", ends_s=2.1, code=("/usr/bin/python3",))
    assert found_with(parent(sleeps)) != ()
    assert found_with(parent(sleeps), {30: NEVER}) == ()


def test_a_parent_that_stops_to_look_in_time_ends_the_wait() -> None:
    """Subprocess polls until the limit that it was given."""
    sleeps = Thread(tid=30, call="nanosleep", ends_s=2.1, code=("/usr/bin/python3",))
    assert found_with(parent(sleeps), {30: 100.0}) == (
        "process `pytest` 30: main thread looks for ended processes for another 98.0 s",
    )


def test_a_second_thread_of_a_parent_counts() -> None:
    """A thread of the test may end a rank after its sleep."""
    timer = Thread(tid=31, call="nanosleep", ends_s=40.0, code=("/usr/bin/python3",))
    assert found_with(parent(waiting(30), timer)) != ()
