"""Barrier, gather and broadcast, without ranks: who is answered what, and when."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_multihost.core.launch import HarnessCollectives
from pytest_multihost.core.launch.frames import WireFrame
from pytest_multihost.core.launch.harness_collectives import Answers
from pytest_multihost.testing import (
    CollectiveBroken,
    CollectiveComplete,
    ExchangeEntered,
    from_json,
)


def enter(exchange: HarnessCollectives, rank: int, name: str = "x", **header: Any) -> Answers:  # noqa: ANN401
    """Have a rank enter a barrier, or what `header` says."""
    payload = header.pop("payload", b"")
    plain = {"operation": "barrier", "name": name, "nth": 0, "alone": True}
    return exchange.enter(
        rank, from_json(ExchangeEntered, {"kind": "exchange", **plain, **header}), payload
    )


def errors(answers: Answers) -> dict[int, str]:
    """Return the error each rank gets."""
    found = {}
    for rank, frame in answers.items():
        assert isinstance(frame.message, CollectiveBroken)
        found[rank] = frame.message.error
    return found


def contributions(frame: WireFrame[Any]) -> list[bytes]:
    """Return what a complete operation brings a rank."""
    assert isinstance(frame.message, CollectiveComplete)
    return frame.message.contributions(frame.payload)


def test_a_barrier_is_answered_when_the_last_rank_enters() -> None:
    """Nobody before, everybody then."""
    exchange = HarnessCollectives(3)
    assert enter(exchange, 2) == {}
    assert enter(exchange, 0) == {}
    answers = enter(exchange, 1, payload=b"no barrier carries anything")
    assert {rank: contributions(frame) for rank, frame in answers.items()} == {
        rank: [] for rank in range(3)
    }


def test_an_answer_names_what_it_answers() -> None:
    """By this the thread that waits for it knows its own."""
    [frame] = enter(HarnessCollectives(1), 0, nth=4).values()
    assert frame.message.key == ("barrier", "x", 4)


def test_barriers_with_different_names_do_not_meet() -> None:
    """A rank with several threads may stand in several."""
    exchange = HarnessCollectives(2)
    enter(exchange, 0, "a", alone=False)
    enter(exchange, 0, "b", alone=False)
    answers = enter(exchange, 1, "b", alone=False)
    assert {frame.message.key for frame in answers.values()} == {("barrier", "b", 0)}


def test_a_barrier_in_a_loop_needs_no_other_name() -> None:
    """The second time round is another barrier: a fast rank does not lap a slow one."""
    exchange = HarnessCollectives(2)
    enter(exchange, 0, nth=0)
    enter(exchange, 1, nth=0)
    assert enter(exchange, 0, nth=1) == {}
    assert set(enter(exchange, 1, nth=1)) == {0, 1}


def test_a_gather_is_answered_in_order_of_rank() -> None:
    """However late rank 0 comes."""
    exchange = HarnessCollectives(3)
    for rank, payload in ((2, b"two"), (1, b""), (0, b"zero")):
        answers = enter(exchange, rank, operation="gather", payload=payload)
    assert [contributions(answers[rank]) for rank in range(3)] == [[b"zero", b"", b"two"]] * 3


def test_a_broadcast_is_answered_with_what_the_primary_passed() -> None:
    """And with nothing else."""
    exchange = HarnessCollectives(2)
    enter(exchange, 1, operation="broadcast", payload=b"ignored")
    answers = enter(exchange, 0, operation="broadcast", payload=b"zero")
    assert [contributions(answers[rank]) for rank in range(2)] == [[b"zero"]] * 2


def test_a_lost_rank_breaks_what_others_wait_in() -> None:
    """All of it, in all operations, and only for those that wait."""
    exchange = HarnessCollectives(4)
    enter(exchange, 0, "a")
    enter(exchange, 1, "b")
    assert errors(exchange.mark_lost(3, "was killed by SIGKILL")) == {
        0: "barrier 'a' can never complete: rank 3 was killed by SIGKILL",
        1: "barrier 'b' can never complete: rank 3 was killed by SIGKILL",
    }


def test_what_broke_is_answered_once() -> None:
    """A second loss has nobody left to tell."""
    exchange = HarnessCollectives(3)
    enter(exchange, 0)
    exchange.mark_lost(1, "failed")
    assert exchange.mark_lost(2, "failed") == {}


def test_who_enters_after_a_loss_is_told_at_once() -> None:
    """With every reason, and of each rank the first."""
    exchange = HarnessCollectives(3)
    exchange.mark_lost(2, "raised KeyError")
    exchange.mark_lost(1, "was killed by SIGKILL")
    exchange.mark_lost(2, "has left the test")
    why = "rank 1 was killed by SIGKILL; rank 2 raised KeyError"
    assert errors(enter(exchange, 0)) == {0: f"barrier 'x' can never complete: {why}"}


def test_a_rank_that_was_lost_can_take_part_in_the_teardown() -> None:
    """After a failure the ranks go on to it together; only those that live."""
    exchange = HarnessCollectives(3)
    exchange.mark_lost(1, "raised KeyError")
    exchange.mark_lost(2, "was killed by SIGKILL")
    exchange.readmit([0, 1])
    [error] = errors(enter(exchange, 0)).values()
    assert error == "barrier 'x' can never complete: rank 2 was killed by SIGKILL"


def test_what_was_entered_in_the_test_does_not_count_in_the_teardown() -> None:
    """After a failure some ranks have entered a barrier more often than others."""
    exchange = HarnessCollectives(2)
    enter(exchange, 0, nth=0)
    exchange.mark_lost(1, "raised KeyError")
    exchange.readmit(range(2))
    for in_teardown in range(2):
        assert enter(exchange, 0, nth=1 + in_teardown) == {}
        answers = enter(exchange, 1, nth=in_teardown)
        # Each is answered under the number that it has itself given to its entry.
        keys = {rank: frame.message.key for rank, frame in answers.items()}
        assert keys == {0: ("barrier", "x", 1 + in_teardown), 1: ("barrier", "x", in_teardown)}


def test_what_breaks_in_the_teardown_is_answered_under_its_own_number() -> None:
    """By this the thread that waits for it knows its own, here too."""
    exchange = HarnessCollectives(2)
    enter(exchange, 0, nth=0)
    enter(exchange, 1, nth=0)
    exchange.readmit(range(2))
    enter(exchange, 0, nth=1)
    [frame] = exchange.mark_lost(1, "failed").values()
    assert frame.message.key == ("barrier", "x", 1)


def test_a_barrier_that_all_had_entered_is_complete_whatever_comes_later() -> None:
    """A rank may die right behind the barrier without taking it back."""
    exchange = HarnessCollectives(2)
    enter(exchange, 0)
    assert set(enter(exchange, 1)) == {0, 1}
    assert exchange.mark_lost(1, "failed") == {}


def test_ranks_that_wait_for_different_things_are_all_told() -> None:
    """Each in a barrier that no other will ever enter: nothing can come of that."""
    exchange = HarnessCollectives(2)
    assert enter(exchange, 0, "save") == {}
    found = errors(enter(exchange, 1, "", operation="gather"))
    why = (
        "all ranks wait, each for something else: rank 0 is in barrier 'save'; rank 1 is in gather"
    )
    assert found == {
        0: f"barrier 'save' can never complete: {why}",
        1: f"gather can never complete: {why}",
    }


@pytest.mark.parametrize("with_threads", [0, 1])
def test_a_rank_with_another_thread_may_still_come(with_threads: int) -> None:
    """Then nothing is proven, and nobody is told that it was."""
    exchange = HarnessCollectives(2)
    enter(exchange, 0, "a", alone=with_threads != 0)
    assert enter(exchange, 1, "b", alone=with_threads != 1) == {}


def test_ranks_of_which_one_is_not_waiting_may_still_meet() -> None:
    """Two of three in different barriers prove nothing: the third decides."""
    exchange = HarnessCollectives(3)
    enter(exchange, 0, "a")
    assert enter(exchange, 1, "b") == {}
