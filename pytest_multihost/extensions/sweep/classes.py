"""Classes of points: a disturbance shows at one point of a class what it shows at all.

A span is what a rank does between two operations. Spans are alike if the same line ends them by the
same operation: there the others wait, and these are mostly the rounds of a loop. What is done at
one line in one round is a class with what is done there in the others, so its first and its last
point are enough.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import translate

from pytest_multihost.core.model.recorded_point import RecordedPoint
from pytest_multihost.core.model.verdict import Place

# Ranks that pass the same points: what disturbs one of them disturbs the others alike.


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


_NOT_OF_THE_TEST = (
    # What the kernel and the system hold: no failure of a file system.
    *("/dev/*", "/proc/*", "/sys/*", "/etc/*", "/usr/*"),
    # Python and installed packages: read once, mostly at imports, long before a job's first step.
    *("*/site-packages/*", "*/dist-packages/*", "*/lib/python3*", "*.py", "*.pyc", "*__pycache__*"),
    # Of this plugin, pytest and coverage: there only because it is a test.
    *("*/.pytest_multihost/*", "*/.pytest_cache/*", "*/.coverage*", "*/pytest.ini"),
    # Caches of compilers: machine-wide, made to be shared, and warm or cold by chance.
    *("*torchinductor_*", "*/triton/*", "*/.triton/*", "*/jax_cache*", "*/.cache/*"),
    # Libraries of the system and extension modules; another one may be what the test builds.
    *("/lib/*", "/lib64/*", "*.cpython-*.so", "*.abi3.so"),
)
"""Globs of files that are not the test's own business.

What a library does in the test's folders is: to commit a checkpoint is what goes wrong.
"""

_matches_any = re.compile("|".join(map(translate, _NOT_OF_THE_TEST))).match

_NEVER_DISTURBED = frozenset({"rendezvous", "start"})
"""Points that are passed by the harness, not by the test."""


def is_of_the_test(passed: RecordedPoint) -> bool:
    """Return whether to disturb a rank at a point can show something about the test."""
    point = passed.point
    if point.point in _NEVER_DISTURBED:
        return False
    return point.point != "io" or not _matches_any(point.name)


SpanKind = Site | None
"""The operation that ends a span; None at the end of the test."""


def kinds_of_spans(points: Iterable[RecordedPoint]) -> Mapping[int, SpanKind]:
    """Return which operation ends each span of a rank."""
    operations = [site_of(each) for each in points if each.point.point == "collective"]
    return dict(enumerate([*operations, None]))


@dataclass(frozen=True, slots=True)
class PointClass:
    """Points of a role that are alike.

    Attributes:
        key: What they have in common.
        points: Those of the role's first rank, in order.
        points_of_last: The same of its last rank.
    """

    key: Hashable
    points: tuple[RecordedPoint, ...]
    points_of_last: tuple[RecordedPoint, ...]

    def lines_beside(self, passed: RecordedPoint) -> tuple[Place, ...]:
        """Return the lines of its points, in order, but for that of one of them."""
        lines = dict.fromkeys(each.where for each in self.points if each.where is not None)
        return tuple(each for each in lines if each != passed.where)

    @property
    def is_poll(self) -> bool:
        """Whether they are one call on one file, made again and again in one span.

        Nothing of the rank's own happens in between, so it does not matter at which of them it is
        disturbed.
        """
        return len({(each.point.name, each.point.call, each.span) for each in self.points}) == 1

    @property
    def ends(self) -> tuple[RecordedPoint, ...]:
        """The first point and the last one, of different ranks if possible.

        Both ranks are disturbed that way, each at one of the points.
        """
        if len(self.points) < 2:  # noqa: PLR2004 - a first and a last
            return self.points[:1]
        return self.points[0], (self.points_of_last or self.points)[-1]


def classes_of(
    first: Sequence[RecordedPoint],
    last: Sequence[RecordedPoint],
    key_of: Callable[[RecordedPoint, SpanKind], Hashable | None],
) -> tuple[PointClass, ...]:
    """Return the classes of a role's points that are the test's business, in order.

    Args:
        first: All points of the role's first rank.
        last: All points of its last rank.
        key_of: Returns what is equal for points of one class; None for a point of none.
    """
    groups, others = _grouped(first, key_of), _grouped(last, key_of)
    return tuple(
        PointClass(key, tuple(found), tuple(others.get(key, ()))) for key, found in groups.items()
    )


def _grouped(
    points: Sequence[RecordedPoint],
    key_of: Callable[[RecordedPoint, SpanKind], Hashable | None],
) -> Mapping[Hashable, list[RecordedPoint]]:
    kinds = kinds_of_spans(points)
    groups: dict[Hashable, list[RecordedPoint]] = {}
    for each in points:
        if is_of_the_test(each):
            key = key_of(each, kinds[each.span])
            if key is not None:
                groups.setdefault(key, []).append(each)
    return groups
