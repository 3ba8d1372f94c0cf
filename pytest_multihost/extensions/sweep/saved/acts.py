"""What ranks of the undisturbed run have done with the files in the folder that they share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pytest_multihost.extensions.sweep.classes import Records

_HERE = "*/"
"""The beginning of the names of points at files in the folder that ranks share."""


@dataclass(frozen=True, slots=True)
class Acts:
    """Who has made, moved and removed files. All paths are relative to the shared folder.

    Attributes:
        makers: The rank that has made each file, if it is one rank.
        published: The files and folders that got their last name after they were made.
        removed: The files that a rank has removed.
    """

    makers: Mapping[str, int] = field(default_factory=dict)
    published: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()


NO_ACTS = Acts()
"""Nothing is known of what ranks have done."""


def acts_of(points: Records) -> Acts:
    """Return what ranks have done, from the points that they passed."""
    every = [each for passed in points.values() for each in passed if each.point.point == "io"]
    moves = {
        _path(each.other): _path(each.point.name)
        for each in every
        if each.point.call == "rename" and each.other
    }
    makers: dict[str, set[int]] = {}
    for each in every:
        if each.makes and each.point.call in ("open", "write"):
            makers.setdefault(_moved(_path(each.point.name), moves), set()).add(each.rank)
    return Acts(
        makers={path: min(ranks) for path, ranks in makers.items() if len(ranks) == 1},
        published=tuple(sorted(set(moves.values()))),
        removed=tuple(sorted({_path(e.point.name) for e in every if e.point.call == "unlink"})),
    )


def _path(name: str) -> str:
    return name.removeprefix(_HERE)


def _moved(path: str, moves: Mapping[str, str]) -> str:
    """Return the last path of a file that was made at a path."""
    for before, after in moves.items():
        if path == before or path.startswith(f"{before}/"):
            return after + path[len(before) :]
    return path
