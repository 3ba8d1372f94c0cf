"""Finds the ranks of a disturbed world that wait, those they wait for, and the lines of both."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from pytest_multihost.core.model.stack import Frame, innermost_user_frame, inside_the_test
from pytest_multihost.core.model.verdict import OperationName, Place
from pytest_multihost.extensions.sweep.judge.decisions import (
    handler_of,
    last_before,
    meetings,
    parted_s,
)
from pytest_multihost.extensions.sweep.judge.disturbed_world import (
    FAILED,
    DisturbedWorld,
    raised,
)
from pytest_multihost.extensions.sweep.judge.unreported import injected_error
from pytest_multihost.extensions.sweep.result import RunOutcome

_CLOCKS = ("clock_skew", "elapsed_time")
"""Faults whose rank decides where it reads a clock."""


def waiting_ranks(world: DisturbedWorld) -> tuple[int, ...]:
    """Return the ranks that wait."""
    diagnosis = world.judged.diagnosis
    unfinished = world.unfinished()
    if diagnosis is not None and diagnosis.waiting:
        found = diagnosis.waiting
        is_tie = not diagnosis.culprits and world.rank in found and len(found) > 1
        return tuple(each for each in found if each != world.rank) if is_tie else found
    gave_up = tuple(each.facts.rank for each in world.ranks if world.timed_out(each))
    found = unfinished or gave_up
    others = tuple(each for each in found if each != world.rank)
    return others or found


def culprit_of(world: DisturbedWorld, waiting: Sequence[int]) -> int:
    """Return the rank that the others wait for; usually the disturbed one."""
    diagnosis = world.judged.diagnosis
    if diagnosis is not None and not {*diagnosis.culprits} <= {*waiting}:
        return world.rank if world.rank in diagnosis.culprits else diagnosis.culprits[0]
    if world.rank not in waiting:
        return world.rank
    others = [each for each in world.ranks if each.facts.rank not in waiting]
    failed = [each for each in others if each.outcome in FAILED]
    # Otherwise ranks that returned from the test: a polling rank waits for something they did not
    # do.
    first = min(failed or others, key=lambda each: each.at_s or 0.0, default=None)
    return first.facts.rank if first is not None else world.rank


def culprit_ranks(world: DisturbedWorld, culprit: int | None) -> tuple[int, ...]:
    """Return all ranks that the others wait for, including the reported culprit."""
    diagnosis = world.judged.diagnosis
    if culprit is None:
        return ()
    found = diagnosis.culprits if diagnosis is not None else ()
    return found if culprit in found else (culprit,)


def deciding_line(world: DisturbedWorld, culprit: int | None, outcome: RunOutcome) -> Place | None:
    """Return the line at which the disturbed rank decided.

    None if there is no such line, or it is unknown, or if another rank failed instead. A rank
    that failed has not gone on, except if only an assertion of the test failed.
    """
    index, fault = world.index(), world.disturbance.fault
    if culprit is None or index is None:
        return None
    if culprit != world.rank and _error_line(world, culprit) is not None:
        return None
    result = world.judged.result
    found = meetings(result, index, world.rank)
    if fault.kind in _CLOCKS:
        met = last_before(found, _parted_s(world, world.rank))
        return world.place(met.frames[0]) if met is not None else None
    error = injected_error(fault)
    has_failed = outcome != "wrong" and world.has_own_error(world.rank)
    if error is None or not found or has_failed:
        return None
    met = last_before(found, _parted_s(world, world.rank))
    frames = met.frames if met is not None else ()
    return world.place(handler_of(frames, error, world.judged.context.lines_of))


def _parted_s(world: DisturbedWorld, rank: int) -> float:
    """Return when a rank parted from the others, or else when it failed or returned."""
    sides = (each.side_of(rank) for each in world.found.clashes)
    clashed_s = min((each.at_s for each in sides if each is not None), default=math.inf)
    facts = world.ranks[rank].facts
    ends = (facts.failed_s, facts.parked_s, world.judged.result.ended_s)
    ended_s = min(each for each in ends if each is not None)
    return min(clashed_s, parted_s(world.judged.result, rank), ended_s)


def culprit_line(world: DisturbedWorld, culprit: int | None, outcome: RunOutcome) -> Place | None:
    """Return the line at which the culprit failed or is, otherwise the disturbed line.

    A rank that returned from the test is at no line; its behaviour changed at the disturbed line.
    So did that of a rank whose run is wrong, even if an assertion of the test failed at the end.
    """
    if culprit is None:
        return None
    found = _error_line(world, culprit) or _line_of(world, culprit)
    if found is not None and (outcome != "wrong" or world.disturbance.passed.where is None):
        return found
    parting, disturbed = _parting_line(world, culprit), world.disturbance.passed.where
    return disturbed or parting if culprit == world.rank else parting or disturbed


def library_line(world: DisturbedWorld, culprit: int) -> Place | None:
    """Return the line of an installed package at which the culprit raised."""
    error = raised(world.ranks[culprit])
    found = error.library if error is not None else None
    return world.place(Frame(found.file, found.line, found.function)) if found else None


def waiting_line(world: DisturbedWorld, waiting: Sequence[int]) -> Place | None:
    """Return the line at which most of the waiting ranks are."""
    found = (_line_of(world, each) or _error_line(world, each) for each in waiting)
    lines = [each for each in found if each is not None]
    return Counter(lines).most_common(1)[0][0] if lines else None


def operation_of(world: DisturbedWorld, waiting: Sequence[int]) -> OperationName | None:
    """Return the operation in which the waiting ranks wait."""
    diagnosis = world.judged.diagnosis
    if diagnosis is not None:
        theirs = (each for each in diagnosis.waits_for if each.rank in waiting)
        first = next((each.operation for each in theirs if each.operation is not None), None)
        return first or diagnosis.operation
    for rank in waiting:
        recent = world.judged.result.last_operations(rank).recent
        for each in reversed(recent):
            if each.failed or each.is_open:
                return OperationName(each.name, each.sequence, each.group)
    return None


def _line_of(world: DisturbedWorld, rank: int) -> Place | None:
    """Return the user's line at which a rank was when the world was judged."""
    diagnosis = world.judged.diagnosis
    for each in diagnosis.places if diagnosis is not None else ():
        if each.rank == rank:
            return Place(each.file, each.line, each.function, each.source)
    if world.ranks[rank].facts.parked_s is not None:
        return None
    dump = next((each for each in world.judged.result.dumps if each.rank == rank), None)
    frames = inside_the_test(dump.main.frames) if dump is not None and dump.main else ()
    return world.place(innermost_user_frame(frames))


def _error_line(world: DisturbedWorld, rank: int) -> Place | None:
    """Return the user's line at which a rank raised."""
    error = world.ranks[rank].error
    if error is None or error.file is None or error.line is None:
        return None
    return world.place(Frame(error.file, error.line, error.function or ""))


def _parting_line(world: DisturbedWorld, rank: int) -> Place | None:
    """Return the line at which a rank diverged from the others, if known."""
    diagnosis = world.judged.diagnosis
    divergence = diagnosis.divergence if diagnosis is not None else None
    for side in divergence.sides if divergence is not None else ():
        if rank in side.ranks and side.file is not None and side.line is not None:
            return Place(side.file, side.line, side.function or "", side.source or "")
    return None
