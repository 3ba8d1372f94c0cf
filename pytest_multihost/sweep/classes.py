"""Classes of points: those of one span that one line passes in one way.

A span is what a rank does between two operations. What a disturbance shows at one point of a class
it likely shows at all, so the first and the last of each come first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch

from pytest_multihost.model.sweep import RecordedPoint
from pytest_multihost.sweep.roles import Records, Site, site_of

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

_NEVER_DISTURBED = frozenset({"rendezvous", "start"})
"""Points that are passed by the harness, not by the test."""


def is_of_the_test(passed: RecordedPoint) -> bool:
    """Return whether to disturb a rank at a point can show something about the test."""
    point = passed.point
    if point.point in _NEVER_DISTURBED:
        return False
    return point.point != "io" or not any(fnmatch(point.name, each) for each in _NOT_OF_THE_TEST)


@dataclass(frozen=True, slots=True)
class PointClass:
    """Points of one span that one line passes in one way.

    Attributes:
        number: Its number in the plan.
        role: The ranks.
        site: Where and how they are passed.
        span: The span, as the role's first rank counts.
        points: The points of the role's first rank, in order.
        points_of_last: The same of its last rank.
    """

    number: int
    role: tuple[int, ...]
    site: Site
    span: int
    points: tuple[RecordedPoint, ...]
    points_of_last: tuple[RecordedPoint, ...]


def classes_of(points: Records, roles: Sequence[tuple[int, ...]]) -> tuple[PointClass, ...]:
    """Return the classes of all points that are the test's business, in order."""
    found: list[PointClass] = []
    for role in roles:
        first, last = _grouped(points.get(role[0], ())), _grouped(points.get(role[-1], ()))
        for (site, span), passed in first.items():
            of_last = last.get((site, span), passed)
            number = len(found)
            found.append(PointClass(number, role, site, span, tuple(passed), tuple(of_last)))
    return tuple(found)


def _grouped(
    points: Sequence[RecordedPoint],
) -> Mapping[tuple[Site, int], list[RecordedPoint]]:
    groups: dict[tuple[Site, int], list[RecordedPoint]] = {}
    for each in points:
        if is_of_the_test(each):
            groups.setdefault((site_of(each), each.span), []).append(each)
    return groups


@dataclass(frozen=True, slots=True)
class Pick:
    """A point that is to be disturbed.

    Attributes:
        turn: 0 for the first of its site, 1 for the last; then the other spans' firsts, their
            lasts, and all others.
        passed: The point.
        class_: Its class.
    """

    turn: int
    passed: RecordedPoint
    class_: int


OTHERS_TURN = 4
"""The turn of points between others of their class."""


def picks_of_site(classes: Sequence[PointClass]) -> Iterator[Pick]:
    """Yield the points of one site of one role, likeliest to show something else first.

    Where all ranks pass the same points, the primary is disturbed at the first and the last rank at
    the last: both are seen, though only one of them is disturbed at each point.

    Args:
        classes: The site's classes, one for each span, in order.
    """
    first, last = classes[0], classes[-1]
    yield Pick(0, first.points[0], first.number)
    is_same = last.points_of_last[-1] == first.points[0]
    if not is_same:
        yield Pick(1, last.points_of_last[-1], last.number)
    for each in bisected(classes[1:]):
        yield Pick(2, each.points[0], each.number)
    for each in bisected(classes[:-1]):
        if len(each.points) > 1:
            yield Pick(3, each.points[-1], each.number)
    for each in classes:
        for passed in each.points[1:-1]:
            yield Pick(OTHERS_TURN, passed, each.number)


def bisected(items: Sequence[PointClass]) -> Iterator[PointClass]:
    """Yield items from all over a sequence: the middle one, then those of the halves, and so on."""
    parts = [(0, len(items))]
    while parts:
        halves = []
        for begin, end in parts:
            if begin < end:
                middle = (begin + end) // 2
                yield items[middle]
                halves += [(begin, middle), (middle + 1, end)]
        parts = halves
