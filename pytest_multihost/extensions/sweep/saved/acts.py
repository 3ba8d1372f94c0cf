"""The acts of the undisturbed run on saved files: the makers, the last names, the removals."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from pytest_multihost.extensions.sweep.classes import Records
from pytest_multihost.intercept.files import matcher

_NUMBER = re.compile(r"[0-9]+|\*")


@dataclass(frozen=True, slots=True)
class Acts:
    """Calls of the undisturbed run on the files in the folder that the ranks share.

    Attributes:
        makers: The rank that has made each file, if it is one rank. Paths are relative to the
            shared folder.
        published: The files and folders that a rank has renamed after they were made.
        removed: Globs of the files that a rank has removed.
    """

    makers: Mapping[str, int] = field(default_factory=dict)
    published: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()

    def removed_like(self, paths: Iterable[str]) -> list[str]:
        """Return the globs of removed files that differ from some paths in numbers only."""
        shapes = {_NUMBER.sub("#", f"*/{path}") for path in paths}
        return [each for each in self.removed if _NUMBER.sub("#", each) in shapes]


NO_ACTS = Acts()
"""Nothing is known of the calls of ranks."""


def acts_of(points: Records, paths: Iterable[str]) -> Acts:
    """Return the calls of ranks on saved files, from the points that they passed.

    Args:
        paths: The files at the end of the run, relative to the shared folder.
    """
    every = [each for passed in points.values() for each in passed if each.point.point == "io"]
    moves = {e.other: e.point.name for e in every if e.point.call == "rename" and e.other}
    makers: dict[str, set[int]] = {}
    for each in every:
        if each.makes and each.point.call in ("open", "write"):
            makers.setdefault(_moved(each.point.name, moves), set()).add(each.rank)
    found = list(paths)
    by_path = {
        path: set[int]().union(*(r for glob, r in makers.items() if has_name(path, glob)))
        for path in found
    }
    folders = {str(each) for path in found for each in PurePosixPath(path).parents}
    named = sorted({*found, *folders} - {"."})
    return Acts(
        makers={path: min(ranks) for path, ranks in by_path.items() if len(ranks) == 1},
        published=tuple(p for p in named if any(has_name(p, each) for each in moves.values())),
        removed=tuple(sorted({e.point.name for e in every if e.point.call == "unlink"})),
    )


def has_name(path: str, glob: str) -> bool:
    """Return whether a path in the shared folder is meant by the name of a point."""
    return matcher(glob)(f"/{path}")


def _moved(name: str, moves: Mapping[str, str]) -> str:
    """Return the last name of a file that was made under a name."""
    for before, after in moves.items():
        if name == before or name.startswith(f"{before}/"):
            return after + name[len(before) :]
    return name
