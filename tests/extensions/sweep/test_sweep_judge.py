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
from pytest_multihost.extensions.sweep.judge import NOTHING, judge_run
from pytest_multihost.extensions.sweep.mendings import mending_of_kind
from pytest_multihost.extensions.sweep.order import Clash, ClashSide
from pytest_multihost.extensions.sweep.remains import FoundErrors
from pytest_multihost.extensions.sweep.result import Disturbance, DisturbedRun
from pytest_multihost.extensions.sweep.saved import Damage
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

RAISED_S, HELD_S, RELEASED_S, PARKED_S = 2.0, 1.5, 2.5, 3.0
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
            at_s = PARKED_S if step.kind in ("parked", "done", "exited") else 0.0
            if step.kind == "exited":
                history.append(make_event(at_s, rank, "released", {"gate": "exit"}))
            history.append(make_event(at_s, rank, step.kind, step.detail))
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
    found: FoundErrors = NOTHING,
    source: str = "",
    **more: Any,  # noqa: ANN401
) -> DisturbedRun:
    """Return what a world has shown; the arguments are those of `world`.

    Args:
        found: What is wrong in what it has left behind.
        source: The text of all files of code.
    """
    family: str = "late" if fault.kind == "hold" else "fails"
    disturbance = Disturbance(family, fault, (0,), PASSED, 0)
    context = SourceContext("/t", lambda _, line: f"line {line}", lambda _: source.splitlines())
    result = world(fault, *errors, **more)
    judgement = judge_world(result, SYMPTOMS, context)
    return judge_run(disturbance, judgement, usual_s=usual_s, found=found)


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


@pytest.mark.parametrize(("is_asked", "outcome"), [(True, "wrong"), (False, "survived")])
def test_a_value_that_one_rank_lacks_is_wrong_only_if_the_test_states_it(
    is_asked: bool, outcome: str
) -> None:
    """Of values that a sweep states by itself, ranks may have different numbers."""
    value = {**_value(0), "is_asked": is_asked}
    assert judged(values=[make_event(2.9, 0, "value", value)]).outcome == outcome


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


# What no rank reports

CLASH = Clash(
    group=GROUP,
    ordinal=0,
    sequence=2,
    at_s=1.8,
    sides=(
        ClashSide((0,), "barrier", "barrier", 1.8, Frame("/t/train.py", 30, "train")),
        ClashSide((1,), "all_reduce", "all_reduce f32[4]", 1.9, Frame("/t/train.py", 40, "train")),
    ),
)
CLASHES = FoundErrors(clashes=(CLASH,))
GLOO = raised("RuntimeError: op.preamble.length <= op.nbytes. 8 vs 4", file="/t/train.py", line=40)


def failed_in_gloo(rank: int) -> Operations:
    """Return the slot page of a rank whose collective has failed."""
    error = "RuntimeError: op.preamble.length <= op.nbytes. 8 vs 4"
    return page(rank, builders.operation(group=GROUP, ended_s=2.0, failed=True, error=error))


@pytest.mark.parametrize("ranks", [(), (0,), (0, 1)], ids=["none", "one", "both"])
def test_collectives_that_cannot_match_are_a_weakness_however_they_ended(
    ranks: Sequence[int],
) -> None:
    """Gloo may end them with an error, which all ranks have noticed; NCCL does not."""
    errors = dict.fromkeys(ranks, GLOO)
    run = judged(HOLD, errors, found=CLASHES, waits=ranks, waits_in=failed_in_gloo)
    assert (run.outcome, run.is_proven, run.kind) == ("mismatched", True, "mismatch")
    assert (run.culprits, run.culprit and run.culprit.line) == ((0,), 30)
    assert (run.waiting_ranks, run.waiting and run.waiting.line) == ((1,), 40)
    assert run.operation is not None
    assert (run.operation.name, run.operation.sequence) == ("all_reduce", 2)
    assert run.summary.startswith("rank 0 entered barrier, rank 1 entered all_reduce f32[4] as 2nd")


@pytest.mark.parametrize("rank", GROUP)
def test_a_rank_that_raised_an_error_of_its_own_may_enter_anything_after_it(rank: int) -> None:
    """A barrier in `finally`: the rank has reported its error, and so has gloo to the other."""
    errors = {rank: OS_ERROR, 1 - rank: GLOO}
    run = judged(FAILS, errors, found=CLASHES, waits=[1 - rank], waits_in=failed_in_gloo)
    assert run.outcome == "told"


def test_a_hang_is_a_hang_whatever_clashed() -> None:
    """Its diagnosis says more."""
    run = judged(HOLD, stays=[1], waits=[1], ending="proof", found=CLASHES)
    assert run.outcome == "hung"


def met(at_s: float, line: int, function: str = "train", file: str = "/t/train.py") -> Event:
    """Return the event of the disturbed rank's code that meets the fault."""
    frames = [{"file": file, "line": line, "function": function}]
    return make_event(at_s, 0, "fault_met", {"index": 0, "frames": frames})


SKEW = Fault("clock_skew", (0,), POINT, {"seconds": 7200.0})


def test_a_wrong_clock_is_reported_where_it_was_read_last_before_the_ranks_parted() -> None:
    """Not at the collective that came next, nor at a later read."""
    reads = [met(1.6, 12), met(1.7, 14), met(1.9, 16)]
    run = judged(SKEW, stays=[1], waits=[1], ending="proof", values=reads, found=CLASHES)
    assert (run.outcome, run.culprit and run.culprit.line, run.has_decided) == ("hung", 14, True)
    run = judged(SKEW, values=reads, found=CLASHES)
    assert (run.outcome, run.culprit and run.culprit.line) == ("mismatched", 14)


def test_a_wrong_clock_that_no_line_has_read_is_reported_as_before() -> None:
    """Another rank's read is none of this rank."""
    run = judged(SKEW, stays=[1], waits=[1], ending="proof")
    assert (run.culprit, run.has_decided) == (PASSED.where, False)


HANDLED = "\n" * 18 + "try:\n    save()  # line 20\nexcept OSError:\n    pass\n"


def test_an_error_that_was_handled_is_reported_at_its_handler() -> None:
    """The rank went on, and the other waits for it."""
    more = {"stays": [1], "waits": [1], "ending": "proof", "values": [met(1.5, 20)]}
    run = judged(FAILS, source=HANDLED, **more)
    assert (run.outcome, run.culprit and run.culprit.line, run.has_decided) == ("hung", 21, True)
    run = judged(FAILS, {0: OS_ERROR}, source=HANDLED, stays=[1], waits=[1], ending="settled")
    assert (run.culprit and run.culprit.line, run.has_decided) == (20, False)


def test_the_rank_that_handled_an_error_may_be_the_one_that_waits() -> None:
    """It goes on for longer than the others, which have left the test."""
    more = {"stays": [0], "waits": [0], "ending": "proof", "values": [met(1.5, 20)]}
    run = judged(FAILS, source=HANDLED, **more)
    assert (run.waiting_ranks, run.culprits) == ((0,), (1,))
    assert (run.culprit and run.culprit.line, run.has_decided) == (21, True)
    run = judged(FAILS, {1: AGREED}, source=HANDLED, **{**more, "ending": "settled"})
    assert (run.culprit and run.culprit.line, run.has_decided) == (50, False)


TORN = Damage("step-7/w.pt", "is not a complete archive")
VOUCHED = replace(
    TORN, what="is not a complete archive, although step-7/done is there", is_vouched=True
)


def saved(*damage: Damage, is_said: bool = False, overwrites: bool = False) -> FoundErrors:
    """Return what is wrong in what a world has left behind."""
    return FoundErrors(is_said=is_said, damage=damage, overwrites=overwrites)


def test_a_file_that_does_not_load_is_wrong_if_nobody_has_said_so() -> None:
    """The report names the file, and the line that was disturbed."""
    run = judged(found=saved(TORN))
    assert (run.outcome, run.wrong_by, run.is_proven) == ("wrong", "files", True)
    assert run.summary == "step-7/w.pt is not a complete archive"
    assert run.culprit == PASSED.where


def test_a_file_that_does_not_load_is_no_weakness_if_a_rank_has_said_so() -> None:
    """It printed a line, or raised an error."""
    assert judged(found=saved(TORN, is_said=True)).outcome == "survived"
    assert judged(FAILS, {0: OS_ERROR, 1: AGREED}, found=saved(TORN)).outcome == "told"


def test_what_a_rank_that_was_only_late_prints_does_not_count() -> None:
    """No error was injected that it could have reported."""
    assert judged(HOLD, found=saved(TORN, is_said=True)).outcome == "wrong"


@pytest.mark.parametrize("errors", [{}, {0: OS_ERROR}, {0: OS_ERROR, 1: AGREED}])
def test_a_broken_file_that_another_vouches_for_is_always_wrong(errors: Mapping[int, Any]) -> None:
    """A later run takes it for good, whatever this one has said."""
    run = judged(FAILS, errors, found=saved(VOUCHED, is_said=True))
    assert (run.outcome, run.wrong_by) == ("wrong", "files")


def test_a_torn_file_over_a_good_one_is_always_wrong() -> None:
    """It was the file that was disturbed; another may have been broken before."""
    torn = Damage("done", "is empty")
    told = {0: OS_ERROR, 1: AGREED}
    assert judged(FAILS, told, found=saved(torn, overwrites=True)).outcome == "wrong"
    assert judged(FAILS, told, found=saved(torn)).outcome == "told"
    assert judged(FAILS, told, found=saved(TORN, overwrites=True)).outcome == "told"


def test_files_of_ranks_that_were_ended_say_nothing() -> None:
    """They may have been ended while they wrote."""
    more = {"stays": [1], "ending": "settled", "usual_s": 4.0}
    assert judged(FAILS, {0: OS_ERROR}, found=saved(VOUCHED), **more).outcome == "split"


TEST = "\n\ndef test_scripted(world):\n    step = resume()\n    assert step == 7\n"
ASSERTED = {
    **raised("AssertionError: assert 0 == 7", file="test_scripted.py", line=5),
    "function": "test_scripted",
}
STALE = Fault("stale_files", (0,), POINT, {"path": "*", "seconds": 2.0})


def asserted(
    fault: Fault,
    *ranks: int,
    found: FoundErrors = NOTHING,
    source: str = TEST,
    **more: Any,  # noqa: ANN401
) -> DisturbedRun:
    """Return what it shows that the test's own assertion failed on these ranks."""
    return judged(fault, dict.fromkeys(ranks, ASSERTED), found=found, source=source, **more)


LOOKED = [met(1.6, 8, "newest", "/t/program.py")]


@pytest.mark.parametrize("ranks", [(0,), (1,), (0, 1)])
def test_an_assertion_that_fails_without_an_error_is_wrong(ranks: Sequence[int]) -> None:
    """The program went on with what one rank saw."""
    run = asserted(STALE, *ranks, values=LOOKED)
    assert (run.outcome, run.wrong_by, run.is_proven) == ("wrong", "test", True)
    assert f"rank {ranks[0]}'s own assertion of the test failed" in run.summary
    assert "(test_scripted.py:5): assert 0 == 7" in run.summary
    assert run.culprit == PASSED.where


def test_an_assertion_beside_an_error_of_the_program_is_no_weakness() -> None:
    """A rank has said that something is wrong."""
    errors = {0: ASSERTED, 1: AGREED}
    assert judged(STALE, errors, source=TEST, values=LOOKED).outcome == "told"


def test_an_assertion_that_looks_itself_is_no_weakness() -> None:
    """The file was hidden from the test, not from the program."""
    own = [met(1.6, 5, "test_scripted", "/t/test_scripted.py")]
    assert asserted(STALE, 0, values=own).outcome == "split"
    assert asserted(STALE, 0).outcome == "split"  # it is not known who looked


def test_an_assertion_while_others_had_timeouts_is_no_weakness() -> None:
    """They gave up on the held rank, as they should."""
    pressed = {"index": 0, "reason": "others poll", "is_pressed": True}
    assert asserted(HOLD, 1, let_go=pressed).outcome == "split"
    calm = {"index": 0, "reason": "others wait", "is_pressed": False}
    assert asserted(HOLD, 1, let_go=calm).outcome == "wrong"


def test_an_assertion_that_only_the_rank_with_the_wrong_clock_fails_is_no_weakness() -> None:
    """A cache may rightly have expired there."""
    assert asserted(SKEW, 0, values=LOOKED).outcome == "split"
    assert asserted(SKEW, 0, 1, values=LOOKED).outcome == "wrong"


def test_an_assertion_after_an_injected_error_counts_if_nobody_reports_it() -> None:
    """A rank that prints a line has reported it."""
    quiet, loud = FoundErrors(is_said=False), FoundErrors(is_said=True)
    handled = [met(1.6, 20, "newest", "/t/program.py")]
    source = TEST + HANDLED[TEST.count("\n") :]
    run = asserted(FAILS, 0, values=handled, found=quiet, source=source)
    assert (run.wrong_by, run.culprit and run.culprit.line, run.has_decided) == ("test", 21, True)
    assert asserted(FAILS, 0, values=LOOKED, found=loud).outcome == "split"


@pytest.mark.parametrize("kind", ["short_data", "returns", "kill"])
def test_an_assertion_after_a_fault_that_changes_results_shows_nothing(kind: str) -> None:
    """The test may rightly expect what it has been denied."""
    assert asserted(Fault(kind, (0,), POINT), 0, values=LOOKED).outcome == "split"


def test_an_assertion_on_time_shows_nothing() -> None:
    """A rank that was late is slow."""
    source = TEST.replace("step == 7", "elapsed < 1")
    assert asserted(HOLD, 1, source=source).outcome == "split"
