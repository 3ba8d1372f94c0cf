"""Deadlines and graces: how long a world may go on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pytest_multihost.core.engine import GRACE_AFTER_DEATH_S, GRACE_AFTER_RAISE_S
from pytest_multihost.testing import Step, exited, raised, report, well_behaved

Run = Callable[..., Any]

BOOM = raised("ValueError: boom")


def fails(rank: int, *, after_s: float) -> list[Step]:
    """Return a rank whose test raises so long after go, and that parks then."""
    return [
        *well_behaved(rank, stays_in="call"),
        Step(rank, "report", report("call", "failed", error=BOOM), after_s=after_s, on="go"),
        Step(rank, "parked", after_s=after_s, on="go"),
    ]


def test_a_world_that_does_not_get_ready_ends_at_the_startup_deadline(run: Run) -> None:
    """The start-up clock runs from the first fork, and the reason names who is late."""
    ran = run([*well_behaved(0), *well_behaved(1, stays_in="startup")], startup_timeout_s=10)
    assert (ran.result.ending, ran.seconds) == ("startup-overrun", 10)
    assert ran.result.reason == "start-up took longer than 10 s: rank 1 not ready"


def test_the_clock_of_the_test_starts_when_all_ranks_are_ready(run: Run) -> None:
    """A slow start takes nothing from the test's time."""
    slow = [Step(1, "forked", {"pid": 1}), Step(1, "ready", after_s=20)]
    ran = run([*well_behaved(0), *slow], timeout_s=5, startup_timeout_s=30)
    assert (ran.result.ending, ran.seconds) == ("overrun", 25)


def test_an_overrun_names_who_did_not_come(run: Run) -> None:
    """Of several ranks only the late one is named, with the phase it is in."""
    ran = run([*well_behaved(0), *well_behaved(1, stays_in="call"), *well_behaved(2)], size=3)
    assert ran.result.reason == "took longer than 60 s: rank 1 still in the test"


@pytest.mark.parametrize(
    ("phase", "reason"),
    [
        ("setup", "took longer than 60 s: rank 1 still in setup"),
        ("teardown", "took longer than 60 s: rank 1 still in teardown"),
        ("shutdown", "took longer than 60 s: rank 1 still in shutdown"),
    ],
)
def test_an_overrun_names_the_phase(run: Run, phase: Any, reason: str) -> None:  # noqa: ANN401
    """A hang before or after the test body is told as what it is."""
    ran = run([*well_behaved(0), *well_behaved(1, stays_in=phase)])
    assert (ran.result.ending, ran.result.reason) == ("overrun", reason)


def test_an_overrun_takes_the_stacks_of_every_rank_that_can_answer(run: Run) -> None:
    """Not of a dead rank, and not of one that would die of the signal it has no handler for."""
    silent = Step(2, "forked", {"pid": 3})  # its handler is not armed before its hello
    dead = [*well_behaved(3, stays_in="startup"), Step(3, "exited", exited(), after_s=1)]
    hanging = [*well_behaved(0, stays_in="startup"), *well_behaved(1, stays_in="startup")]
    # With a grace longer than the deadline, so that the dead rank is among the four at the end.
    ran = run([*hanging, silent, *dead], size=4, startup_timeout_s=1.5)
    assert ran.result.ending == "startup-overrun"
    assert ran.launcher.dumped == [(0, 1)]
    assert [dump.rank for dump in ran.result.dumps] == [0, 1]


def test_a_world_that_ends_by_itself_is_not_asked_for_stacks(run: Run) -> None:
    """A dump can kill a busy rank, so nobody is asked without need."""
    ran = run([*well_behaved(0), *well_behaved(1)])
    assert (ran.result.ending, ran.launcher.dumped, ran.result.dumps) == ("self", [], ())


def test_a_running_deadline_beats_a_later_grace(run: Run) -> None:
    """A raise just before the deadline does not prolong the test."""
    ran = run([*fails(0, after_s=58), *well_behaved(1, stays_in="call")])
    assert (ran.result.ending, ran.seconds) == ("overrun", 60)


def test_after_a_death_the_others_get_a_short_grace(run: Run) -> None:
    """Nobody waits for the deadline once a rank is gone."""
    death = Step(1, "exited", exited(signal=9), after_s=2.0, on="go")
    script = [*well_behaved(0, stays_in="call"), *well_behaved(1, stays_in="call"), death]
    ran = run(script)
    assert (ran.result.ending, ran.seconds) == ("settled", 2.0 + GRACE_AFTER_DEATH_S)
    assert (
        ran.result.reason
        == "rank 1 died, then rank 0 still in the test: ended after a grace period"
    )


def test_after_a_raise_the_others_get_a_grace(run: Run) -> None:
    """The test has failed, but the others may still tell what they saw."""
    ran = run([*fails(0, after_s=2.0), *well_behaved(1, stays_in="call")])
    assert (ran.result.ending, ran.seconds) == ("settled", 2.0 + GRACE_AFTER_RAISE_S)
    assert ran.launcher.dumped == [(0, 1)]


def test_an_expected_raise_starts_the_grace_too(run: Run) -> None:
    """Under xfail the ranks that wait for the raiser wait just as much in vain."""
    xfailed = report("call", "skipped", wasxfail="bug", error=BOOM)
    raiser = [*well_behaved(0, stays_in="call"), Step(0, "report", xfailed, on="go")]
    ran = run([*raiser, *well_behaved(1, stays_in="call")])
    assert (ran.result.ending, ran.seconds) == ("settled", GRACE_AFTER_RAISE_S)


def test_a_skip_starts_no_grace(run: Run) -> None:
    """A rank that skips has failed nothing: the others have all their time."""
    skip = report("call", "skipped")
    skipper = [
        *well_behaved(0, stays_in="call"),
        Step(0, "report", skip, on="go"),
        Step(0, "parked", on="go"),
    ]
    ran = run([*skipper, *well_behaved(1, stays_in="call")])
    assert (ran.result.ending, ran.seconds) == ("overrun", 60)


def test_the_earliest_trouble_decides(run: Run) -> None:
    """A second raise does not prolong the grace after the first."""
    ran = run(
        [*fails(0, after_s=1), *fails(1, after_s=3), *well_behaved(2, stays_in="call")], size=3
    )
    assert ran.seconds == 1 + GRACE_AFTER_RAISE_S
    assert ran.result.reason == "a rank failed, and the others were ended after a grace period"


def test_each_gate_gives_the_grace_anew(run: Run) -> None:
    """Fixtures of ranks that took long to come to the gate still get their time."""
    raiser = [*fails(0, after_s=0), *well_behaved(0)[-4:]]
    waiter = [
        *well_behaved(1, stays_in="call"),
        Step(1, "parked", after_s=4, on="go"),
        Step(1, "phase", {"phase": "teardown"}, on="teardown"),
    ]
    ran = run([*raiser, *waiter])
    assert ran.gates(rank=1)[-1] == (4.0, "teardown")
    assert (ran.result.ending, ran.seconds) == ("settled", 4 + GRACE_AFTER_RAISE_S)
