"""Which files several ranks use: there it matters who comes first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from pytest_multihost.model.sweep import RecordedPoint
from pytest_multihost.sweep.classes import is_of_the_test
from pytest_multihost.sweep.roles import Records

CHANGES = frozenset({"link", "mkdir", "rename", "rmdir", "unlink", "write"})
"""Calls that others can see. An `open` may be one, too: the record does not say how it opens."""

_CHANGES_TREE = frozenset({"link", "mkdir", "rename", "rmdir", "unlink"})
"""Those of them that others may see at files further down."""

LOOKS = frozenset({"listdir", "open", "stat"})
"""Calls whose result depends on whether others have made the file."""


@dataclass(frozen=True, slots=True)
class Sharing:
    """The paths that ranks use.

    Attributes:
        calls: For each path, the calls of each rank.
        below: For each folder, the ranks that use what is in it, however deep.
    """

    calls: Mapping[str, Mapping[int, set[str]]] = field(default_factory=dict)
    below: Mapping[str, set[int]] = field(default_factory=dict)

    def is_shared(self, passed: RecordedPoint) -> bool:
        """Return whether a call on a file can matter to another rank, or another rank's to it."""
        path, call = passed.point.name, passed.point.call
        others = self.calls.get(path, {}).keys() - {passed.rank}
        if call == "listdir" or call in _CHANGES_TREE:
            others |= self.below.get(path, set()) - {passed.rank}
        return bool(others) or any(self._changes_tree(passed.rank, each) for each in _above(path))

    def _changes_tree(self, rank: int, folder: str) -> bool:
        by_rank = self.calls.get(folder, {})
        return any(
            calls & _CHANGES_TREE or "listdir" in calls
            for other, calls in by_rank.items()
            if other != rank
        )

    def made_by_others(self, passed: RecordedPoint) -> Iterator[str]:
        """Yield the paths made by others alone that a call looks for: itself, or in its folder."""
        path = passed.point.name
        if passed.point.call == "listdir":
            paths = [each for each in self.calls if str(PurePosixPath(each).parent) == path]
        else:
            paths = [path] if passed.point.call in LOOKS else []
        for each in paths:
            by_rank = self.calls.get(each, {})
            own = by_rank.get(passed.rank, set())
            others = set[str]().union(*(c for r, c in by_rank.items() if r != passed.rank))
            if others & CHANGES and not own & CHANGES:
                yield each


def sharing_of(points: Records) -> Sharing:
    """Return which ranks use which paths."""
    calls: dict[str, dict[int, set[str]]] = {}
    for rank, passed in points.items():
        for each in passed:
            if each.point.point == "io" and is_of_the_test(each):
                by_rank = calls.setdefault(each.point.name, {})
                by_rank.setdefault(rank, set()).add(each.point.call)
    below: dict[str, set[int]] = {}
    for path, by_rank in calls.items():
        for folder in _above(path):
            below.setdefault(folder, set()).update(by_rank)
    return Sharing(calls, below)


def _above(path: str) -> list[str]:
    return [str(each) for each in PurePosixPath(path).parents if str(each) not in ("/", ".", "*")]
