"""Finds the outcome of a disturbed run: whether a rank waits in vain, or something is wrong."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from pytest_multihost.core.blame.kinds import kind_of
from pytest_multihost.extensions.sweep.judge.disturbed_world import (
    FAILED,
    DisturbedWorld,
    raised,
)
from pytest_multihost.extensions.sweep.result import RunOutcome, Sign

SLOWER = 5.0
"""Without a proof, a rank that has not ended counts as waiting after this many times the duration
of the undisturbed run."""

LEAST_WAIT_S = 2.0
"""The least such time, in seconds, for short tests."""

OWN_TIMEOUT_S = 60.0
"""Timeouts up to this are the program's own; a runtime's timeouts are minutes."""

"""Endings of worlds that prove that no rank can go on."""

_ENDED = ("survived", "told", "split")
"""Outcomes of runs whose ranks all ended by themselves, or at least did not wait."""

_NO_RUN = ("lost", "interrupted", "startup-overrun")
"""Endings of worlds that the harness did not run to the end of the test."""


def outcome_of(world: DisturbedWorld) -> tuple[RunOutcome, Sign | None]:
    """Return the outcome of the disturbance, and the sign that it is wrong."""
    outcome = outcome_of_ranks(world)
    if outcome == "survived" and world.differences:
        return "wrong", "values"
    if outcome in _ENDED and world.clash() is not None:
        return "mismatched", None
    if outcome in _ENDED and world.unreported(outcome).damage():
        return "wrong", "files"
    if outcome in ("told", "split") and world.unreported(outcome).assertions():
        return "wrong", "test"
    return outcome, None


def outcome_of_ranks(world: DisturbedWorld) -> RunOutcome:
    """Return the outcome by the exceptions of ranks, and by whether any waited in vain."""
    result, finding = world.judged.result, world.judged.finding
    if result.ending in _NO_RUN or not world.has_happened() or world.is_still_held():
        return "not reached"
    if finding.outcome in ("passed", "skipped"):
        return "survived"
    unfinished = world.unfinished()
    if _is_of_the_fault(world):
        return "split"
    if unfinished and not _someone_waits(world, unfinished):
        return "split"
    if unfinished and any(each.outcome in FAILED for each in world.ranks):
        return "left waiting"
    if unfinished and not world.has_timed_out():
        return "hung"
    if world.has_timed_out():
        return "timed out"
    if any(each.outcome in ("passed", "skipped") for each in world.ranks):
        return "split"
    return "told"


def _is_of_the_fault(world: DisturbedWorld) -> bool:
    """Return whether the rank failed in a way in which it fails only under the fault itself.

    The test asserts how much time elapses, or a function said that there is a file, and the
    file was not there.
    """
    fault, error = world.disturbance.fault, raised(world.ranks[world.rank])
    if error is None:
        return False
    if fault.kind == "elapsed_time":
        return error.type == "AssertionError"
    is_found = fault.kind == "returns" and fault.params.get("value") is True
    return is_found and error.type == "FileNotFoundError"


def is_proven(world: DisturbedWorld, outcome: RunOutcome) -> bool:
    """Return whether the run proves that no rank could go on, or that something is wrong."""
    result = world.judged.result
    if outcome == "wrong":
        return True
    return result.end.basis == "proof" or (result.ending == "settled" and result.is_quiescent)


def _someone_waits(world: DisturbedWorld, unfinished: Sequence[int]) -> bool:
    """Return whether ranks that have not ended wait, and are not only slow.

    A proof or a diagnosis shows it. Without either, as for ranks that poll, the time since the
    first end of a rank must be much longer than the whole test takes.
    """
    result, diagnosis = world.judged.result, world.judged.diagnosis
    if result.end.basis == "proof":
        return True
    if diagnosis is not None and {*diagnosis.waiting, *diagnosis.cycle} & {*unfinished}:
        # Ranks that sleep again and again after a failure only probably wait for that rank.
        # A rank that stays in one operation, such as a wait for a key of the store, does wait.
        in_operations = {each.rank for each in diagnosis.waits_for if each.operation}
        has_failed = kind_of(diagnosis.kind).shown_by == "failure"
        is_guess = diagnosis.confidence == "likely" and has_failed
        are_stuck = in_operations.issuperset(unfinished) and all(
            map(partial(_is_stuck, world), unfinished)
        )
        if not is_guess or are_stuck:
            return True
    failed_s = [each.at_s for each in world.ranks if each.at_s is not None]
    ended_s = result.detected_s or result.ended_s
    since_s = min(failed_s, default=result.go_s or result.started_s)
    return ended_s - since_s >= max(LEAST_WAIT_S, SLOWER * world.usual_s)


def _is_stuck(world: DisturbedWorld, rank: int) -> bool:
    """Return whether a rank has been in one operation for most of the time since a failure.

    An operation with a timeout of seconds does not count, because the rank may handle that. Nor
    do many short operations, because ranks that go on without the failed one also spend most of
    the time in operations.
    """
    result = world.judged.result
    failed_s = [each.at_s for each in world.ranks if each.at_s is not None]
    ended_s = result.detected_s or result.ended_s
    since_s = (min(failed_s, default=result.started_s) + ended_s) / 2
    return any(
        each.waited_s is not None
        and each.waited_s <= since_s
        and (each.timeout_s is None or each.timeout_s > OWN_TIMEOUT_S)
        for each in result.last_operations(rank).open
    )
