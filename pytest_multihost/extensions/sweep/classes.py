"""Groups points into classes: a disturbance shows the same at every point of a class.

A span is the time of a rank between two operations. Spans are of one kind if the same line ends
them with the same operation, where the other ranks wait; most such spans are the rounds of a loop.
The points of one line in all spans of one kind are a class, so it is enough to disturb the first
and the last of them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import translate

from pytest_multihost.core.model.recorded_point import RecordedPoint
from pytest_multihost.core.model.verdict import Place

_NUMBER = re.compile(r"[0-9]+")

_COUNTED = frozenset({"batch", "collective", "sync_point"})
"""Kinds of points that all ranks of one role pass equally often.

Accesses to files and stores are not among them: their number depends on timing, because ranks poll.
"""

Records = Mapping[int, Sequence[RecordedPoint]]


@dataclass(frozen=True, slots=True)
class Site:
    """The common part of all points of one line, without their number and span.

    Attributes:
        line: File and line of the user's code; None if none is on the stack.
        name: The point's name without numbers; empty if the line is enough.
    """

    kind: str
    call: str
    line: tuple[str, int] | None
    name: str = ""


def site_of(passed: RecordedPoint) -> Site:
    """Return the site of a point.

    For a call on a file the line is enough, so a loop over files is one site. Without a line, as in
    a library's own threads, and for all other points, the site also has the name.
    """
    point, where = passed.point, passed.where
    line = (where.file, where.line) if where is not None else None
    needs_name = line is None or point.point != "io"
    name = _NUMBER.sub("#", point.name) if needs_name else ""
    return Site(point.point, point.call, line, name)


def roles_of(points: Records, size: int) -> tuple[tuple[int, ...], ...]:
    """Return the ranks of each role; the role of rank 0 is first."""
    named = _RankNumbers.of(points)
    roles: dict[Hashable, list[int]] = {}
    for rank in range(size):
        roles.setdefault(_signature(points.get(rank, ()), named), []).append(rank)
    return tuple(map(tuple, roles.values()))


def _signature(points: Iterable[RecordedPoint], named: _RankNumbers) -> Hashable:
    """Return the key of a rank's role: the points that the rank passes, in any order."""
    points = list(points)
    made = {(site_of(e).line, e.point.name) for e in points if e.point.call == "mkdir"}
    sites = {
        (site_of(each), named.name_of(each))
        for each in points
        # A rank that is not the first to make a folder also asks whether it is one.
        if each.point.call != "stat" or (site_of(each).line, each.point.name) not in made
    }
    counted = (each for each in points if each.point.point in _COUNTED)
    counts = Counter(site_of(each) for each in counted if not _polls(each))
    return frozenset(sites), frozenset(counts.items())


def _polls(passed: RecordedPoint) -> bool:
    return passed.point.name.startswith(("store.", "key_value_"))


_Position = tuple[Site, str, int]
"""A site, a name without numbers, and the index of a number in the name."""


@dataclass(frozen=True, slots=True)
class _RankNumbers:
    """The numbers in the names of points that derive from the rank, as in ``shard-0.pt``.

    A number derives from the rank if it differs from the rank by the same offset on every rank:
    ranks counted from 0 or from 1, or the rank of a neighbour.

    Attributes:
        offsets: The offset, for each position of such a number.
    """

    offsets: Mapping[_Position, int]

    @classmethod
    def of(cls, points: Records) -> _RankNumbers:
        """Find these numbers in all points of all ranks."""
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
        """Return the name of a point, with "{rank}" for each number that derives from the rank."""
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
    # Files of the kernel and the system: a file system does not fail there.
    *("/dev/*", "/proc/*", "/sys/*", "/etc/*", "/usr/*"),
    # Python and installed packages are read once, mostly at imports, long before the first step.
    *("*/site-packages/*", "*/dist-packages/*", "*/lib/python3*", "*.py", "*.pyc", "*__pycache__*"),
    # Files of this plugin, pytest and coverage exist only because this is a test.
    *("*/.pytest_multihost/*", "*/.pytest_cache/*", "*/.coverage*", "*/pytest.ini"),
    # Caches of compilers are machine-wide, made to be shared, and warm or cold by chance.
    *("*torchinductor_*", "*/triton/*", "*/.triton/*", "*/jax_cache*", "*/.cache/*"),
    # Sockets and folders of multiprocessing have random names, so no later run comes to them.
    *("*/listener-????????", "*/pymp-????????*"),
    # Libraries of the system and extension modules; other libraries may be built by the test.
    *("/lib/*", "/lib64/*", "*.cpython-*.so", "*.abi3.so"),
)
"""Globs of files that do not belong to the test.

Accesses of a library in the test's folders do belong to it: commits of checkpoints go wrong.
"""

_matches_any = re.compile("|".join(map(translate, _NOT_OF_THE_TEST))).match

_NEVER_DISTURBED = frozenset({"rendezvous", "start"})
"""Points that the harness passes, not the test."""


def is_of_the_test(passed: RecordedPoint) -> bool:
    """Return whether a point belongs to the test, so that a fault there can show a weakness."""
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
    """Equivalent points of a role.

    Attributes:
        key: Equal for all points of the class.
        points: The points of the role's first rank, in order.
        points_of_last: The points of the role's last rank, in order.
    """

    key: Hashable
    points: tuple[RecordedPoint, ...]
    points_of_last: tuple[RecordedPoint, ...]

    def lines_beside(self, passed: RecordedPoint) -> tuple[Place, ...]:
        """Return the lines of its points, in order, except the line of one point."""
        lines = dict.fromkeys(each.where for each in self.points if each.where is not None)
        return tuple(each for each in lines if each != passed.where)

    @property
    def is_poll(self) -> bool:
        """Whether the points are one call on one file, repeated within one span.

        The rank does nothing else in between, so a fault shows the same at any of them.
        """
        return len({(each.point.name, each.point.call, each.span) for each in self.points}) == 1

    @property
    def ends(self) -> tuple[RecordedPoint, ...]:
        """The first and the last point, of different ranks if possible.

        Then both ranks are disturbed, each at one of the points.
        """
        if len(self.points) < 2:  # noqa: PLR2004 - a first and a last
            return self.points[:1]
        return self.points[0], (self.points_of_last or self.points)[-1]


def classes_of(
    first: Sequence[RecordedPoint],
    last: Sequence[RecordedPoint],
    key_of: Callable[[RecordedPoint, SpanKind], Hashable | None],
) -> tuple[PointClass, ...]:
    """Return the classes of a role's points that belong to the test, in order.

    Args:
        first: All points of the role's first rank.
        last: All points of its last rank.
        key_of: Returns the key of a point's class; None for a point without a class.
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
