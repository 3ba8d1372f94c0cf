"""Whose code a frame is."""

from __future__ import annotations

import sysconfig
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import takewhile
from pathlib import Path, PurePath

from pytest_multihost.model.diagnosis import Place
from pytest_multihost.model.stack import Frame

_INSTALLED = frozenset({"site-packages", "dist-packages"})
_STANDARD_LIBRARY = (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"))
_OURSELVES = str(Path(__file__).parent.parent)
_RUNNER = "_pytest/runner.py"
_SERVER = "pytest_multihost/launch/server/serve.py"
_FILES = 4096
"""Files that are remembered: stacks name the same few thousands of times."""

_OUR_PARENT = Path(__file__).parent.parent.parent


SourceOf = Callable[[str, int], str]
"""Returns the text of a line of a file, empty where it cannot be read."""


@lru_cache(maxsize=_FILES)
def is_library(file: str) -> bool:
    """Return whether `file` belongs to Python, an installed package, or this one."""
    path = PurePath(file)
    if file.startswith("<") or not _INSTALLED.isdisjoint(path.parts):
        return True
    return any(path.is_relative_to(base) for base in (*_STANDARD_LIBRARY, _OURSELVES))


def innermost_user_frame(frames: Iterable[Frame]) -> Frame | None:
    """Return the first of `frames`, innermost first, that is the user's own code."""
    return next((frame for frame in frames if not is_library(frame.file)), None)


def inside_the_test(frames: Sequence[Frame]) -> list[Frame]:
    """Return what the user's test or fixture has called, innermost first.

    What is further out than pytest's runner called pytest, not the test: a script of the user's
    that runs it is not the test's doing. Where no code of the user's is left - in start-up, say -
    it ends at the server that the rank was forked from.
    """
    inside = list(takewhile(lambda frame: not frame.file.endswith((_RUNNER, _SERVER)), frames))
    users = [index for index, frame in enumerate(inside) if not is_library(frame.file)]
    return inside[: users[-1] + 1] if users else inside


def relative_to(root: str, file: str) -> str:
    """Return `file` relative to `root` in POSIX form where it is below it, else unchanged."""
    path = PurePath(file)
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else file


@lru_cache(maxsize=_FILES)
def short_path(root: str, file: str) -> str:
    """Return how a reader knows `file`: below rootdir, in a package, or in Python's library."""
    if not is_library(file):
        return relative_to(root, file)
    path = PurePath(file)
    for base in (*(parent for parent in path.parents if parent.name in _INSTALLED), _OUR_PARENT):
        if path.is_relative_to(base):
            return path.relative_to(base).as_posix()
    return path.name


@dataclass(frozen=True, slots=True)
class SourceContext:
    """What turns a frame into a place that the reader can look up.

    Attributes:
        root: pytest's rootdir; files below it are named relative to it.
        source_of: Reads a line of a file.
    """

    root: str
    source_of: SourceOf

    def place(self, frame: Frame) -> Place:
        """Return a frame as the reader knows it, with the text of its line.

        The frame's file may be absolute, or relative to the root.
        """
        path = frame.file if frame.file.startswith(("/", "<")) else f"{self.root}/{frame.file}"
        source = self.source_of(path, frame.line)
        return Place(short_path(self.root, frame.file), frame.line, frame.function, source)
