"""A weakness that a project accepts, as an entry of its checked-in file."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import PurePosixPath

from pytest_multihost.core.model.verdict import Place


@dataclass(frozen=True, slots=True, kw_only=True)
class Acceptance:
    """A weakness that the project accepts.

    A line is written as ``file:function`` or ``file:text of the line``, because numbers of lines
    change; the file may be the end of a path.

    Attributes:
        test: A glob for node ids.
        culprit: The line that the others wait for.
        waiting: The line at which they wait; None for any.
        hazard: The rule of a hazard; the lines are then two of the lines in its finding, in any
            order.
    """

    test: str
    culprit: str
    waiting: str | None = None
    reason: str
    hazard: str | None = None

    def is_for(self, nodeid: str) -> bool:
        """Return whether it is for a test; a name without parameters is for all of them.

        The brackets of parameters are not a glob, so an exact node id is compared first.
        """
        names = (nodeid, nodeid.partition("[")[0])
        return self.test in names or any(fnmatchcase(each, self.test) for each in names)

    def fits(self, culprit: Place | None, waiting: Place | None) -> bool:
        """Return whether it names these lines."""
        return _is_at(self.culprit, culprit) and (
            self.waiting is None or _is_at(self.waiting, waiting)
        )

    def __str__(self) -> str:
        """Return it as one line."""
        waiting = f", waiting at {self.waiting}" if self.waiting else ""
        return f"{self.test}: {self.culprit}{waiting} ({self.reason})"


def _is_at(line: str, place: Place | None) -> bool:
    """Return whether ``file:function`` or ``file:text of the line`` names a place."""
    if place is None:
        return False
    file, _, text = line.partition(":")
    wanted = " ".join(text.split())
    names = (place.function, place.function.rpartition(".")[2], " ".join(place.source.split()))
    return _is_end_of_path(file.strip(), place.file) and wanted in names


def _is_end_of_path(end: str, path: str) -> bool:
    """Return whether a path ends with whole parts of another."""
    parts = PurePosixPath(end).parts
    return bool(parts) and PurePosixPath(path).parts[-len(parts) :] == parts
