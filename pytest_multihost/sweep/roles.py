"""Ranks that pass the same points: what disturbs one of them disturbs the others alike."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from pytest_multihost.model.sweep import RecordedPoint

_NUMBER = re.compile(r"[0-9]+")

_COUNTED = frozenset({"batch", "collective", "sync_point"})
"""Kinds of points of which ranks of one role pass equally many.

How often a file is asked for depends on timing: ranks poll. So does how often a store is.
"""

Records = Mapping[int, Sequence[RecordedPoint]]


@dataclass(frozen=True, slots=True)
class Site:
    """Where and how points are passed, whatever their number and span.

    Attributes:
        kind: The kind of point.
        call: Which call on a file.
        line: File and line of the user's code; None if none is on the stack.
        name: Without numbers; empty where the line says enough.
    """

    kind: str
    call: str
    line: tuple[str, int] | None
    name: str = ""


def site_of(passed: RecordedPoint) -> Site:
    """Return where and how a point was passed.

    The line says enough: a loop over files is one site. Without a line, as in a library's own
    threads, the name stands for it; of operations, always.
    """
    point, where = passed.point, passed.where
    line = (where.file, where.line) if where is not None else None
    needs_name = line is None or point.point != "io"
    name = _NUMBER.sub("#", point.name) if needs_name else ""
    return Site(point.point, point.call, line, name)


def roles_of(points: Records, size: int) -> tuple[tuple[int, ...], ...]:
    """Return the ranks of each role, that of rank 0 first.

    Args:
        points: The points that each rank has passed.
        size: Ranks of the world.
    """
    named = _RankNumbers.of(points)
    roles: dict[Hashable, list[int]] = {}
    for rank in range(size):
        roles.setdefault(_signature(points.get(rank, ()), named), []).append(rank)
    return tuple(map(tuple, roles.values()))


def _signature(points: Iterable[RecordedPoint], named: _RankNumbers) -> Hashable:
    """Return what is equal for ranks of one role: the points they pass, in any order."""
    points = list(points)
    made = {(site_of(e).line, e.point.name) for e in points if e.point.call == "mkdir"}
    sites = {
        (site_of(each), named.name_of(each))
        for each in points
        # Whoever is not the first to make a folder asks whether it is one.
        if each.point.call != "stat" or (site_of(each).line, each.point.name) not in made
    }
    counted = (each for each in points if each.point.point in _COUNTED)
    counts = Counter(site_of(each) for each in counted if not _polls(each))
    return frozenset(sites), frozenset(counts.items())


def _polls(passed: RecordedPoint) -> bool:
    return passed.point.name.startswith(("store.", "key_value_"))


_Position = tuple[Site, str, int]
"""Site, name without numbers, and which of its numbers."""


@dataclass(frozen=True, slots=True)
class _RankNumbers:
    """Which numbers in the names of points are the rank's own, as in ``shard-0.pt``.

    A number is, if each rank has another one there, always as far from its own number: from 0, from
    1, or its neighbour's.

    Attributes:
        offsets: How far it is, for each position of a number that is the rank's own.
    """

    offsets: Mapping[_Position, int]

    @classmethod
    def of(cls, points: Records) -> _RankNumbers:
        """Find them in all points of all ranks."""
        seen: dict[_Position, dict[int, set[int]]] = {}
        for rank, passed in points.items():
            for each in passed:
                for position, number in _numbers(each):
                    seen.setdefault(position, {}).setdefault(rank, set()).add(number)
        offsets = {}
        for position, by_rank in seen.items():
            single = {rank: found for rank, found in by_rank.items() if len(found) == 1}
            apart = {number - rank for rank, found in single.items() for number in found}
            if len(single) > 1 and len(apart) == 1:
                offsets[position] = apart.pop()
        return cls(offsets)

    def name_of(self, passed: RecordedPoint) -> str:
        """Return the name of a point, with a word in place of the rank's own number."""
        own = iter(
            self.offsets.get(position) == number - passed.rank
            for position, number in _numbers(passed)
        )
        return _NUMBER.sub(lambda found: "{rank}" if next(own) else found[0], passed.point.name)


def _numbers(passed: RecordedPoint) -> list[tuple[_Position, int]]:
    name = passed.point.name
    form = _NUMBER.sub("#", name)
    found = map(int, _NUMBER.findall(name))
    return [((site_of(passed), form, index), number) for index, number in enumerate(found)]
