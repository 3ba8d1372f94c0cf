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
        """Yield globs for what others alone make and a call looks for.

        Of a folder that is listed: all that is in it, and the last that was made. With the first
        nothing of it is seen, with the second a part.
        """
        path = passed.point.name
        if passed.point.call == "listdir":
            inside = [each for each in self.calls if str(PurePosixPath(each).parent) == path]
            made = [each for each in inside if self._is_made_by_others(each, passed.rank)]
            if len(made) > 1:
                yield f"{path}/*"
            yield from made[-1:]
        elif passed.point.call in LOOKS and self._is_made_by_others(path, passed.rank):
            yield path

    def _is_made_by_others(self, path: str, rank: int) -> bool:
        by_rank = self.calls.get(path, {})
        others = set[str]().union(*(calls for other, calls in by_rank.items() if other != rank))
        return bool(others & CHANGES) and not by_rank.get(rank, set()) & CHANGES


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
