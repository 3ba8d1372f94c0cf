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
    Role,
    UndisturbedRun,
    Weight,
)
from pytest_multihost.extensions.sweep.classes import SpanKind, classes_of, site_of
from pytest_multihost.extensions.sweep.families.family import SweepFamily
from pytest_multihost.extensions.sweep.mendings import BROADCAST_DECISIONS, Mending, mending_of_kind
from pytest_multihost.extensions.sweep.result import WEAK, Disturbance, DisturbedRun

_QUESTIONS = ("stat", "listdir")
"""Calls whose error many programs take for an answer: os.path.exists returns False."""


def _plan(role: Role) -> Iterator[Choice]:
    """Yield which calls on files fail, once and from then on.

    Not the drawing of a batch: what it reads are files, and data in memory never fail.

    Exceptions of one class that are raised in one kind of span and take the same way meet the same
    handler, and what follows is the same. Only what the rank had done by then differs: the last is
    tried as well if there are other rounds of a loop, or if others see files that were touched in
    between. Where libraries handle errors, one of each of their functions is planned, as some may
    swallow them; what the first shows says whether more of them are run (`_is_shown_by`). From
    then on a call need not fail if nothing handles its first failure.
    """
    last_span = len(role.operations) - 1

    def key(passed: RecordedPoint, kind: SpanKind) -> Hashable | None:
        if passed.point.point != "io":
            return None
        return _way(passed), kind

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
    """Return what is equal for failures that take the same way.

    Of other threads than the main one it is not known who waits for them, so each line is one.
    """
    name = FIELD_ERRORS.get(passed.point.call, "EIO")
    kind = type(OSError(getattr(errno, name), "")).__name__
    if passed.error_path.handler and passed.is_main:
        return kind, passed.error_path.handler, passed.error_path.at
    return kind, passed.error_path, site_of(passed)


def _weight_of_failure(role: Role, passed: RecordedPoint, last_span: int) -> Weight:
    if passed.span > last_span:
        return Weight.FAILS_AT_END
    if passed.point.call in ("stat", "rmdir", "unlink"):  # often ignored, as meant
        return Weight.FAILS_LOOK
    return Weight.FAILS_EVERYWHERE if role.is_everybody else Weight.FAILS_ALONE


def _faults_at(passed: RecordedPoint, _run: UndisturbedRun) -> Iterator[Fault]:
    if passed.point.point == "io":
        yield from _fails(passed)


def _fails(passed: RecordedPoint) -> tuple[Fault, Fault]:
    """Return how a call fails once, and how from then on."""
    onwards = replace(passed.point, onwards=True)
    return (
        faults.fails(rank=passed.rank, at=passed.point),
        faults.fails(rank=passed.rank, at=onwards),
    )


def _decided_by(fault: Fault) -> Fault | None:
    """Return, of a call that fails from then on, the same that fails once."""
    return replace(fault, at=replace(fault.at, onwards=False)) if fault.at.onwards else None


def _is_needless(_: Fault, once: DisturbedRun) -> bool:
    """Return whether there is nothing more to fail.

    That is so if the rank has not survived that the call failed once, or never came to it again.
    """
    return once.outcome in {*WEAK, "told"} or once.again is False


def _is_shown_by(disturbance: Disturbance, other: DisturbedRun) -> bool:
    """Return whether all ranks were seen to hear of a failure that takes the same way.

    What differs between such failures is the function of a library that handles it first: one that
    was heard of was not swallowed, and then they are the same.
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
