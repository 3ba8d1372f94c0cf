"""Whose code a frame is."""

from __future__ import annotations

import sysconfig
from collections.abc import Iterable, Sequence
from itertools import takewhile
from pathlib import Path, PurePath

from pytest_multihost.model.stack import Frame

_INSTALLED = frozenset({"site-packages", "dist-packages"})
_STANDARD_LIBRARY = (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"))
_OURSELVES = str(Path(__file__).parent.parent)
_OUR_PARENT = Path(__file__).parent.parent.parent


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

    Everything further out than pytest's innermost frame called pytest, not the test: a script of
    the user's that runs it is not the test's doing. Where no code of the user's is left - in
    start-up, say - it ends at this package's own frames.
    """
    inside = list(takewhile(lambda frame: not _is_pytest(frame.file), frames))
    if innermost_user_frame(inside) is not None:
        return inside
    return list(takewhile(lambda frame: not _is_ours(frame.file), inside)) or inside[:1]


def _is_pytest(file: str) -> bool:
    return not {"_pytest", "pluggy"}.isdisjoint(PurePath(file).parts)


def _is_ours(file: str) -> bool:
    return PurePath(file).is_relative_to(_OURSELVES)


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
