"""Which calls fail, one for each way that their errors take; and what fails on request."""

from __future__ import annotations

import errno
from collections.abc import Hashable, Iterator
from dataclasses import replace

from pytest_multihost import faults
from pytest_multihost.model.fault import FIELD_ERRORS, Fault
from pytest_multihost.model.sweep import UNHANDLED, Family, RecordedPoint
from pytest_multihost.sweep.choices import LATER_TURN, SECOND_TURN, Choice, Role, Weight
from pytest_multihost.sweep.classes import SpanKind, classes_of
from pytest_multihost.sweep.roles import site_of


def choices_of_failures(role: Role) -> Iterator[Choice]:
    """Yield which calls on files fail, once and from then on.

    Not the drawing of a batch: what it reads are files, and data in memory never fail.

    Exceptions of one class that are raised in one kind of span and take the same way meet the same
    handler, and what follows is the same. Only what the rank had done by then differs: the last is
    tried as well if there are other rounds of a loop, or if others see files that were touched in
    between. Where libraries handle errors, one of each of their functions is planned, as some may
    swallow them; what the first shows says whether more of them are run (`plan.order_rest`). From
    then on a call need not fail if nothing handles its first failure.
    """
    last_span = len(role.operations) - 1

    def key(passed: RecordedPoint, kind: SpanKind) -> Hashable | None:
        if passed.point.point != "io":
            return None
        return _way(passed), kind

    for found in classes_of(role.points, role.points_of_last, key):
        is_seen = any(map(role.sharing.is_seen, found.points))
        spans = {each.span for each in found.points}
        ways = {each.error_path: each for each in reversed(found.points)}
        tried = [(0, found.points[0]), *((LATER_TURN, each) for each in reversed(ways.values()))]
        if (is_seen and not found.is_poll) or len(spans) > 1:
            tried.append((SECOND_TURN, found.ends[-1]))
        elif len(role.disturbed) > 1:
            tried += [(SECOND_TURN, each) for each in found.points_of_last[:1]]
        for turn, passed in tried:
            weight = _weight_of_failure(role, passed, last_span)
            fault = faults.fails(rank=passed.rank, at=passed.point)
            alike = found.lines_beside(passed)
            yield Choice(turn, weight, "fails", fault, passed, found.key, alike)
            if not passed.error_path.endswith(UNHANDLED):
                onwards = replace(passed.point, onwards=True)
                fault = faults.fails(rank=passed.rank, at=onwards)
                yield Choice(turn + SECOND_TURN, weight, "fails", fault, passed, found.key, alike)


def _way(passed: RecordedPoint) -> Hashable:
    """Return what is equal for failures that take the same way.

    Of other threads than the main one it is not known who waits for them, so each line is one.
    """
    name = FIELD_ERRORS.get(passed.point.call, "EIO")
    kind = type(OSError(getattr(errno, name), "")).__name__
    if passed.error_path and passed.is_main:
        return kind, passed.error_path.rpartition("|")[2]
    return kind, passed.error_path, site_of(passed)


def _weight_of_failure(role: Role, passed: RecordedPoint, last_span: int) -> Weight:
    if passed.span > last_span:
        return Weight.FAILS_AT_END
    if passed.point.call in ("stat", "rmdir", "unlink"):  # often ignored, as meant
        return Weight.FAILS_LOOK
    return Weight.FAILS_EVERYWHERE if role.is_everybody else Weight.FAILS_ALONE


# On request


def choices_on_request(role: Role, family: Family) -> Iterator[Choice]:
    """Yield how operations raise, or the process dies.

    That is at the first and the last point of each line and kind of span.
    """

    def key(passed: RecordedPoint, kind: SpanKind) -> Hashable | None:
        is_wanted = family == "killed" or passed.point.point in ("batch", "collective")
        return (site_of(passed), kind) if is_wanted else None

    for found in classes_of(role.points, role.points_of_last, key):
        for turn, passed in enumerate(found.ends):
            fault = _on_request(passed, family)
            yield Choice(turn, Weight.REQUESTED, family, fault, passed, found.key)


def _on_request(passed: RecordedPoint, family: Family) -> Fault:
    rank, point = passed.rank, passed.point
    if family == "killed":
        return faults.kill(rank=rank, at=point)
    if point.point == "batch":
        message = "cannot read the data"
        return faults.raise_at(rank=rank, error=OSError, message=message, at=point)
    return faults.fails(rank=rank, at=point)
