"""Where ranks stood, from what was seen of them."""

from __future__ import annotations

import pytest

from pytest_multihost.analysis.outcome import Symptoms, judge
from pytest_multihost.analysis.standings import standings_of
from pytest_multihost.model.event import Event
from pytest_multihost.model.result import Ending, WorldResult
from pytest_multihost.model.sighting import RankSighting, Sighting
from pytest_multihost.testing import make_spec, well_behaved


def restless(ending: Ending, *looks: bool) -> bool:
    """Return whether a rank is restless whose main thread had moved, or not, at the last looks."""
    history = [Event(0.0, 0, step.kind, step.detail) for step in well_behaved(0, stays_in="call")]
    ticks = [
        Sighting(at_s=at_s, why="tick", ranks=(RankSighting(rank=0, has_moved=has_moved),))
        for at_s, has_moved in enumerate(looks)
    ]
    result = WorldResult(
        spec=make_spec(1),
        launch="scripted",
        started_at="2026-11-21T00:00:00Z",
        started_s=0.0,
        ended_s=float(len(looks)),
        history=tuple(history),
        ending=ending,
        sightings=tuple(ticks),
    )
    [standing] = standings_of(result, judge(result, Symptoms()))
    return standing.is_restless


@pytest.mark.parametrize("ending", ["overrun", "startup-overrun"])
def test_a_rank_that_runs_until_the_deadline_is_restless(ending: Ending) -> None:
    """If only to wait again."""
    assert restless(ending, False, False, True, True)
    assert restless(ending, *[True] * 8)


def test_a_rank_that_wakes_up_each_second_is_restless() -> None:
    """It is seen to move at every fourth look, whenever its deadline comes."""
    beats = [True, False, False, False]
    for late in range(4):
        assert restless("overrun", *(beats * 3)[late : late + 8])


def test_a_rank_that_has_begun_a_long_wait_is_not_restless() -> None:
    """It worked before that, and was seen to."""
    assert not restless("overrun", True, True, True, False, False, False, False, False)
    assert not restless("overrun", False, False, False, False, False, False, True, False)


@pytest.mark.parametrize("ending", ["settled", "proof", "mismatch", "stopped"])
def test_a_rank_that_runs_when_the_others_give_up_is_only_late(ending: Ending) -> None:
    """It may be between two long reads: nobody has seen whether it would have come."""
    assert not restless(ending, True, True, True)
