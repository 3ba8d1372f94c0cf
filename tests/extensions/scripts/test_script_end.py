"""When ranks of a script that is over may leave ahead of others, on hand-made facts."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import pytest

from pytest_multihost.core.outcome import RankFacts
from pytest_multihost.core.services import Action, Turn
from pytest_multihost.extensions.scripts.script_end import LEAVE_S, QUIET_S, ScriptEnd
from pytest_multihost.testing import Done, Event, Exited, FaultChanged

OVER = RankFacts(0, parked_s=1.0)
RUNS = RankFacts(1)
NOW_S = 100.0


@dataclass
class Watched:
    """A world as the watchdog sees it."""

    quiet_for_s: float = QUIET_S
    in_operations: set[int] = field(default_factory=set)

    def end(self, *stays: int) -> ScriptEnd:
        return ScriptEnd(lambda _: self.quiet_for_s, self.are_in, frozenset(stays))

    def are_in(self, ranks: Collection[int]) -> bool:
        return not self.in_operations.isdisjoint(ranks)


def due(end: ScriptEnd, *facts: RankFacts, now: float = NOW_S) -> Sequence[Action]:
    """Return what is due."""
    turn = Turn(now=now, facts=facts, deadline_s=9e9, horizon_s=9e9, is_last=True)
    return end.due(turn)


def test_a_rank_leaves_when_nothing_has_moved_for_long() -> None:
    """Another may wait for the end of its process; what was seen before is no evidence then."""
    [action] = due(Watched().end(), OVER, RUNS)
    assert action.gates == ((0, "teardown"),)
    assert action.moves_at_s == NOW_S


@pytest.mark.parametrize(
    ("watched", "facts", "why"),
    [
        (Watched(quiet_for_s=QUIET_S - 1), (OVER, RUNS), "a proof may still come"),
        (Watched(in_operations={1}), (OVER, RUNS), "it may wait in an operation with the other"),
        (Watched(), (OVER, RankFacts(1, parked_s=1.0)), "all are over"),
        (Watched(), (RankFacts(0), RUNS), "none is over"),
        (Watched(), (OVER, RankFacts(1, failed_s=5.0)), "one has failed"),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_otherwise_it_keeps_its_connections(
    watched: Watched, facts: tuple[RankFacts, ...], why: str
) -> None:
    """Ranks in operations with it are found to wait for it."""
    assert due(watched.end(), *facts) == (), why


def test_a_fault_that_is_still_to_act_comes_first() -> None:
    """The others may only wait for the end of a delay."""
    delayed = FaultChanged(index=0, fault="delay", phase="begun", until_s=NOW_S + 5)
    waits = RankFacts(1, active_faults=(Event(1.0, 1, delayed),))
    assert due(Watched().end(), OVER, waits) == ()
    assert due(Watched().end(), OVER, waits, now=NOW_S + 60) != ()


def test_a_rank_that_hosts_a_service_of_the_runtime_stays() -> None:
    """Its end would end the others."""
    assert due(Watched().end(0), OVER, RUNS) == ()


def test_a_rank_is_told_once_and_exits_when_it_has_torn_down() -> None:
    """A hang of the others is not looked for meanwhile, but not for longer than a while."""
    end = Watched().end()
    [action] = due(end, OVER, RUNS)
    action.perform(NOW_S)
    assert due(end, OVER, RUNS) == ()
    assert end.is_acting(NOW_S + LEAVE_S - 0.1)
    assert not end.is_acting(NOW_S + LEAVE_S)
    done = RankFacts(0, parked_s=1.0, done_s=2.0)
    assert [each.gates for each in end.after(Event(2.0, 0, Done()), [done, RUNS])] == [
        ((0, "exit"),)
    ]
    gone = RankFacts(0, parked_s=1.0, done_s=2.0, exited_s=3.0, exit=Exited(0))
    end.after(Event(3.0, 0, Exited(0)), [gone, RUNS])
    assert not end.is_acting(NOW_S)
