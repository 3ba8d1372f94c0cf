"""Where ranks stood, from what was seen of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pytest_multihost.analysis.outcome import Symptoms, judge
from pytest_multihost.analysis.standings import standings_of
from pytest_multihost.model.event import Event
from pytest_multihost.model.operation import Operation
from pytest_multihost.model.process import Look, Process, Thread
from pytest_multihost.model.result import Ending, WorldResult
from pytest_multihost.model.sighting import RankSighting, Sighting
from pytest_multihost.testing import make_spec, well_behaved
from pytest_multihost.watch.closely import seen_closely
from pytest_multihost.watch.seeker import still


def ended(ending: Ending, *moves: bool, rests_s: float | None = None) -> bool:
    """Return whether a rank is restless that had moved, or not, at the last looks."""
    history = [Event(0.0, 0, step.kind, step.detail) for step in well_behaved(0, stays_in="call")]
    seen = RankSighting(rank=0, moves=moves, rests_s=rests_s)
    result = WorldResult(
        spec=make_spec(1),
        launch="scripted",
        started_at="2026-11-21T00:00:00Z",
        started_s=0.0,
        ended_s=float(len(moves)),
        history=tuple(history),
        ending=ending,
        sightings=(Sighting(at_s=float(len(moves)), why="end", ranks=(seen,)),),
    )
    [standing] = standings_of(result, judge(result, Symptoms()))
    return standing.is_restless


RAN, STOOD = True, False


@pytest.mark.parametrize("ending", ["overrun", "startup-overrun"])
def test_a_rank_that_runs_until_the_deadline_is_restless(ending: Ending) -> None:
    """If only to wait again."""
    assert ended(ending, *[STOOD] * 6, RAN, RAN)
    assert ended(ending, *[RAN] * 24)


@pytest.mark.parametrize("late", range(4))
def test_a_rank_that_wakes_up_each_second_is_restless(late: int) -> None:
    """It is seen to move at every fourth look, whenever its deadline comes."""
    beats = [RAN, STOOD, STOOD, STOOD] * 7
    assert ended("overrun", *beats[late : late + 24])


@pytest.mark.parametrize("late", range(8))
def test_a_rank_that_waits_two_seconds_again_and_again_is_restless(late: int) -> None:
    """It is seen to move at every eighth look, and its wait is a short one."""
    beats = [RAN, *[STOOD] * 7] * 4
    assert ended("overrun", *beats[late : late + 24], rests_s=1.0)


@pytest.mark.parametrize("rests_s", [None, 590.0])
def test_a_rank_that_has_begun_a_long_wait_is_not_restless(rests_s: float | None) -> None:
    """It worked before that, on and off, and was seen to."""
    worked = [RAN, RAN, STOOD, RAN, RAN, STOOD, RAN]
    assert not ended("overrun", *worked, *[STOOD] * 6, rests_s=rests_s)


def test_a_rank_that_sleeps_once_after_its_work_is_not_restless() -> None:
    """A short wait that begins once is one wait."""
    assert not ended("overrun", *[RAN] * 4, *[STOOD] * 12, rests_s=3.0)


@pytest.mark.parametrize("ending", ["settled", "proof", "mismatch", "stopped"])
def test_a_rank_that_runs_when_the_others_give_up_is_only_late(ending: Ending) -> None:
    """It may be between two long reads: nobody has seen whether it would have come."""
    assert not ended(ending, *[RAN] * 8)


def native(name: str) -> Operation:
    """Return an operation that native frames tell of."""
    return Operation(name=name, kind="collective", group=(0, 1), sequence=0, since_s=1.0)


def test_a_closer_look_tells_of_the_trouble_where_a_rank_has_not_run_since() -> None:
    """One that has run may have entered its operation only then."""
    ranks = tuple(RankSighting(rank=rank) for rank in range(2))
    told = tuple(replace(each, operations=(native("all_reduce"),)) for each in ranks)
    trouble = Sighting(at_s=1.0, why="trouble", ranks=ranks)
    seen = seen_closely(trouble, Sighting(at_s=2.0, why="end", ranks=told), frozenset({1}))
    assert [len(each.operations) for each in seen.ranks] == [0, 1]
    assert (seen.at_s, seen.why) == (1.0, "trouble")


@pytest.mark.parametrize(
    ("becomes", "expected"),
    [({}, {0}), ({"runs": 6}, set()), ({"state": "R"}, set()), ({"tid": 8}, set())],
)
def test_a_rank_stands_still_in_one_and_the_same_wait(
    becomes: dict[str, Any], expected: set[int]
) -> None:
    """A thread that runs, or has run, or is another one does not."""
    main = Thread(tid=7, call="futex", runs=5)
    was, now = (
        Look(at_s=at_s, processes=(Process(pid=7, rank=0, is_rank=True, threads=(each,)),))
        for at_s, each in ((1.0, main), (2.0, replace(main, **becomes)))
    )
    assert still(was, now) == expected
