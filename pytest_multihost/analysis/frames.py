"""Whose code a frame is."""

from __future__ import annotations

import sysconfig
from collections.abc import Iterable
from pathlib import Path, PurePath

from pytest_multihost.model.stack import Frame

_INSTALLED = frozenset({"site-packages", "dist-packages"})
_STANDARD_LIBRARY = (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"))
_OURSELVES = str(Path(__file__).parent.parent)
_OUR_PARENT = Path(__file__).parent.parent.parent


def is_library(file: str) -> bool:
    """Return whether `file` belongs to Python, an installed package, or this one."""
    if file.startswith("<") or not _INSTALLED.isdisjoint(PurePath(file).parts):
        return True
    return file.startswith((*_STANDARD_LIBRARY, _OURSELVES))


def innermost_user_frame(frames: Iterable[Frame]) -> Frame | None:
    """Return the first of `frames`, innermost first, that is the user's own code."""
    return next((frame for frame in frames if not is_library(frame.file)), None)


def relative_to(root: str, file: str) -> str:
    """Return `file` relative to `root` in POSIX form where it is below it, else unchanged."""
    path = PurePath(file)
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else file


def short_path(root: str, file: str) -> str:
    """Return how a reader knows `file`: below rootdir, in a package, or in Python's library."""
    if not is_library(file):
        return relative_to(root, file)
    path = PurePath(file)
    for base in (*(parent for parent in path.parents if parent.name in _INSTALLED), _OUR_PARENT):
        if path.is_relative_to(base):
            return path.relative_to(base).as_posix()
    return path.name
