"""When a job that was looked at is said to hang: judged on looks made by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import builders

from pytest_multihost.core.blame import Judgement
from pytest_multihost.extensions.live.look import Look
from pytest_multihost.extensions.live.processes import Job
from pytest_multihost.extensions.live.seen_world import SeenJob, _Finding, _judgement
from pytest_multihost.testing import (
    Activity,
    Dump,
    Frame,
    Operation,
    RankSnapshot,
    SourceContext,
    ThreadStack,
)

LOCK = Activity("futex")
SLEEP = Activity("sleep", ends_in_s=5000.0)


def look(*ranks: RankSnapshot, **facts: Any) -> Look:  # noqa: ANN401
    """Return a look at ranks, of which all were read."""
    return Look(at_s=1.0, ranks=ranks, dumps=(), lines=(), unread={}, unclear=frozenset(), **facts)


def judged(seen: Look) -> Judgement:
    """Return the judgement of a job of which a look was taken."""
    job = Job({each.rank: 100 + each.rank for each in seen.ranks}, len(seen.ranks), "torchrun")
    return _judgement(job, SourceContext("/job"), seen)


def is_hung(seen: Look) -> bool:
    """Return whether the job is said to hang."""
    return judged(seen).finding.outcome == "hung"


def resting(rank: int, activity: Activity = LOCK) -> RankSnapshot:
    """Return a rank that waits in no operation."""
    label = "SLEEPING" if activity is SLEEP else "BLOCKED"
    return RankSnapshot(rank=rank, label=label, activity=activity)


def inside(rank: int, operation: Operation, **changes: Any) -> RankSnapshot:  # noqa: ANN401
    """Return a rank that waits in an operation."""
    return RankSnapshot(
        rank=rank, label="BLOCKED", activity=LOCK, operations=(operation,), **changes
    )


def collective(name: str = "all_reduce", **changes: Any) -> Operation:  # noqa: ANN401
    """Return a collective that is known by frames alone."""
    found = builders.operation(name, waited_s=1.0, source="python-frames", **changes)
    return replace(found, group=(0, 1), sequence=0)


# A rank that waits for itself


def test_a_rank_that_is_proven_to_wait_for_itself_hangs() -> None:
    """Nobody waits for it any more: the others have ended."""
    found = judged(look(resting(0), is_proven=True))
    assert found.finding.outcome == "hung"
    assert found.diagnosis is not None
    assert (found.diagnosis.kind, found.diagnosis.culprits) == ("stuck", (0,))


def test_a_rank_that_rests_without_a_proof_is_not_accused() -> None:
    """An innocent: it may wait for what another process sends."""
    assert not is_hung(look(resting(0)))


def test_a_rank_that_sleeps_is_not_stuck() -> None:
    """An innocent: it goes on by itself, however late."""
    assert not is_hung(look(resting(0, SLEEP), is_proven=True))


def test_a_rank_that_its_parent_may_end_is_not_accused() -> None:
    """An innocent: the program that has started it is at work."""
    assert not is_hung(look(resting(0), is_proven=True, may_be_ended=True))


# Ranks that spin


def test_ranks_that_spin_in_an_operation_wait_for_one_that_sleeps() -> None:
    """MPI polls."""
    assert is_hung(look(inside(0, collective()), resting(1, SLEEP), spinning=frozenset({0})))


def test_ranks_that_spin_in_different_operations_may_get_on() -> None:
    """An innocent: a look may show each of them in another call of a loop."""
    ranks = (inside(0, collective()), inside(1, collective("barrier")))
    found = judged(look(*ranks, spinning=frozenset({0, 1})))
    assert found.finding.outcome != "hung"
    assert "may continue at any time" in str(found.finding.reason)


def test_a_rank_that_spins_in_an_operation_of_another_kind_may_get_on() -> None:
    """An innocent: the minority of three is in the next call of a loop."""
    ranks = (inside(0, of_three()), inside(1, of_three("barrier")), inside(2, of_three()))
    found = judged(look(*ranks, spinning=frozenset({0, 1, 2})))
    assert found.finding.outcome != "hung"
    assert found.diagnosis is not None
    assert (found.diagnosis.kind, found.diagnosis.culprits) == ("mismatch", (1,))


def of_three(name: str = "all_reduce") -> Operation:
    """Return a collective of three ranks."""
    return replace(collective(name), group=(0, 1, 2))


# Ranks in operations that cannot match

WAKES = {1: "rank 1: main thread wakes up and waits for a lock"}


def test_a_main_thread_that_wakes_up_in_a_mismatch_does_not_go_on() -> None:
    """That of jax does; the thread that performs the operation rests."""
    ranks = (inside(0, of_three()), inside(1, of_three("barrier")), inside(2, of_three()))
    assert is_hung(look(*ranks, moving=WAKES, apart=frozenset({1})))
    assert not is_hung(look(*ranks, moving=WAKES))


def test_two_ranks_in_different_operations_hang_unless_a_timeout_is_near() -> None:
    """Nobody is the minority. The innocent ones: one times out, and the other goes on with it."""
    ranks = (inside(0, collective()), inside(1, collective("barrier")))
    apart = frozenset({0, 1})
    assert is_hung(look(*ranks, moving=WAKES, apart=apart))
    near = {1: "barrier on rank 1 may time out within 20 s"}
    assert not is_hung(look(*ranks, moving=WAKES, apart=apart, limited=near))


def test_a_rank_that_computes_keeps_two_different_operations_from_being_a_hang() -> None:
    """An innocent: groups of a program's axes may look like the group of all ranks."""
    busy = RankSnapshot(rank=2, label="RUNNING", activity=Activity("runs"))
    ranks = (inside(0, of_three()), inside(1, of_three("barrier")), busy)
    runs = {2: "rank 2: main thread runs"}
    found = judged(look(*ranks, moving=runs, apart=frozenset({0, 1})))
    assert found.finding.outcome != "hung"
    assert found.diagnosis is not None
    assert found.diagnosis.culprits == (2,)


# A rank that computes


def test_a_rank_that_computes_is_told_with_its_line_and_who_waits_for_it() -> None:
    """An innocent: it may come to the operation yet, so it is not said to have never reached it."""
    busy = RankSnapshot(rank=1, label="RUNNING", activity=Activity("runs"))
    at = Dump(1, "py-spy", (ThreadStack("MainThread", (Frame("/job/train.py", 7, "step"),)),))
    seen = look(inside(0, collective()), busy, moving={1: "rank 1: main thread runs"})
    found = judged(replace(seen, dumps=(at,)))
    assert found.finding.outcome != "hung"
    assert str(found.finding.reason).startswith(
        "rank 1 computes at train.py:7; rank 0 waits for it in all_reduce"
    )


# Repeated looks


def seen(*culprits: int, **waits: int) -> SeenJob:
    """Return a look in which others wait for these ranks, with the identity of each wait."""
    ranks = tuple(int(name[1:]) for name in waits)
    found = judged(look(*(inside(r, collective()) for r in (0,)), resting(1, SLEEP)))
    assert found.diagnosis is not None
    diagnosis = replace(found.diagnosis, culprits=culprits, waiting=ranks)
    keys = {rank: (waits[f"r{rank}"],) for rank in ranks}
    return SeenJob(replace(found, diagnosis=diagnosis), keys)


def test_waits_that_stay_the_same_for_the_patience_are_a_hang() -> None:
    """No main thread rests: the culprit spins, and the others wake up in their operation."""
    finding = _Finding().after(seen(2, r0=7, r1=8), 0.0).after(seen(2, r0=7, r1=8), 15.0)
    assert finding.has_lasted({}, 15.0, 12.0)
    assert not finding.has_lasted({}, 15.0, 20.0)


def test_waits_that_are_new_at_each_look_are_none() -> None:
    """An innocent: the culprit is the slowest rank of each step."""
    finding = _Finding().after(seen(2, r0=7, r1=8), 0.0).after(seen(2, r0=7, r1=9), 15.0)
    assert not finding.has_lasted({}, 15.0, 12.0)


def test_another_culprit_begins_anew() -> None:
    """An innocent: the ranks are slow in turns."""
    finding = _Finding().after(seen(2, r0=7), 0.0).after(seen(1, r0=7), 15.0)
    assert not finding.has_lasted({}, 15.0, 12.0)
