"""Classes of points: a disturbance shows at one point of a class what it shows at all.

A span is what a rank does between two operations. Spans are alike if the same line ends them by the
same operation: there the others wait, and these are mostly the rounds of a loop. What is done at
one line in one round is a class with what is done there in the others, so its first and its last
point are enough.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import translate

from pytest_multihost.model.sweep import RecordedPoint
from pytest_multihost.model.verdict import Place
from pytest_multihost.sweep.roles import Site, site_of

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
