"""The points of an undisturbed run, as each rank has recorded them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pytest_multihost.core.model.fault import UNKNOWN_PATH, ErrorPath, Point
from pytest_multihost.core.model.verdict import Place

ASKS: Final = frozenset(
    {
        *("exists", "is_dir", "is_file", "is_mount", "is_symlink", "isdir", "isfile", "islink"),
        *("ismount", "lexists"),
    }
)
"""Functions of Python's that only ask about a file, and take an error for a no."""


@dataclass(frozen=True, slots=True)
class RecordedPoint:
    """A point that a rank has passed in the undisturbed run.

    Attributes:
        point: The point; its `nth` is how often the rank had passed it, this time included.
        span: Number of operations that the rank had begun before.
        is_main: Whether its main thread has passed it.
        where: The user's innermost line; None if the user's code is not on the stack.
        other: Of a rename or link, the other path.
        makes: Whether the call on a file may make or empty it.
        meets_all: Whether the operation is over only once every rank has entered it.
        error_path: The way of an exception that is raised there.
    """

    rank: int
    point: Point
    span: int
    is_main: bool = True
    where: Place | None = None
    other: str = ""
    makes: bool = False
    meets_all: bool = False
    error_path: ErrorPath = UNKNOWN_PATH
