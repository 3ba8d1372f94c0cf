"""The rule about calls that can fail on some ranks only, between two operations.

A rank that does what the others of a group do not, before all of them meet, never comes there if
that fails - unless its program handles the failure so that it comes there all the same, to tell the
others or to go on. What its program does is read from its source (`guards`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from pytest_multihost.hazards.guards import TextOf, is_skipped
from pytest_multihost.hazards.rules import Found, Place, Records
from pytest_multihost.model.hazard import Launch, Passed, RankRecord
from pytest_multihost.model.operation import RUNTIME_SCOPE
from pytest_multihost.model.sweep import STORE_READS

_NEVER_FAIL = frozenset({"stat"})
"""Calls whose failure mostly is an answer."""

Site = tuple[str, object]


@dataclass(frozen=True, slots=True)
class _Span:
    """What a rank does before a collective.

    Attributes:
        calls: Its calls that can fail.
        ending: The collective.
        launch: The same, as its rank has launched it.
    """

    calls: tuple[Passed, ...]
    ending: Passed
    launch: Launch

    @property
    def sites(self) -> set[Site]:
        """Where the calls are."""
        return {_site(each) for each in self.calls}


def unguarded(records: Records, *, text_of: TextOf) -> Iterator[Found]:
    """Find calls of some members of a group that keep them from a collective if they fail.

    Args:
        records: What each rank has launched and passed.
        text_of: Reads the program's files.
    """
    spans = {rank: _spans(record) for rank, record in records.items() if not record.is_truncated}
    for rank, mine in spans.items():
        for place, span in mine.items():
            members = [each for each in place[0][0] if each != rank]
            theirs = {each: spans.get(each, {}).get(place) for each in members}
            for call in span.calls:
                waiting = [
                    each
                    for each, other in theirs.items()
                    if other is not None and _site(call) not in other.sites
                ]
                if waiting and _is_unguarded(call, span, text_of):
                    other = theirs[waiting[0]]
                    assert other is not None  # noqa: S101 - for the type checker
                    sides = (rank, (call, span.launch)), (waiting[0], (other.launch,))
                    yield Found("unguarded", sides, place[0][0])
                    break


def _is_unguarded(call: Passed, span: _Span, text_of: TextOf) -> bool:
    return is_skipped(call.point.error_path, call.frames, span.ending.frames, text_of)


def _site(call: Passed) -> Site:
    where = call.point.where
    return call.point.point.call or call.point.point.name, where and (where.file, where.line)


def _spans(record: RankRecord) -> Mapping[Place, _Span]:
    """Return what a rank does before each of its collectives, in its main thread."""
    found: dict[Place, _Span] = {}
    calls: list[Passed] = []
    for passed, launch in _with_launches(record):
        if _can_fail(passed):
            calls.append(passed)
        elif passed.point.point.point == "collective":
            if launch is not None and launch.operation.kind != "collective":
                continue
            if launch is not None and _is_awaited(launch):
                found[launch.operation.place] = _Span(tuple(calls), passed, launch)
            calls = []
    return found


def _with_launches(record: RankRecord) -> Iterator[tuple[Passed, Launch | None]]:
    """Yield the points of the main thread, with what the rank has launched there.

    Some operations consist of others, as `broadcast_object_list` does: then it is the next one of
    the thread.
    """
    by_name = {(each.operation.name, each.nth): each for each in record.launches}
    last: Launch | None = None
    for passed in record.passed:
        point = passed.point.point
        launch = None
        if passed.point.is_main and point.point == "collective":
            launch = by_name.get((point.name, point.nth)) or _next(record.launches, last)
            last = launch or last
        if passed.point.is_main:
            yield passed, launch


def _next(launches: Sequence[Launch], last: Launch | None) -> Launch | None:
    if last is None:
        return next(iter(launches), None)
    later = islice(launches, bisect_right(launches, last.number, key=_number), None)
    return next((each for each in later if each.thread == last.thread), None)


def _number(launch: Launch) -> int:
    return launch.number


def _can_fail(passed: Passed) -> bool:
    point = passed.point.point
    if point.point == "io":
        return point.call not in _NEVER_FAIL
    return point.point == "call" or point.name in STORE_READS


def _is_awaited(launch: Launch) -> bool:
    """Return whether the members of a group wait for each other there, whatever the runtime."""
    operation = launch.operation
    is_runtimes = operation.scope == RUNTIME_SCOPE or operation.scope.kind == "barrier"
    return is_runtimes and len(operation.group) > 1
