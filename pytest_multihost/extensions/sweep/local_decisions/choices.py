"""Makes disturbances of decisions that a rank takes from data that it alone has seen."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_multihost import at, faults
from pytest_multihost.core.model.fault import START, Fault, Point
from pytest_multihost.core.model.recorded_point import RecordedPoint
from pytest_multihost.extensions.sweep.choices import SECOND_TURN, Choice, UndisturbedRun, Weight
from pytest_multihost.extensions.sweep.local_decisions.decisions import (
    OtherResult,
    TimeRead,
)

ELAPSED_S = 86_400.0
"""How much more time has elapsed: a day, longer than the time limits of most steps and jobs."""


def local_choices(rank: int, turn: int, run: UndisturbedRun) -> Iterator[Choice]:
    """Yield other results of a rank's calls, and more time that has elapsed.

    Args:
        turn: The turn of the likeliest choice.
    """
    for each in run.local.results:
        if each.rank == rank:
            passed = RecordedPoint(rank, _point(each), each.before, where=each.at)
            weight = Weight.DECISION if each.change == "returns" else Weight.SHORT_DATA
            later = SECOND_TURN if each.is_later else 0
            yield Choice(turn + later, weight, _other_result(each), passed, ("local", each.target))
    for read in run.local.time_reads.get(rank, ()):
        passed = RecordedPoint(rank, START, read.before, where=read.at)
        class_ = ("elapsed", read.at.file, read.at.line)
        later = SECOND_TURN if read.is_later else 0
        yield Choice(turn + later, Weight.ELAPSED, _more_elapsed(rank, read), passed, class_)


def local_faults(rank: int, run: UndisturbedRun) -> Iterator[Fault]:
    """Yield all faults of `local_choices` for a rank."""
    yield from (_other_result(each) for each in run.local.results if each.rank == rank)
    yield from (_more_elapsed(rank, each) for each in run.local.time_reads.get(rank, ()))


def _other_result(found: OtherResult) -> Fault:
    """Return the fault that changes the result of a call."""
    if found.change == "short":
        return faults.short_data(rank=found.rank, at=at.batch(found.target, nth=found.nth))
    if found.change == "empty":
        return faults.empty_data(rank=found.rank, at=at.batch(found.target, nth=found.nth))
    point = at.call(found.target, nth=found.nth, when="after")
    return faults.returns(rank=found.rank, value=found.value, at=point)


def _more_elapsed(rank: int, read: TimeRead) -> Fault:
    """Return the fault with which a rank reads a clock a day later."""
    return faults.elapsed_time(rank=rank, seconds=ELAPSED_S, read=read.number)


def _point(found: OtherResult) -> Point:
    if found.change == "returns":
        return Point("call", found.target, found.nth)
    return Point("batch", found.target, found.nth)
