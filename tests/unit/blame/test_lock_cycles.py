"""When the waits of one rank's threads are a deadlock, on hand-made waits."""

from __future__ import annotations

from dataclasses import replace

import builders
import pytest
from builders import lock_wait

from pytest_multihost.core.blame.cause import Cause
from pytest_multihost.core.blame.lock_cycles import lock_cycle
from pytest_multihost.core.blame.lock_deadlocks import as_lock_across, as_lock_cycle
from pytest_multihost.core.blame.wait_graph import Wait
from pytest_multihost.testing import Dump, Frame, LockWait, WorldResult

AT = Frame("t.py", 7, "save")
LATE = Cause(kind="straggler", confidence="certain", culprits=(0,), waiting=(1, 2))


def world(*found: LockWait) -> WorldResult:
    """Return a world whose rank 0 has reported waits."""
    return builders.world(dumps=(Dump(0, "scripted", (), locks=found),))


@pytest.mark.parametrize(
    "found",
    [
        pytest.param(
            [lock_wait(1, 2, "a"), lock_wait(2, 1, "b")], id="two locks in opposite order"
        ),
        pytest.param(
            [lock_wait(1, 2), lock_wait(2, 3), lock_wait(3, 2)],
            id="a cycle that the main one joins",
        ),
        pytest.param([lock_wait(1, 2, ""), lock_wait(2, 1)], id="a join under a lock"),
    ],
)
def test_threads_that_wait_for_each_other_are_a_deadlock(found: list[LockWait]) -> None:
    """Of the rank, which then waits as well."""
    cause = as_lock_cycle(LATE, world(*found))
    assert (cause.kind, cause.culprits, cause.cycle) == ("deadlock", (), (0,))
    assert cause.waiting == (0, 1, 2)


@pytest.mark.parametrize(
    "found",
    [
        pytest.param([], id="no wait is known"),
        pytest.param([lock_wait(1, 2)], id="the holder works"),
        pytest.param([lock_wait(1, None)], id="the holder is unknown"),
        pytest.param([lock_wait(1, 1)], id="the thread holds the lock itself"),
        pytest.param([lock_wait(2, 3), lock_wait(3, 2)], id="the main thread needs neither"),
        pytest.param(
            [lock_wait(1, 4), lock_wait(2, 3), lock_wait(3, 2)], id="it needs another thread"
        ),
    ],
)
def test_other_waits_for_locks_are_none(found: list[LockWait]) -> None:
    """The rank is late, and its line says why."""
    assert as_lock_cycle(LATE, world(*found)) == LATE


def test_a_rank_that_is_busy_is_not_in_a_deadlock() -> None:
    """It tries again and again, and may get the lock."""
    busy = replace(LATE, kind="livelock")
    assert as_lock_cycle(busy, world(lock_wait(1, 2), lock_wait(2, 1))) == busy


def test_the_cycle_leaves_out_the_way_to_it() -> None:
    """Only the threads that wait for each other are named."""
    result = world(lock_wait(1, 2), lock_wait(2, 3), lock_wait(3, 2))
    assert [each.ident for each in lock_cycle(result.dumps, 0)] == [2, 3]


REPORTER = 77
"""The thread of rank 0 that is in a collective."""

GATHER = builders.operation("all_gather", group=(0, 1), thread=REPORTER)
APART = Cause(
    kind="mismatch",
    confidence="certain",
    waiting=(0, 1),
    operation=GATHER,
    waits=(
        Wait(0, GATHER, frozenset({1}), is_mismatch=True),
        Wait(1, builders.operation("jit_step", group=(0, 1)), frozenset({0}), is_mismatch=True),
    ),
)


def held(by: int, lock: str = "a", thread: int = 1) -> LockWait:
    """Return a wait for a lock that the thread with this id holds."""
    wait = lock_wait(thread, by, lock)
    assert wait.holder is not None
    return replace(wait, holder=replace(wait.holder, native_id=by))


@pytest.mark.parametrize(
    "found",
    [
        pytest.param([held(REPORTER)], id="held in the collective"),
        pytest.param([held(5), held(REPORTER, thread=5)], id="by a thread that waits for it"),
    ],
)
def test_a_lock_that_is_held_in_a_collective_is_a_circle(found: list[LockWait]) -> None:
    """The main thread would enter what the other rank is in."""
    cause = as_lock_across(APART, world(*found))
    assert (cause.kind, cause.culprits, cause.cycle) == ("deadlock", (), (0, 1))


@pytest.mark.parametrize(
    "found",
    [
        pytest.param([held(5)], id="another thread holds it"),
        pytest.param([held(REPORTER, "")], id="the main thread joins that thread"),
        pytest.param([held(REPORTER, thread=2)], id="another thread waits"),
        pytest.param([lock_wait(1, REPORTER)], id="the id of the holder is unknown"),
    ],
)
def test_other_locks_beside_a_collective_say_nothing_about_it(found: list[LockWait]) -> None:
    """The ranks have entered different operations, whatever the reason."""
    assert as_lock_across(APART, world(*found)) == APART


def test_a_minority_stays_to_blame_for_its_lock() -> None:
    """Most ranks have entered the same."""
    odd = replace(APART, culprits=(0,))
    assert as_lock_across(odd, world(held(REPORTER))) == odd
