"""Where ranks stood, from what was seen of them."""

from __future__ import annotations

import pytest

from pytest_multihost.analysis.outcome import Symptoms, judge
from pytest_multihost.analysis.standings import standings_of
from pytest_multihost.model.event import Event
from pytest_multihost.model.result import Ending, WorldResult
from pytest_multihost.model.sighting import RankSighting, Sighting
from pytest_multihost.testing import make_spec, well_behaved


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
