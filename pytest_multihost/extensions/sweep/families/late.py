"""The family `late`: a rank is held at a point until all others wait.

It is held only at points where other ranks can notice that it is late.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import replace

from pytest_multihost import faults
from pytest_multihost.core.model.collectives import COLLECTIVES
from pytest_multihost.core.model.fault import Fault, Point
from pytest_multihost.core.model.recorded_point import RecordedPoint
from pytest_multihost.extensions.sweep.choices import (
    LAST_TURN,
    LATER_TURN,
    SECOND_TURN,
    STARTS,
    Choice,
    SweptRole,
    UndisturbedRun,
    Weight,
    is_beside,
)
from pytest_multihost.extensions.sweep.classes import SpanKind, classes_of, is_of_the_test, site_of
from pytest_multihost.extensions.sweep.families.family import SweepFamily
from pytest_multihost.extensions.sweep.mendings import (
    BROADCAST_DECISIONS,
    WAIT_BY_AN_OPERATION,
    Mending,
)
from pytest_multihost.extensions.sweep.result import DisturbedRun
from pytest_multihost.extensions.sweep.sharing import changes

_UNAFFECTED = frozenset(each.name for each in COLLECTIVES if not each.fails_late)
"""Operations that end in the same way however late a rank is."""

LATE_S = 3.0
"""The least hold for ranks whose others have timeouts of seconds, or poll a number of times."""


def _plan(role: SweptRole) -> Iterator[Choice]:
    """Yield holds for a role.

    A rank's own work only delays the next action that other ranks can see. So the rank is held at
    these actions: at a call on a file whose order with another rank's call is open and matters
    (`Sharing.is_raced`), at operations and at sync points. If there are none, as for ranks that
    talk over their own sockets, the rank is held at its first point. A thread beside the main one
    is held while the rank goes on, and so is a process that the rank starts.
    """
    found = [*_late_at_files(role), *_late_at_operations(role), *_late_at_sync_points(role)]
    found += _late_beside(role)
    yield from found
    alone = [each for each in role.points if is_of_the_test(each)]
    if alone and not found:
        yield _held(alone[0], Weight.LATE_ALONE, LAST_TURN, "alone")


def _late_at_files(role: SweptRole) -> Iterator[Choice]:
    """Yield holds at files, at the first and the last point of each line and kind of span.

    A hold between two calls differs from a hold before both only if other ranks see the first call,
    or change its result. Then the first call is raced itself, so only raced calls are held.
    """

    def key(passed: RecordedPoint, kind: SpanKind) -> Hashable | None:
        if passed.point.point != "io" or not role.run.sharing.is_raced(passed):
            return None
        return site_of(passed), kind

    for found in classes_of(role.points, role.points_of_last, key):
        ends = found.ends[:1] if found.is_poll else found.ends
        if len(ends) == 1 and len(role.disturbed) > 1:
            ends = (*ends, *found.points_of_last[:1])
        for turn, passed in enumerate(ends):
            is_change = changes(passed)
            weight = Weight.LATE_AT_SHARED_CHANGE if is_change else Weight.LATE_AT_SHARED_LOOK
            yield _held(passed, weight, turn, found.key)
            if is_change or passed.point.call == "open":
                yield _held(passed, weight, turn + LATER_TURN, found.key, min_s=LATE_S)


def _late_at_operations(role: SweptRole) -> Iterator[Choice]:
    """Yield holds at operations.

    Collectives match by their number in the group, and rooted ones also by their root, so however
    late a rank is, its collective matches the same ones. Only something unrecorded, such as a
    socket or a timeout, could notice that the rank is late. So one run holds the rank at all
    collectives, and further runs hold it at single ones only if that run went wrong. Other
    operations can notice it: a message may be received from any rank, a key of a store may be
    missing, a barrier may fail on purpose if a rank is late, and the user's own operations may do
    anything. For these, one run holds the rank at each line.
    """
    collectives = [each for each in role.operations if each.point.name in _UNAFFECTED]
    if collectives:
        yield from _late_at_collectives(collectives)

    def key(passed: RecordedPoint, _kind: SpanKind) -> Hashable | None:
        is_other = passed.point.name not in _UNAFFECTED
        return site_of(passed) if passed.point.point == "collective" and is_other else None

    for found in classes_of(role.points, role.points_of_last, key):
        ends = found.ends
        if len(ends) < len({role.ranks[0], role.ranks[-1]}):  # passed once, by several ranks
            ends = (*ends, *found.points_of_last[-1:])
        for turn, passed in enumerate(dict.fromkeys(ends)):
            yield _held(passed, Weight.LATE_AT_OPERATION, turn, found.key)
            later = turn + LATER_TURN
            yield _held(passed, Weight.LATE_AT_OPERATION, later, found.key, min_s=LATE_S)


def _late_at_collectives(collectives: Sequence[RecordedPoint]) -> Iterator[Choice]:
    by_site = {site_of(each): each for each in reversed(collectives)}
    first, *_ = collectives
    if len(collectives) > 1:
        at = Point("collective", onwards=True)
        fault = faults.hold(rank=first.rank, at=at)
        yield Choice(0, Weight.LATE_AT_OPERATION, fault, first, "collectives")
    for site, passed in by_site.items():
        turn = LAST_TURN if len(collectives) > 1 else 0
        yield _held(passed, Weight.LATE_AT_OPERATION, turn, ("collective", site))


def _late_at_sync_points(role: SweptRole) -> Iterator[Choice]:
    def key(passed: RecordedPoint, kind: SpanKind) -> Hashable | None:
        return (site_of(passed), kind) if passed.point.point == "sync_point" else None

    for found in classes_of(role.points, role.points_of_last, key):
        for turn, passed in enumerate(found.ends):
            yield _held(passed, Weight.LATE_AT_SYNC_POINT, turn, found.key)


def _late_beside(role: SweptRole) -> Iterator[Choice]:
    """Yield holds of threads beside the main one and of processes, the first and last of each line.

    The main thread goes on, and may ask whether the work of the thread or process is done. Other
    ranks get another answer.
    """
    found: dict[Hashable, list[RecordedPoint]] = {}
    for each in role.points:
        is_thread = is_beside(each.point.name) and not each.is_main
        if each.point.point == "call" and (is_thread or each.point.name in STARTS):
            found.setdefault(site_of(each), []).append(each)
    for site, calls in found.items():
        ends = dict.fromkeys((calls[0], calls[-1]))
        for later, passed in enumerate(ends):
            fault = _hold_beside(passed)
            yield Choice(later * SECOND_TURN, Weight.LATE_BESIDE, fault, passed, ("beside", site))


def _held(
    passed: RecordedPoint, weight: Weight, turn: int, class_: Hashable, *, min_s: float = 0.0
) -> Choice:
    return Choice(turn, weight, _hold(passed, min_s), passed, class_)


def _hold(passed: RecordedPoint, min_s: float = 0.0) -> Fault:
    return faults.hold(rank=passed.rank, at=passed.point, min_s=min_s)


def _hold_beside(passed: RecordedPoint) -> Fault:
    """Return the hold of the thread that makes a call, or of the process that it starts."""
    if passed.point.name in STARTS:
        return faults.hold(rank=passed.rank, at=passed.point, what="child")
    return _hold(passed)


def _faults_at(passed: RecordedPoint, _run: UndisturbedRun) -> Iterator[Fault]:
    yield from (_hold(passed), _hold(passed, LATE_S))
    if passed.point.name in STARTS:
        yield _hold_beside(passed)


def _decided_by(fault: Fault) -> Fault | None:
    """Return the hold whose result decides whether this one is needed.

    * For a hold of seconds, the same hold until the others wait.
    * For a hold at one collective, the same hold at all collectives.
    """
    if "min_s" in fault.params:
        params = {key: value for key, value in fault.params.items() if key != "min_s"}
        return replace(fault, params=params)
    if fault.at.point == "collective" and not fault.at.onwards:
        return replace(fault, at=replace(fault.at, name="", nth=1, call="", onwards=True))
    return None


def _is_needless(fault: Fault, run: DisturbedRun) -> bool:
    """Return whether the hold would show nothing new.

    If no other rank polled or had a timeout of seconds, nothing more happens within seconds. If a
    hold at all collectives had no effect, a hold at one of them has none either.
    """
    return run.is_pressed is False if "min_s" in fault.params else run.outcome == "survived"


def _mend(run: DisturbedRun) -> Mending:
    is_file = run.disturbance.fault.at.point == "io"
    return WAIT_BY_AN_OPERATION if is_file else BROADCAST_DECISIONS


FAMILY = SweepFamily(
    name="late",
    plan=_plan,
    faults_at=_faults_at,
    mildness=0,
    mend=_mend,
    decided_by=_decided_by,
    is_needless=_is_needless,
)
