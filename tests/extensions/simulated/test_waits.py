"""Which ranks of a simulated world run, and when it is proven to hang, without any process."""

from __future__ import annotations

import math

import pytest

from pytest_multihost.extensions.simulated.launches import Completion
from pytest_multihost.extensions.simulated.link import Threads
from pytest_multihost.extensions.simulated.waits import ThreadWait, Waits

pytestmark = pytest.mark.unit

ONE = Threads(alive=1, own=0, has_timer=False)


def world(size: int = 2, places: int = 2) -> Waits:
    """Return a world whose ranks all run."""
    waits = Waits(size, places=places)
    for rank in range(size):
        waits.moves(rank, ONE)
        waits.park(ThreadWait(rank, rank))
    while waits.next_ready(beyond=size) is not None:
        pass
    return waits


def park(
    waits: Waits, rank: int, number: int = 1, threads: Threads = ONE, **given: object
) -> ThreadWait:
    """Let a rank wait for the end of a launch."""
    waits.moves(rank, threads)
    wait = ThreadWait(rank, given.pop("thread", rank), {number}, **given)  # type: ignore[arg-type]
    waits.park(wait)
    return wait


def end(rank: int, number: int = 1) -> Completion:
    """Return the end of a launch."""
    return Completion(rank=rank, number=number)


def test_a_world_whose_ranks_all_wait_hangs() -> None:
    """Nothing is left that could launch an operation."""
    waits = world()
    park(waits, 0)
    assert waits.hang() is None
    park(waits, 1)
    assert waits.hang() is not None


def test_a_rank_that_is_ready_has_not_hung() -> None:
    """It goes on as soon as a place is free."""
    waits = world()
    park(waits, 0)
    park(waits, 1)
    waits.end([end(1)])
    assert waits.hang() is None


def test_a_rank_that_ends_when_it_was_ready_takes_no_place() -> None:
    """It was killed between the end of its operation and its turn."""
    waits = world()
    park(waits, 0)
    waits.end([end(0)])
    waits.lose(0, 0)
    waits.lose_rank(0)
    assert waits.next_ready() is None
    assert 0 not in waits.running


def test_a_rank_that_another_thread_keeps_busy_has_not_hung() -> None:
    """A helper thread may still launch what the others wait for: an innocent that looks guilty."""
    waits = world()
    park(waits, 0, threads=Threads(alive=2, own=0, has_timer=False))
    park(waits, 1)
    assert waits.hang() is None


def test_a_rank_whose_threads_all_wait_has_hung() -> None:
    """Two threads, and both of them wait."""
    waits = world()
    two = Threads(alive=2, own=0, has_timer=False)
    park(waits, 0, threads=two)
    park(waits, 0, number=2, threads=two, thread=99)
    park(waits, 1)
    assert waits.hang() is not None


def test_a_rank_that_a_signal_will_interrupt_has_not_hung() -> None:
    """The handler of an alarm may raise."""
    waits = world()
    park(waits, 0, threads=Threads(alive=1, own=0, has_timer=True))
    park(waits, 1)
    assert waits.hang() is None


def test_a_rank_that_has_left_the_test_does_not_keep_the_others_from_hanging() -> None:
    """It launches nothing more."""
    waits = world()
    park(waits, 0)
    waits.finish(1, ONE)
    assert waits.hang() is not None


def test_a_thread_that_works_after_its_rank_has_left_the_test_may_end_a_wait() -> None:
    """The test has returned, but a thread that it has started has not."""
    waits = world()
    park(waits, 0)
    waits.finish(1, Threads(alive=2, own=0, has_timer=False))
    assert waits.hang() is None


def test_a_world_whose_ranks_have_all_left_the_test_has_not_hung() -> None:
    """It has passed."""
    waits = world()
    waits.finish(0, ONE)
    waits.finish(1, ONE)
    assert waits.hang() is None


def test_a_rank_that_has_not_come_yet_may_end_a_wait() -> None:
    """It is being forked."""
    waits = Waits(2, places=2)
    waits.moves(0, ONE)
    waits.park(ThreadWait(0, 0))
    waits.next_ready()
    park(waits, 0)
    assert waits.hang() is None


def test_a_rank_that_tests_for_completion_is_asked_again_when_nothing_else_moves() -> None:
    """It may do something else then."""
    waits = world()
    wait = park(waits, 0, may_return=True)
    park(waits, 1)
    assert waits.hang() is None
    assert waits.yielding() == [wait]


def test_a_wait_with_a_timeout_hangs_until_then() -> None:
    """The caller knows whether the test ends before."""
    waits = world()
    park(waits, 0, expires_s=50.0)
    park(waits, 1)
    assert waits.hang() is not None
    assert waits.next_expiry_s == 50.0
    assert [each.rank for each in waits.expired(51.0)] == [0]


def test_a_world_without_timeouts_hangs_for_ever() -> None:
    """A wait that has ended has none any more."""
    waits = world()
    park(waits, 0, expires_s=50.0)
    waits.end([end(0)])
    assert waits.next_expiry_s == math.inf


def test_only_so_many_ranks_run_as_there_are_places() -> None:
    """The next goes on when one of them waits."""
    waits = world(3, places=1)
    for rank in range(3):
        park(waits, rank)
    waits.end([end(each) for each in range(3)])
    first = waits.next_ready()
    assert first is not None
    assert waits.next_ready() is None
    park(waits, first.rank, number=2)
    assert waits.next_ready() is not None


def test_a_rank_that_is_blocked_elsewhere_lends_its_place() -> None:
    """It sleeps, or waits for a lock that another rank holds."""
    waits = world(2, places=1)
    park(waits, 0)
    waits.end([end(0)])
    assert waits.next_ready() is None
    waits.lend(1)
    assert waits.next_ready() is not None


def test_ends_are_told_with_the_next_answer_even_if_nobody_has_waited() -> None:
    """A program may read a tensor without waiting for the work that fills it, as on gloo."""
    waits = world()
    waits.end([end(0, 5)])
    park(waits, 0, number=6)
    waits.end([end(0, 6)])
    assert [each.number for each in waits.take_ended(0)] == [5, 6]
    assert waits.take_ended(0) == []


def test_a_thread_may_ask_for_an_end_that_another_one_has_been_told_of() -> None:
    """It is ready at once, though its rank knows of the end already."""
    waits = world()
    waits.end([end(0, 5)])
    waits.take_ended(0)
    park(waits, 0, number=5)
    assert [each.rank for each in waits.ready] == [0]
