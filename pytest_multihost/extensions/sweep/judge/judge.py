"""Judges a run with one disturbance.

A run shows a weakness if a rank waits for something that never comes, if ranks entered collectives
that cannot match, or if something is wrong and no rank has noticed: ranks differ in a value that is
to be the same, a saved file is damaged, or an assertion of the test itself fails although
the program raised no error. The following runs show none:

* The failure reached every rank, and all ended by themselves, whatever they raised.
* Some ranks passed and others failed, and no rank was left waiting.
* A rank was only late, others gave up after their own timeout, and all ended. That is the purpose
  of the timeout.
* More time elapsed for a rank than the test asserts, or a rank was made to look for a file that is
  not there.

The harness's own barrier and gather release the other ranks when a rank fails, so the failure
reached the ranks that they ended.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from pytest_multihost.core.blame import Judgement
from pytest_multihost.core.outcome import disagreements
from pytest_multihost.core.outcome.agreement import Disagreement
from pytest_multihost.extensions.sweep.judge.disturbed_world import DisturbedWorld
from pytest_multihost.extensions.sweep.judge.lines import (
    culprit_line,
    culprit_of,
    culprit_ranks,
    deciding_line,
    library_line,
    operation_of,
    waiting_line,
    waiting_ranks,
)
from pytest_multihost.extensions.sweep.judge.outcome import (
    is_proven,
    outcome_of,
    outcome_of_ranks,
)
from pytest_multihost.extensions.sweep.order import Clash
from pytest_multihost.extensions.sweep.random_states import NAME as RANDOM_STATES
from pytest_multihost.extensions.sweep.remains import FoundErrors
from pytest_multihost.extensions.sweep.result import (
    WEAK,
    Disturbance,
    DisturbedRun,
    RunOutcome,
    Sign,
)

_ENDS_OF_DATA = frozenset({"short_data", "empty_data"})
"""Faults after which a rank makes fewer steps, in which it may restore random states."""

NOTHING = FoundErrors()
"""No known error in the remains of a world."""


def judge_run(
    disturbance: Disturbance,
    judged: Judgement,
    *,
    usual_s: float = 0.0,
    usual_differences: Collection[str] = (),
    found: FoundErrors = NOTHING,
    token: str = "",
    directory: str | None = None,
) -> DisturbedRun:
    """Return the judged run of a disturbance.

    Args:
        disturbance: Its fault is the last equal one among the world's faults.
        judged: The world, judged like the world of any test.
        usual_differences: Names of the values in which the ranks of the undisturbed run differ.
        found: The errors in the world's remains.
        directory: The run's folder, relative to the artifacts directory.
    """
    different = disagreements(judged.result)
    unknown = {each.name for each in different if not each.is_asked and not _are_all_known(each)}
    innocent = {RANDOM_STATES} if disturbance.fault.kind in _ENDS_OF_DATA else set()
    differences = tuple(
        each for each in different if each.name not in {*usual_differences, *unknown, *innocent}
    )
    world = DisturbedWorld(disturbance, judged, usual_s, differences, found)
    outcome, sign = outcome_of(world)
    is_weak = outcome in WEAK
    hangs = is_weak and outcome != "wrong"
    diagnosis = judged.diagnosis if hangs else None
    clash = world.clash() if outcome == "mismatched" else None
    if clash is not None:
        return _mismatched(world, clash, token=token, directory=directory)
    waiting = waiting_ranks(world) if hangs else ()
    culprit = culprit_of(world, waiting) if hangs else world.rank if is_weak else None
    decided = deciding_line(world, culprit, outcome)
    return DisturbedRun(
        disturbance=disturbance,
        outcome=outcome,
        culprit=decided or culprit_line(world, culprit, outcome),
        has_decided=decided is not None,
        library=library_line(world, culprit) if hangs and culprit is not None else None,
        waiting=waiting_line(world, waiting),
        waiting_ranks=waiting,
        culprits=culprit_ranks(world, culprit),
        kind=diagnosis.kind if diagnosis is not None else None,
        operation=operation_of(world, waiting) if hangs else None,
        summary=_summary(world, outcome, sign),
        error=_error_text(world, culprit),
        again=world.has_passed_again(),
        is_pressed=world.was_pressed(),
        detected_by=diagnosis.detected_by if diagnosis is not None else None,
        is_proven=is_weak and is_proven(world, outcome),
        seconds=round(judged.result.ended_s - judged.result.started_s, 3),
        token=token,
        directory=directory,
        wrong_by=sign,
    )


def _mismatched(
    world: DisturbedWorld, clash: Clash, *, token: str, directory: str | None
) -> DisturbedRun:
    """Return a run whose ranks entered collectives that cannot match, as `judge_run` does."""
    result = world.judged.result
    culprits = clash.side_of(world.rank) or clash.sides[0]
    others = next(each for each in reversed(clash.sides) if each is not culprits)
    decided = deciding_line(world, world.rank, "mismatched")
    return DisturbedRun(
        disturbance=world.disturbance,
        outcome="mismatched",
        culprit=decided or world.place(culprits.frame) or world.disturbance.passed.where,
        has_decided=decided is not None,
        waiting=world.place(others.frame),
        waiting_ranks=others.ranks,
        culprits=culprits.ranks,
        operation=clash.operation(others),
        kind="mismatch",
        summary=clash.text(result.spec.names),
        error=_error_text(world, culprits.ranks[0]),
        again=world.has_passed_again(),
        is_pressed=world.was_pressed(),
        is_proven=True,
        seconds=round(result.ended_s - result.started_s, 3),
        token=token,
        directory=directory,
    )


def _wrong_texts(world: DisturbedWorld, sign: Sign | None) -> Iterator[str]:
    """Yield the errors, a sentence each."""
    root, names = world.judged.context.root, world.judged.result.spec.names
    if sign == "values":
        yield from (each.words(root, names) for each in world.differences)
    if sign == "files":
        yield from map(str, world.unreported(outcome_of_ranks(world)).damage())
    if sign == "test":
        yield from (each.words(root, names) for each in world.unreported("told").assertions())


def _summary(world: DisturbedWorld, outcome: RunOutcome, sign: Sign | None) -> str:
    """Return one sentence that describes the run."""
    if outcome == "not reached":
        return world.judged.result.reason or "the fault did not happen"
    if outcome == "wrong":
        return "; ".join(_wrong_texts(world, sign))
    diagnosis = world.judged.diagnosis
    if diagnosis is not None and diagnosis.kind != "unknown":
        return diagnosis.summary
    if outcome in WEAK and (unfinished := world.unfinished()):
        text = f"{world.judged.result.spec.names.of(unfinished)} did not end"
        return f"{text}; {world.judged.finding.reason}"
    return world.judged.finding.reason


def _error_text(world: DisturbedWorld, culprit: int | None) -> str | None:
    """Return the error of the disturbed rank, otherwise of the culprit, as one line."""
    for rank in dict.fromkeys((world.rank, *(() if culprit is None else (culprit,)))):
        error = world.ranks[rank].error
        if error is not None:
            first, *_ = error.message.splitlines() or [""]
            return f"{error.type}: {first}" if first else error.type
    return None


def _are_all_known(difference: Disagreement) -> bool:
    """Return whether all ranks have stated a value, so that the nth of each may be the same."""
    return all(side.text for side in difference.sides)
