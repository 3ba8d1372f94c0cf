"""What a disturbed run has shown: from observations written by hand, judged as of any test."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import builders
import pytest
from builders import ended, page, seen

from pytest_multihost.core.blame import judge_world
from pytest_multihost.core.outcome import Symptoms
from pytest_multihost.extensions.sweep.judge import judge_run
from pytest_multihost.extensions.sweep.mendings import mending_of_kind
from pytest_multihost.extensions.sweep.result import Disturbance, DisturbedRun
from pytest_multihost.testing import (
    RUNTIME_SCOPE,
    Ending,
    Event,
    Fault,
    Frame,
    Operations,
    Place,
    Point,
    RecordedPoint,
    SourceContext,
    WorldResult,
    WorldSnapshot,
    exited,
    make_dump,
    make_event,
    make_spec,
    raised,
    report,
    well_behaved,
)

pytestmark = pytest.mark.unit

POINT = Point("io", "*/done", call="write")
PASSED = RecordedPoint(0, POINT, 1, where=Place("/t/train.py", 20, "save"))
FAILS = Fault("fails", (0,), POINT)
HOLD = Fault("hold", (0,), POINT, {"until": "others-wait"})

SYMPTOMS = Symptoms((r"RuntimeError: Timed out waiting|Connection closed by peer",))
OS_ERROR = raised("OSError: no space", file="/t/train.py", line=20)
TIMED_OUT = raised("RuntimeError: Timed out waiting 1000ms", file="/t/train.py", line=40)
CLOSED = raised("RuntimeError: Connection closed by peer", file="/t/train.py", line=40)
BROKEN = raised("pytest_multihost.WorldBrokenError: rank 0 failed", file="/t/train.py", line=40)
AGREED = raised("ValueError: rank 0 could not save", file="/t/train.py", line=50)
GAVE_UP = raised("TimeoutError: no marker after 2 s", file="/t/train.py", line=60)

RAISED_S, HELD_S, RELEASED_S = 2.0, 1.5, 2.5
GROUP = (0, 1)
KEY = (GROUP, 0, RUNTIME_SCOPE)


def in_barrier(rank: int) -> Operations:
    """Return the slot page of a rank that waits in a barrier at line 40."""
    barrier = builders.operation(
        "barrier", group=GROUP, sequence=2, frame=Frame("/t/train.py", 40, "train")
    )
    return page(rank, barrier)


def in_store(rank: int, *, since_s: float = 1.0, timeout_s: float | None = None) -> Operations:
    """Return the slot page of a rank that waits for a key at line 40, whoever is to set it."""
    wait = builders.operation(
        "store.wait",
        kind="wait",
        group=GROUP,
        sequence=0,
        since_s=since_s,
        timeout_s=timeout_s,
        detail="address",
        frame=Frame("/t/train.py", 40, "train"),
    )
    return page(rank, wait)


def world(
    fault: Fault,
    errors: Mapping[int, Any] | None = None,
    *,
    stays: Sequence[int] = (),
    waits: Sequence[int] = (),
    waits_in: Callable[[int], Operations] = in_barrier,
    ending: Ending = "self",
    happens: bool = True,
    is_released: bool = True,
    raised_s: float = RAISED_S,
    ended_s: float = 9.0,
    passed: int = 0,
    is_quiescent: bool = False,
    let_go: Mapping[str, Any] | None = None,
    values: Sequence[Event] = (),
) -> WorldResult:
    """Return what was observed of a world of two ranks.

    Args:
        fault: What disturbed it.
        errors: What ranks raised.
        stays: Ranks that did not end by themselves.
        waits: Those of them that were in an operation.
        waits_in: Which one.
        ending: Why it ended.
        happens: Whether the fault has happened.
        is_released: Whether a rank that was held went on.
        raised_s: When the first rank raised; the next is 0.1 s later.
        ended_s: When it was over.
        passed: How often the disturbed rank has come to the point, if it says so.
        is_quiescent: Whether it was seen that no rank could go on.
        let_go: What the controller has let a held rank go with.
        values: The values that ranks have stated.
    """
    errors = errors or {}
    history: list[Event] = []
    for rank in GROUP:
        is_cut = rank in errors or rank in stays
        steps = well_behaved(rank, stays_in="call" if is_cut else None)
        for step in steps:
            if step.kind == "exited":
                history.append(make_event(0.0, rank, "released", {"gate": "exit"}))
            history.append(make_event(0.0, rank, step.kind, step.detail))
    change = {"index": 0, "fault": fault.kind, "at": {"point": "io", "name": "*/done"}}
    if happens:
        history.append(make_event(HELD_S, 0, "fault", {**change, "phase": "begun"}))
    if happens and is_released:
        history.append(make_event(RELEASED_S, 0, "fault", {**change, "phase": "ended"}))
    for number, (rank, error) in enumerate(errors.items()):
        failed = report("call", "failed", error=error)
        history.append(make_event(raised_s + number / 10, rank, "report", failed))
        history += [make_event(raised_s + 1, rank, kind) for kind in ("parked", "done")]
        history.append(make_event(raised_s + 1, rank, "released", {"gate": "exit"}))
        history.append(make_event(raised_s + 1, rank, "exited", exited()))
    if passed:
        points = {"passed": [["io", "*/done", "write", passed]]}
        history.append(make_event(RELEASED_S, 0, "points", points))
    if let_go is not None:
        history.append(make_event(RELEASED_S, 0, "hold_ended", let_go))
    history += [*values, *ended(stays, ended_s)]
    pages = tuple(waits_in(rank) if rank in waits else Operations(rank) for rank in GROUP)
    ranks = tuple(
        seen(each.rank, *each.open, entered=tuple(each.entered.items())) for each in pages
    )
    return builders.world(
        2,
        history,
        spec=replace(make_spec(2), faults=(fault,)),
        ended_s=ended_s,
        ending=ending,
        dumps=tuple(make_dump(rank, "/t/train.py:40 train") for rank in stays),
        snapshots=(WorldSnapshot(at_s=ended_s, reason="end", ranks=ranks),),
        operations=pages,
        is_quiescent=is_quiescent,
    )


def judged(
    fault: Fault = FAILS,
    *errors: Mapping[int, Any],
    usual_s: float = 0.1,
    **more: Any,  # noqa: ANN401
) -> DisturbedRun:
    """Return what a world has shown; the arguments are those of `world`."""
    family: str = "late" if fault.kind == "hold" else "fails"
    disturbance = Disturbance(family, fault, (0,), PASSED, 0)
    context = SourceContext("/t", lambda _file, line: f"line {line}")
    result = world(fault, *errors, **more)
    return judge_run(disturbance, judge_world(result, SYMPTOMS, context), usual_s=usual_s)


def test_a_world_that_passes_has_survived() -> None:
    """The error was handled."""
    run = judged()
    assert (run.outcome, run.culprit, run.waiting) == ("survived", None, None)


def test_a_world_that_passes_and_differs_is_wrong() -> None:
    """Nothing failed; the report names the value, and the line that was disturbed."""
    values = [make_event(3.0, rank, "value", _value(rank)) for rank in GROUP]
    run = judged(values=values)
    assert run.outcome == "wrong"
    assert run.is_proven
    assert run.culprit == PASSED.where
    assert (run.waiting, run.waiting_ranks, run.kind) == (None, (), None)
    assert run.summary == "ranks differ in 'step': rank 0 has 0; rank 1 has 1"
    assert mending_of_kind(run).anchor == "broadcast-decisions"


def _value(rank: int) -> dict[str, object]:
    return {"name": "step", "nth": 0, "digest": str(rank), "text": str(rank)}


def test_a_fault_that_has_not_happened_shows_nothing() -> None:
    """Whatever became of the world."""
    assert judged(happens=False).outcome == "not reached"
    run = judged(FAILS, {1: OS_ERROR}, happens=False, stays=[0], waits=[0], ending="proof")
    assert run.outcome == "not reached"


def test_a_rank_that_waits_for_one_that_has_failed_is_left_waiting() -> None:
    """The line that failed, the line that waits, and what it waits in."""
    run = judged(FAILS, {0: OS_ERROR}, stays=[1], waits=[1], ending="settled")
    assert run.outcome == "left waiting"
    assert run.culprit == Place("train.py", 20, "", "line 20")
    assert run.waiting == Place("train.py", 40, "train", "line 40")
    assert run.waiting_ranks == (1,)
    assert run.operation is not None
    assert run.operation.name == "barrier"
    assert run.error == "OSError: no space"


@pytest.mark.parametrize(
    ("fault", "error", "outcome"),
    [
        (Fault("elapsed_time", (0,), params={"seconds": 60}), "AssertionError: 61 < 60", "split"),
        (Fault("elapsed_time", (0,), params={"seconds": 60}), "OSError: late", "left waiting"),
        (Fault("clock_skew", (0,), params={"seconds": 60}), "AssertionError: 61", "left waiting"),
        (Fault("returns", (0,), POINT, {"value": True}), "FileNotFoundError: a", "split"),
        (Fault("returns", (0,), POINT, {"value": False}), "FileNotFoundError: a", "left waiting"),
        (Fault("returns", (0,), POINT, {"value": True}), "ValueError: no loss", "left waiting"),
    ],
    ids=lambda each: getattr(each, "kind", each).partition(":")[0],
)
def test_a_failure_that_only_the_fault_itself_can_bring_is_no_weakness(
    fault: Fault, error: str, outcome: str
) -> None:
    """An assertion on the time, or a file that the rank was told to find; others are failures."""
    errors = {0: raised(error, file="/t/train.py", line=20)}
    assert judged(fault, errors, stays=[1], waits=[1], ending="settled").outcome == outcome


def test_the_culprit_is_who_failed_even_if_another_was_disturbed() -> None:
    """Rank 0 is late, rank 1 does not find its file and raises: rank 0 waits for rank 1."""
    run = judged(HOLD, {1: AGREED}, stays=[0], waits=[0], ending="settled")
    assert run.outcome == "left waiting"
    assert run.culprit is not None
    assert run.culprit.line == 50
    assert run.waiting_ranks == (0,)


def test_ranks_that_all_raise_have_been_told() -> None:
    """They agreed on the failure."""
    run = judged(FAILS, {0: OS_ERROR, 1: AGREED})
    assert (run.outcome, run.error) == ("told", "OSError: no space")


@pytest.mark.parametrize("error", [CLOSED, BROKEN], ids=["connection", "harness's barrier"])
def test_a_rank_that_lost_its_connection_has_been_told(error: Mapping[str, Any]) -> None:
    """It ended by itself, at once."""
    assert judged(FAILS, {0: OS_ERROR, 1: error}).outcome == "told"


def test_a_rank_that_passes_while_another_fails_is_no_weakness() -> None:
    """Nobody is left waiting."""
    assert judged(FAILS, {0: OS_ERROR}).outcome == "split"
    assert judged(FAILS, {1: AGREED}).outcome == "split"


def test_a_timeout_of_the_runtime_that_ends_the_wait_for_a_failed_rank_is_a_weakness() -> None:
    """In the field it is half an hour."""
    run = judged(FAILS, {0: OS_ERROR, 1: TIMED_OUT})
    assert run.outcome == "timed out"
    assert (run.culprit and run.culprit.line, run.waiting and run.waiting.line) == (20, 40)
    assert run.waiting_ranks == (1,)


def test_a_timeout_of_the_programs_own_counts_as_well() -> None:
    """It polled for what the failed rank was to write."""
    assert judged(FAILS, {0: OS_ERROR, 1: GAVE_UP}).outcome == "timed out"


def test_a_timeout_while_the_rank_was_held_is_what_timeouts_are_for() -> None:
    """It was only late: without the hold it would have come."""
    run = judged(HOLD, {1: TIMED_OUT, 0: AGREED}, raised_s=2.0)
    assert run.outcome == "told"


def test_a_timeout_after_the_rank_was_released_is_a_weakness() -> None:
    """It came, and did something else."""
    assert judged(HOLD, {1: TIMED_OUT, 0: TIMED_OUT}, raised_s=4.0).outcome == "timed out"


@pytest.mark.parametrize("is_quiescent", [True, False])
def test_a_rank_left_waiting_is_proven_only_if_nobody_could_go_on(is_quiescent: bool) -> None:
    """That time has passed without progress is no proof: the machine may be slow."""
    run = judged(
        FAILS, {0: OS_ERROR}, stays=[1], waits=[1], ending="settled", is_quiescent=is_quiescent
    )
    assert (run.outcome, run.is_proven) == ("left waiting", is_quiescent)


def test_a_timeout_is_no_proof() -> None:
    """On a slow machine it may come where it never would on another one."""
    run = judged(HOLD, {1: TIMED_OUT, 0: TIMED_OUT}, raised_s=4.0)
    assert (run.outcome, run.is_proven) == ("timed out", False)


def test_a_proven_hang_is_told_with_the_lines_of_both() -> None:
    """Rank 0 has left the test, rank 1 is in the barrier."""
    run = judged(HOLD, stays=[1], waits=[1], ending="proof")
    assert run.outcome == "hung"
    assert run.detected_by == "proof"
    assert run.is_proven
    assert run.culprit == PASSED.where  # it is at no line any more
    assert (run.waiting and run.waiting.line, run.waiting_ranks) == (40, (1,))


def test_a_world_whose_deadline_passes_while_the_rank_is_held_shows_nothing() -> None:
    """The harness itself kept it."""
    run = judged(HOLD, stays=[0, 1], waits=[1], ending="overrun", is_released=False)
    assert run.outcome == "not reached"


def test_a_poller_whose_partner_has_failed_is_left_waiting() -> None:
    """Nothing is recorded of what it waits for; the whole test takes a tenth of a second."""
    run = judged(FAILS, {0: OS_ERROR}, stays=[1], ending="settled", usual_s=0.1)
    assert run.outcome == "left waiting"
    assert (run.culprit and run.culprit.line, run.waiting and run.waiting.line) == (20, 40)


def test_a_disturbed_rank_that_polls_for_ever_waits_for_those_that_have_left() -> None:
    """Not for itself; the line is that at which it was disturbed."""
    run = judged(HOLD, stays=[0], ending="overrun")
    assert run.outcome == "hung"
    assert (run.waiting_ranks, run.culprits, run.culprit) == ((0,), (1,), PASSED.where)


def test_a_slow_rank_whose_partner_has_failed_is_not_said_to_wait() -> None:
    """The whole test takes as long."""
    run = judged(FAILS, {0: OS_ERROR}, stays=[1], ending="settled", usual_s=4.0)
    assert run.outcome == "split"


def test_a_rank_that_waits_for_a_key_after_a_failure_is_left_waiting() -> None:
    """However long the test takes: nobody else is left who could set it."""
    run = judged(
        FAILS,
        {0: OS_ERROR},
        stays=[1],
        waits=[1],
        waits_in=in_store,
        ending="settled",
        ended_s=3.0,
        usual_s=4.0,
    )
    assert run.outcome == "left waiting"
    assert run.operation is not None
    assert run.operation.name == "store.wait"


@pytest.mark.parametrize("more", [{"since_s": 2.9}, {"timeout_s": 2.0}])
def test_a_rank_that_goes_on_after_a_failure_is_not_left_waiting(more: Mapping[str, float]) -> None:
    """It asks for the key again and again and does other things between, or gives up by itself."""
    run = judged(
        FAILS,
        {0: OS_ERROR},
        stays=[1],
        waits=[1],
        waits_in=partial(in_store, **more),
        ending="settled",
        ended_s=3.0,
        usual_s=4.0,
    )
    assert run.outcome == "split"


@pytest.mark.parametrize(("count", "again"), [(1, False), (2, True)])
def test_it_is_known_whether_a_rank_came_to_the_point_again(count: int, again: bool) -> None:
    """What fails from then on would have failed there as well."""
    assert judged(passed=count).again == again
    assert judged().again is None


@pytest.mark.parametrize(
    ("reason", "has_timeout", "is_pressed"),
    [("others wait", False, False), ("others poll", False, True), ("others wait", True, True)],
)
def test_it_is_known_whether_others_were_pressed_while_a_rank_was_held(
    reason: str, has_timeout: bool, is_pressed: bool
) -> None:
    """Only then it matters that it is held for seconds."""
    let_go = {"index": 0, "reason": reason, "is_pressed": has_timeout}
    assert judged(HOLD, let_go=let_go).is_pressed == is_pressed
    assert judged(HOLD).is_pressed is None


def test_a_world_that_the_harness_lost_shows_nothing() -> None:
    """The fault was not to blame."""
    assert judged(FAILS, stays=[0, 1], ending="lost").outcome == "not reached"


def test_the_duration_is_that_of_the_world() -> None:
    """From start to end."""
    assert judged(ended_s=7.5).seconds == 7.5
