"""The harness's own barrier: answered when all are in, broken when one can never come."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pytest_multihost.testing import Step, exited, raised, report, well_behaved

Run = Callable[..., Any]


def enters(rank: int, *, nth: int = 0, **when: Any) -> Step:  # noqa: ANN401 - fields of Step
    """Return the step that takes a rank into the barrier "x"."""
    detail = {"operation": "barrier", "name": "x", "nth": nth, "alone": True}
    return Step(rank, "exchange", detail, **when)


def test_a_barrier_is_answered_when_the_last_rank_is_in(run: Run) -> None:
    """Everybody gets the answer, and nobody before the last has come."""
    script = [
        *well_behaved(0, stays_in="call"),
        enters(0, after_s=1, on="go"),
        *well_behaved(1, stays_in="call"),
        enters(1, after_s=3, on="go"),
    ]
    ran = run(script)
    assert ran.answers(0) == ran.answers(1) == [(3.0, "CollectiveComplete")]


FAILED = report("call", "failed", error=raised("ValueError: boom"))


@pytest.mark.parametrize(
    ("step", "why"),
    [
        (Step(1, "report", FAILED, after_s=3, on="go"), "rank 1 raised ValueError"),
        (Step(1, "report", report("call", "failed"), after_s=3, on="go"), "rank 1 failed"),
        (Step(1, "exited", exited(signal=9), after_s=3, on="go"), "rank 1 was killed by SIGKILL"),
        (Step(1, "exited", exited(3), after_s=3, on="go"), "rank 1 exited with code 3"),
        (Step(1, "parked", after_s=3, on="go"), "rank 1 has returned from the test"),
        (
            Step(1, "interrupted", {"error": raised("Exit: enough")}, after_s=3, on="go"),
            "rank 1 raised Exit",
        ),
    ],
    ids=["raised", "failed", "killed", "exited", "parked", "interrupted"],
)
def test_a_barrier_breaks_when_a_rank_can_never_come(run: Run, step: Step, why: str) -> None:
    """Who waits is told at once, by whom it is left alone and why."""
    waiter = [*well_behaved(0, stays_in="call"), enters(0, on="go")]
    ran = run([*waiter, *well_behaved(1, stays_in="call"), step])
    assert ran.answers(0) == [(3.0, f"barrier 'x' can never complete: {why}")]


def test_a_barrier_entered_after_the_loss_breaks_at_once(run: Run) -> None:
    """It makes no difference who is first, the death or the waiter."""
    death = Step(1, "exited", exited(signal=9), on="go")
    waiter = [*well_behaved(0, stays_in="call"), enters(0, after_s=0.5, on="go")]
    ran = run([*waiter, *well_behaved(1, stays_in="call"), death])
    assert ran.answers(0) == [(0.5, "barrier 'x' can never complete: rank 1 was killed by SIGKILL")]


def test_the_cause_is_kept_when_a_rank_that_raised_parks(run: Run) -> None:
    """A rank that comes late to the barrier reads of the raise, not of a return."""
    raiser = [
        *well_behaved(1, stays_in="call"),
        Step(1, "report", FAILED, on="go"),
        Step(1, "parked", on="go"),
    ]
    waiter = [*well_behaved(0, stays_in="call"), enters(0, after_s=1, on="go")]
    ran = run([*raiser, *waiter])
    assert ran.answers(0) == [(1.0, "barrier 'x' can never complete: rank 1 raised ValueError")]


def test_a_rank_that_raised_can_meet_the_others_in_its_teardown(run: Run) -> None:
    """Fixtures that synchronise while they clean up work after a failure, too."""
    raiser = [
        *well_behaved(0, stays_in="call"),
        Step(0, "report", FAILED, on="go"),
        Step(0, "parked", on="go"),
    ]
    script = [*raiser, *well_behaved(1, stays_in="teardown")]
    ran = run([*script, enters(0, on="teardown"), enters(1, after_s=1, on="teardown")])
    assert ran.answers(0) == ran.answers(1) == [(1.0, "CollectiveComplete")]


def test_a_dead_rank_is_not_waited_for_in_teardown(run: Run) -> None:
    """The gate brings back those that live, not those that died."""
    death = Step(1, "exited", exited(signal=9), on="go")
    script = [*well_behaved(0, stays_in="teardown"), *well_behaved(1, stays_in="call"), death]
    ran = run([*script, enters(0, after_s=0.5, on="teardown")])
    assert ran.answers(0) == [(0.5, "barrier 'x' can never complete: rank 1 was killed by SIGKILL")]


def test_a_rank_that_raises_in_its_teardown_is_lost_for_good(run: Run) -> None:
    """There is no further gate that would bring it back."""
    raises = report("teardown", "failed", error=raised("OSError: busy"))
    script = [
        *well_behaved(0, stays_in="teardown"),
        enters(0, after_s=2, on="teardown"),
        *well_behaved(1, stays_in="teardown"),
        Step(1, "report", raises, after_s=1, on="teardown"),
    ]
    ran = run(script)
    assert ran.answers(0) == [(2.0, "barrier 'x' can never complete: rank 1 raised OSError")]


def test_a_barrier_in_teardown_breaks_when_a_rank_has_finished_its_own(run: Run) -> None:
    """A rank whose fixtures are all torn down will never enter anything again."""
    waiter = [*well_behaved(0, stays_in="teardown"), enters(0, on="teardown")]
    ran = run([*waiter, *well_behaved(1)])
    assert [at_s for at_s, _ in ran.answers(0)] == [0.0]


def test_a_barrier_that_broke_in_the_test_works_in_teardown(run: Run) -> None:
    """The rank that raised never entered it in the test, so the others have counted further."""
    raiser = [
        *well_behaved(0, stays_in="call"),
        Step(0, "report", FAILED, after_s=1, on="go"),
        Step(0, "parked", after_s=1, on="go"),
        enters(0, nth=0, on="teardown"),
    ]
    waiter = [
        *well_behaved(1, stays_in="call"),
        enters(1, nth=0, on="go"),
        Step(1, "parked", after_s=2, on="go"),
        enters(1, nth=1, on="teardown"),
    ]
    ran = run([*raiser, *waiter])
    assert ran.answers(0) == [(2.0, "CollectiveComplete")]
