"""The family `fails`: a call on a file fails, once or from then on."""

from __future__ import annotations

import errno
from collections.abc import Hashable, Iterator
from dataclasses import replace

from pytest_multihost import faults
from pytest_multihost.core.model.fault import FIELD_ERRORS, Fault
from pytest_multihost.core.model.recorded_point import RecordedPoint
from pytest_multihost.extensions.sweep.choices import (
    LATER_TURN,
    SECOND_TURN,
    Choice,
    SweptRole,
    UndisturbedRun,
    Weight,
)
from pytest_multihost.extensions.sweep.classes import SpanKind, classes_of, site_of
from pytest_multihost.extensions.sweep.families.family import SweepFamily
from pytest_multihost.extensions.sweep.mendings import BROADCAST_DECISIONS, Mending, mending_of_kind
from pytest_multihost.extensions.sweep.result import WEAK, Disturbance, DisturbedRun
from pytest_multihost.extensions.sweep.sharing import Sharing

_QUESTIONS = ("stat", "listdir")
"""Calls whose error many programs take for an answer, as os.path.exists returns False."""


def _plan(role: SweptRole) -> Iterator[Choice]:
    """Yield failing calls on files, each once and from then on.

    The draw of a batch is not planned: its reads of files are calls of their own, and data in
    memory never fail.

    Exceptions of one class that are raised in one kind of span and take the same way meet the same
    handler, with the same consequences, except that a write leaves a torn file. Otherwise only the
    earlier work of the rank differs. So the last call
    is also tried if a loop has other rounds, or if other ranks see files that were touched in
    between. If libraries handle errors, one call of each of their functions is planned, because
    some functions may swallow errors; the result of the first decides whether the others are run
    (`_is_shown_by`). A call need not fail from then on if nothing handles its first failure.
    """
    last_span = len(role.operations) - 1

    def key(passed: RecordedPoint, kind: SpanKind) -> Hashable | None:
        if passed.point.point != "io":
            return None
        return _way(passed), kind, _tears(passed, role.run.sharing)

    for found in classes_of(role.points, role.points_of_last, key):
        is_seen = any(map(role.run.sharing.is_seen, found.points))
        spans = {each.span for each in found.points}
        ways = {each.error_path: each for each in reversed(found.points)}
        tried = [(0, found.points[0]), *((LATER_TURN, each) for each in reversed(ways.values()))]
        if (is_seen and not found.is_poll) or len(spans) > 1:
            tried.append((SECOND_TURN, found.ends[-1]))
        elif len(role.disturbed) > 1:
            tried += [(SECOND_TURN, each) for each in found.points_of_last[:1]]
        for turn, passed in tried:
            weight = _weight_of_failure(role, passed, last_span)
            once, onwards = _fails(passed)
            alike = found.lines_beside(passed)
            yield Choice(turn, weight, once, passed, found.key, alike)
            if passed.error_path.is_handled:
                yield Choice(turn + SECOND_TURN, weight, onwards, passed, found.key, alike)


def _way(passed: RecordedPoint) -> Hashable:
    """Return the key of failures that take the same way.

    In threads other than the main one each line is a way of its own, because it is unknown which
    thread waits for them.
    """
    name = FIELD_ERRORS.get(passed.point.call, "EIO")
    kind = type(OSError(getattr(errno, name), "")).__name__
    if passed.error_path.handler and passed.is_main:
        return kind, passed.error_path.handler, passed.error_path.at
    return kind, passed.error_path, site_of(passed)


def _tears(passed: RecordedPoint, sharing: Sharing) -> bool:
    """Return whether a failure may leave a torn file, although the program goes on.

    A file that is moved or removed later is none that another run would load.
    """
    is_write = passed.point.call == "write"
    return is_write and passed.error_path.is_handled and sharing.stays(passed.point.name)


def _weight_of_failure(role: SweptRole, passed: RecordedPoint, last_span: int) -> Weight:
    if passed.span > last_span:
        return Weight.FAILS_AT_END
    if passed.point.call in ("stat", "rmdir", "unlink"):  # programs often ignore these on purpose
        return Weight.FAILS_LOOK
    return Weight.FAILS_EVERYWHERE if role.is_everybody else Weight.FAILS_ALONE


def _faults_at(passed: RecordedPoint, _run: UndisturbedRun) -> Iterator[Fault]:
    if passed.point.point == "io":
        yield from _fails(passed)


def _fails(passed: RecordedPoint) -> tuple[Fault, Fault]:
    """Return the faults that make a call fail once, and from then on."""
    onwards = replace(passed.point, onwards=True)
    return (
        faults.fails(rank=passed.rank, at=passed.point),
        faults.fails(rank=passed.rank, at=onwards),
    )


def _decided_by(fault: Fault) -> Fault | None:
    """Return the fault that fails once, for a fault that fails from then on."""
    return replace(fault, at=replace(fault.at, onwards=False)) if fault.at.onwards else None


def _is_needless(_: Fault, once: DisturbedRun) -> bool:
    """Return whether later failures of the call would show nothing new.

    They would not if the rank did not survive the first failure, or never made the call again.
    """
    return once.outcome in {*WEAK, "told"} or once.again is False


def _is_shown_by(disturbance: Disturbance, other: DisturbedRun) -> bool:
    """Return whether a failure of the same class reached all ranks in another run.

    Such failures differ only in the library function that handles them first. A failure that
    reached all ranks was not swallowed, and then they are equivalent.
    """
    path = other.disturbance.passed.error_path
    return other.outcome == "told" and path != disturbance.passed.error_path


def _mend(run: DisturbedRun) -> Mending:
    is_answer = run.disturbance.fault.at.call in _QUESTIONS and run.error is None
    return BROADCAST_DECISIONS if is_answer else mending_of_kind(run)


FAMILY = SweepFamily(
    name="fails",
    plan=_plan,
    faults_at=_faults_at,
    mildness=2,
    mend=_mend,
    decided_by=_decided_by,
    is_needless=_is_needless,
    is_shown_by=_is_shown_by,
)
