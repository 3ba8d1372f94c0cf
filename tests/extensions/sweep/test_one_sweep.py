"""What a sweep runs next, and what it makes of what it is told."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import Literal

import pytest

from pytest_multihost import at, faults
from pytest_multihost.extensions.sweep.result import (
    Disturbance,
    DisturbedRun,
    RunOutcome,
    UnsteadyRun,
    WaitEnd,
)
from pytest_multihost.extensions.sweep.run.one_sweep import Clock, OneSweep, SweepStep
from pytest_multihost.testing import Place, RecordedPoint

pytestmark = pytest.mark.unit


def disturbance(nth: int) -> Disturbance:
    """Return a failing call at a line of its own."""
    point = at.io("*/file", call="open", nth=nth)
    passed = RecordedPoint(0, point, nth, where=Place("a.py", nth, "f", ""))
    fault = replace(faults.fails(rank=0, at=point), ranks=(0,))
    return Disturbance("fails", fault, (0,), passed, nth)


def run_of(
    step: SweepStep, outcome: RunOutcome = "survived", by: str | None = None
) -> DisturbedRun:
    """Return how a step ended; what is weak waits at one line for the disturbed one."""
    line = step.disturbance.passed.where
    waiting = Place("a.py", 99, "f", "")
    is_weak = outcome in ("hung", "left waiting", "timed out")
    return DisturbedRun(
        disturbance=step.disturbance,
        outcome=outcome,
        culprit=line if is_weak else None,
        waiting=waiting if is_weak else None,
        detected_by=by,
        is_proven=by in ("proof", "mismatch"),
        seconds=float(step.disturbance.class_),
        directory=f"weakness-{step.artifacts}" if is_weak and step.artifacts else None,
    )


def begun(count: int) -> OneSweep:
    """Return a sweep of so many disturbances."""
    return OneSweep(deque(disturbance(nth) for nth in range(1, count + 1)))


def take(sweep: OneSweep, outcome: RunOutcome = "survived", by: str | None = None) -> SweepStep:
    """Run the next step, which there must be, and return it."""
    step = sweep.next_step(has_time=True)
    assert step is not None
    sweep.take(step, run_of(step, outcome, by))
    return step


def test_every_disturbance_is_run_once_if_nothing_is_found() -> None:
    """Then there is nothing to repeat."""
    sweep = begun(3)
    assert [take(sweep).purpose for _ in range(3)] == ["sweep"] * 3
    assert sweep.next_step(has_time=True) is None
    assert sweep.left_out == ()


def test_what_there_is_no_time_for_is_left_out() -> None:
    """And counted, once."""
    sweep = begun(3)
    take(sweep)
    assert sweep.next_step(has_time=False) is None
    sweep.stop("budget")
    assert [(each.reason, each.count) for each in sweep.left_out] == [("budget", 2)]


def test_a_proven_witness_is_repeated_five_times() -> None:
    """The first repetition leaves artifacts."""
    sweep = begun(1)
    take(sweep, "hung", "proof")
    steps = [take(sweep, "hung", "proof") for _ in range(5)]
    assert {each.purpose for each in steps} == {"repeat"}
    assert [each.artifacts for each in steps] == [1, None, None, None, None]
    assert sweep.next_step(has_time=True) is None
    assert sweep.weaknesses[0].repeated == (5, 5)


def test_what_is_not_proven_is_seen_again_alone_first() -> None:
    """Nothing runs beside it; it counts as one of the repetitions."""
    sweep = begun(1)
    take(sweep, "timed out")
    step = sweep.next_step(has_time=True)
    assert step is not None
    assert step.purpose == "confirm"
    assert sweep.next_step(has_time=True) is None
    sweep.take(step, run_of(step, "timed out"))
    assert [take(sweep, "timed out").purpose for _ in range(4)] == ["repeat"] * 4
    assert sweep.next_step(has_time=True) is None


def test_it_waits_until_it_is_alone() -> None:
    """What runs beside it might be why it looked like a hang."""
    sweep = begun(2)
    first, second = sweep.next_step(has_time=True), sweep.next_step(has_time=True)
    assert first is not None
    assert second is not None
    sweep.take(first, run_of(first, "timed out"))
    assert sweep.next_step(has_time=True) is None
    sweep.take(second, run_of(second))
    step = sweep.next_step(has_time=True)
    assert step is not None
    assert step.purpose == "confirm"


def test_a_proven_witness_is_repeated_beside_the_last_worlds() -> None:
    """Its repeats need not wait for a slow world of another disturbance."""
    sweep = begun(2)
    take(sweep, "hung", "proof")
    slow = sweep.next_step(has_time=True)
    assert slow is not None
    assert slow.purpose == "sweep"
    assert [take(sweep, "hung", "proof").purpose for _ in range(5)] == ["repeat"] * 5
    assert sweep.next_step(has_time=True) is None
    sweep.take(slow, run_of(slow))
    assert sweep.next_step(has_time=True) is None


def test_a_world_whose_server_is_not_ready_comes_after_the_others() -> None:
    """Even after repeats; a sweep with nothing else to run knows that it has yet to come."""
    sweep = begun(3)
    unready = sweep.rest[0]

    def step() -> SweepStep | None:
        return sweep.next_step(has_time=True, is_ready=lambda each: each.disturbance != unready)

    second, third = step(), step()
    assert second is not None
    assert third is not None
    assert unready not in (second.disturbance, third.disturbance)
    assert step() is None
    sweep.take(second, run_of(second, "hung", "proof"))
    repeated = step()
    assert repeated is not None
    assert repeated.purpose == "repeat"
    sweep.take(third, run_of(third))
    sweep.take(repeated, run_of(repeated, "hung", "proof"))
    for _ in range(4):
        again = step()
        assert again is not None
        assert again.purpose == "repeat"
        sweep.take(again, run_of(again, "hung", "proof"))
    assert step() is None
    assert sweep.has_next(has_time=True)
    last = sweep.next_step(has_time=True)
    assert last is not None
    assert last.disturbance == unready


def test_a_measurement_whose_server_is_not_ready_holds_up_no_other_world() -> None:
    """What ends a wait is measured on another clock, whose server takes seconds to start."""
    sweep = begun(2)
    sweep.measures = lambda _: ["jumps"]
    late = sweep.rest[1]
    assert take(sweep, "hung", "proof").purpose == "sweep"

    def step(*ready: str) -> SweepStep | None:
        return sweep.next_step(
            has_time=True,
            is_ready=lambda each: each.clock in ready and (each.disturbance != late),
        )

    while (again := step("own")) is not None:
        sweep.take(again, run_of(again, "hung", "proof"))
    assert sweep.has_next(has_time=True)
    measuring = step("own", "jumps")
    assert measuring is not None
    assert (measuring.purpose, measuring.clock) == ("measure", "jumps")


def confirmed() -> OneSweep:
    """Return a sweep with one weakness, repeated once, whose wait can be measured in two ways."""
    sweep = begun(1)
    sweep.measures = lambda _witness: ("own", "jumps")
    assert [take(sweep, "left waiting", "proof").purpose for _ in range(2)] == ["sweep", "repeat"]
    return sweep


def measure(sweep: OneSweep, by: Literal["launcher", "not measured"]) -> Clock:
    """Run the next step, which must be a measurement, and return its clock."""
    step = sweep.next_step(has_time=False)
    assert step is not None
    assert step.purpose == "measure"
    sweep.take_end(step, WaitEnd(by=by))
    return step.clock


def test_what_ends_a_wait_is_measured_once_its_witness_is_repeated() -> None:
    """Before the other repeats, because the rating decides whether the test fails."""
    sweep = confirmed()
    assert measure(sweep, "launcher") == "own"
    assert [take(sweep, "left waiting", "proof").purpose for _ in range(4)] == ["repeat"] * 4
    assert sweep.next_step(has_time=True) is None
    [end] = sweep.ends.values()
    assert end.by == "launcher"


def test_a_measurement_that_measured_nothing_is_made_again() -> None:
    """First with the other clock; each is tried twice."""
    sweep = confirmed()
    clocks = [measure(sweep, "not measured") for _ in range(4)]
    assert clocks == ["own", "jumps", "own", "jumps"]
    assert [take(sweep, "left waiting", "proof").purpose for _ in range(4)] == ["repeat"] * 4
    assert sweep.next_step(has_time=True) is None


def test_only_what_fits_into_the_time_left_runs_again() -> None:
    """A repeat on the machine's clock may be too long where a jump is not."""
    sweep = confirmed()
    step = sweep.next_step(has_time=False, fits=lambda step, _: step.clock == "jumps")
    assert step is None
    step = sweep.next_step(has_time=False, fits=lambda step, _: step.purpose == "repeat")
    assert step is not None
    assert step.purpose == "repeat"


def test_an_unproven_weakness_is_confirmed_on_a_clock_that_jumps() -> None:
    """Others may run beside it, because a jump does not depend on the load of the machine."""
    sweep = begun(2)
    sweep.clock_of = lambda _witness: "jumps"
    take(sweep, "timed out")
    beside = sweep.next_step(has_time=True)
    confirm = sweep.next_step(has_time=True)
    assert beside is not None
    assert confirm is not None
    assert (confirm.purpose, confirm.clock) == ("confirm", "jumps")
    sweep.take(confirm, run_of(confirm, "timed out"))
    sweep.take(beside, run_of(beside))
    again = sweep.next_step(has_time=True)
    assert again is not None
    assert (again.purpose, again.clock) == ("repeat", "jumps")


def test_a_confirmation_counts_although_a_milder_run_has_become_the_witness() -> None:
    """That run ended while the confirming world ran beside it."""
    sweep = begun(2)
    sweep.clock_of = lambda _witness: "jumps"
    first, second = sweep.next_step(has_time=True), sweep.next_step(has_time=True)
    assert first is not None
    assert second is not None
    place = Place("a.py", 1, "f", "")
    sweep.take(second, replace(run_of(second, "timed out"), culprit=place))
    confirm = sweep.next_step(has_time=True)
    assert confirm is not None
    assert (confirm.purpose, confirm.disturbance) == ("confirm", second.disturbance)
    sweep.take(first, replace(run_of(first, "timed out"), culprit=place))
    assert sweep.weaknesses[0].witness.disturbance == first.disturbance
    sweep.take(confirm, replace(run_of(confirm, "timed out"), culprit=place))
    assert [each.shown_by for each in sweep.weaknesses] == [(0, 1)]


def test_what_a_jumping_clock_does_not_show_is_confirmed_on_the_machines_clock() -> None:
    """The jumps may be why the ranks ended."""
    sweep = begun(1)
    sweep.clock_of = lambda _witness: "jumps"
    take(sweep, "timed out")
    assert take(sweep, "survived").clock == "jumps"
    confirm = take(sweep, "timed out")
    assert (confirm.purpose, confirm.clock) == ("confirm", "own")
    assert sweep.weaknesses[0].is_confirmed
    assert take(sweep, "timed out").clock == "own"


def test_a_world_that_the_end_of_the_time_cuts_off_is_left_out() -> None:
    """Its disturbance is counted, and a measurement says why there is none."""
    sweep = begun(1)
    step = sweep.next_step(has_time=True)
    assert step is not None
    sweep.cut(step)
    sweep.stop("budget")
    assert [(each.reason, each.count) for each in sweep.left_out] == [("budget", 1)]
    sweep = confirmed()
    step = sweep.next_step(has_time=False)
    assert step is not None
    sweep.cut(step)
    assert sweep.ends[step.disturbance].name == "there was no time left"


def test_what_no_repeat_has_shown_is_not_measured() -> None:
    """Nor is a run that is wrong: no rank waits in it."""
    for outcome in ("survived", "wrong"):
        sweep = begun(1)
        sweep.measures = lambda _witness: ("own",)
        first: RunOutcome = "wrong" if outcome == "wrong" else "hung"
        take(sweep, first, "proof")
        while (step := sweep.next_step(has_time=True)) is not None:
            assert step.purpose == "repeat"
            sweep.take(step, run_of(step, outcome, "proof"))  # type: ignore[arg-type]


def test_what_does_not_occur_alone_is_no_weakness() -> None:
    """The run that was made alone counts."""
    sweep = begun(1)
    take(sweep, "timed out")
    take(sweep, "survived")
    assert sweep.weaknesses == ()
    assert [each.outcome for each in sweep.runs] == ["survived"]
    assert sweep.next_step(has_time=True) is None


def test_nothing_is_known_of_what_looked_like_it() -> None:
    """If three of them show nothing alone, the others are left out."""
    same = Place("a.py", 1, "f", "")
    sweep = begun(4)
    steps = [sweep.next_step(has_time=True) for _ in range(4)]
    for step in steps:
        assert step is not None
        sweep.take(step, replace(run_of(step, "timed out"), culprit=same))
    for _ in range(3):
        take(sweep, "survived")
    assert [(each.reason, each.count) for each in sweep.left_out] == [("doubtful", 1)]
    assert len(sweep.runs) == 3


def test_another_run_may_confirm_what_one_did_not_show_alone() -> None:
    """Not every disturbance shows a weakness each time."""
    same = Place("a.py", 1, "f", "")
    sweep = begun(2)
    steps = [sweep.next_step(has_time=True) for _ in range(2)]
    for step in steps:
        assert step is not None
        sweep.take(step, replace(run_of(step, "timed out"), culprit=same))
    take(sweep, "survived")
    assert len(sweep.weaknesses) == 1
    assert sweep.left_out == ()


def shows_same(sweep: OneSweep, step: SweepStep, outcome: RunOutcome) -> None:
    """Let a step show what all others show, by proof."""
    same = Place("a.py", 1, "f", "")
    found = run_of(step, outcome, "proof")
    sweep.take(step, replace(found, culprit=same) if outcome == "hung" else found)


def test_a_witness_that_does_not_repeat_gives_way_to_the_next_mildest_run() -> None:
    """Its artifacts are kept, those of the other are not."""
    sweep = begun(2)
    for step in [sweep.next_step(has_time=True) for _ in range(2)]:
        assert step is not None
        shows_same(sweep, step, "hung")
    for outcome in ("hung", "survived"):  # of the first, which is shorter
        step = sweep.next_step(has_time=True)
        assert step is not None
        assert step.disturbance == disturbance(1)
        shows_same(sweep, step, outcome)
    while (step := sweep.next_step(has_time=True)) is not None:
        assert step.disturbance == disturbance(2)
        shows_same(sweep, step, "hung")
    [weakness] = sweep.with_directories()
    assert weakness.witness.disturbance == disturbance(2)
    assert weakness.repeated == (5, 5)
    assert weakness.unsteady == (UnsteadyRun(0, (2, 1)),)
    assert weakness.witness.directory == "weakness-2"
    assert sweep.unused_directories() == {"weakness-1"}


def test_if_no_run_repeats_three_are_tried() -> None:
    """Then the repetitions end, and it is told that none showed it."""
    sweep = begun(5)
    for step in [sweep.next_step(has_time=True) for _ in range(5)]:
        assert step is not None
        shows_same(sweep, step, "hung")
    repeated = []
    while (step := sweep.next_step(has_time=True)) is not None:
        repeated.append(step.disturbance.class_)
        shows_same(sweep, step, "survived")
    assert set(repeated) == {1, 2, 3}
    assert len(repeated) <= 3 * 5
    [weakness] = sweep.weaknesses
    assert weakness.is_confirmed is False
    assert not weakness.fails_test


def test_artifacts_are_kept_of_a_repeat_that_shows_the_weakness() -> None:
    """Of the next one, if the first shows nothing."""
    sweep = begun(1)
    take(sweep, "hung", "proof")
    steps = [take(sweep, each, "proof") for each in ("survived", "hung", "hung")]
    assert [each.artifacts for each in steps] == [1, 2, None]


def test_a_world_that_is_lost_is_tried_twice() -> None:
    """Then it is left out; the harness has broken, and nothing is known."""
    sweep = begun(1)
    for is_again in (True, False):
        step = sweep.next_step(has_time=True)
        assert step is not None
        assert sweep.lose(step) == is_again
    assert sweep.next_step(has_time=True) is None
    assert [(each.reason, each.count) for each in sweep.left_out] == [("lost", 1)]


def test_what_runs_when_a_sweep_is_stopped_is_left_out() -> None:
    """It is neither lost nor counted twice."""
    sweep = begun(3)
    sweep.next_step(has_time=True)
    sweep.stop("interrupted")
    assert [(each.reason, each.count) for each in sweep.left_out] == [("interrupted", 3)]


def test_what_another_run_decides_waits_for_it() -> None:
    """Several worlds run at a time; what is not needed is left out, and counted."""
    once = disturbance(1)
    onwards = replace(once, fault=replace(once.fault, at=replace(once.fault.at, onwards=True)))
    sweep = OneSweep(deque([once, onwards]))
    step = sweep.next_step(has_time=True)
    assert step is not None
    assert sweep.next_step(has_time=True) is None
    sweep.take(step, replace(run_of(step), again=False))
    assert sweep.next_step(has_time=True) is None
    sweep.stop("budget")
    assert [(each.reason, each.count) for each in sweep.left_out] == [("known", 1)]


def test_what_is_undecided_makes_way_for_what_is_not() -> None:
    """The lanes are not to be idle."""
    once, other = disturbance(1), disturbance(2)
    onwards = replace(once, fault=replace(once.fault, at=replace(once.fault.at, onwards=True)))
    sweep = OneSweep(deque([once, onwards, other]))
    steps = [sweep.next_step(has_time=True) for _ in range(2)]
    assert [each.disturbance for each in steps if each] == [once, other]


def test_nothing_is_left_out_for_lack_of_time_where_time_was_left() -> None:
    """What an earlier sweep has shown makes others redundant: they are known."""
    weak, same = disturbance(1), replace(disturbance(1), fault=disturbance(2).fault)
    sweep = OneSweep(deque())
    sweep.runs.append(run_of(SweepStep(weak, "sweep"), "left waiting", "a.py"))
    sweep.add([same])
    while sweep.next_step(has_time=True) is not None:
        pass
    sweep.stop("budget")
    assert [each.reason for each in sweep.left_out] == ["known"]
