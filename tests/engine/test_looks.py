"""When ranks are looked at: not while they tell something, for who tells gets on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from pytest_multihost.engine import MAX_SNAPSHOT_DELAY_S, QUIET_PERIOD_S
from pytest_multihost.outcome import RankFacts
from pytest_multihost.testing import Step, well_behaved
from pytest_multihost.watch.protocol import Ground, Observations

Run = Callable[..., Any]
HANGS = [*well_behaved(0, stays_in="call"), *well_behaved(1, stays_in="call")]
LOOK_S = 0.25


@dataclass
class Suspicious:
    """A watch that takes whatever it sees for a hang."""

    interval_s: float = LOOK_S
    looks: list[float] = field(default_factory=list)

    def check(self, now: float, facts: Sequence[RankFacts], *, deadline_s: float) -> Ground | None:
        """Note when it has looked."""
        self.looks.append(now)
        return "proof"

    def note_failure(self, now: float, facts: Sequence[RankFacts]) -> None:
        """There is none."""

    def has_settled(self, now: float, facts: Sequence[RankFacts]) -> bool:
        """Nothing raises here."""
        return False

    def close(self, now: float, facts: Sequence[RankFacts]) -> Observations:
        """Have nothing to tell."""
        return Observations()


def chatter(seconds: float) -> list[Step]:
    """Have rank 0 tell something every ten milliseconds of its test."""
    times = [number / 100 for number in range(1, round(seconds * 100) + 1)]
    return [Step(0, "point", after_s=after_s, on="go") for after_s in times]


def seconds_to_look(run: Run, script: Sequence[Step]) -> float:
    """Return how long after the test's start its ranks were looked at first."""
    watch = Suspicious()
    ran = run(script, watch=watch)
    go_s = next(at_s for at_s, gate in ran.gates(rank=0) if gate == "go")
    return float(watch.looks[0] - ran.result.started_s - go_s)


def test_ranks_are_not_looked_at_while_they_tell_something(run: Run) -> None:
    """A close look at large worlds takes a tenth of a second, for which every rank would wait."""
    told_s = MAX_SNAPSHOT_DELAY_S / 2
    assert told_s < seconds_to_look(run, [*HANGS, *chatter(told_s)]) <= told_s + 2 * QUIET_PERIOD_S


def test_a_rank_that_never_stops_talking_does_not_hide_what_the_others_do(run: Run) -> None:
    """The look is put off, not left out."""
    seconds = seconds_to_look(run, [*HANGS, *chatter(3 * MAX_SNAPSHOT_DELAY_S)])
    assert seconds == pytest.approx(MAX_SNAPSHOT_DELAY_S, abs=0.05)


def test_silent_ranks_are_looked_at_at_once(run: Run) -> None:
    """What puts off a look is told by them, not by us."""
    assert seconds_to_look(run, HANGS) <= QUIET_PERIOD_S
