"""Where the shim is, how a process comes to have it, and how it is told what to do.

For others, in the order of use (`IoRule`, `IoPage` and `IoCount` are explained in page.py)::

    library() -> Path | None          the library to preload; None: see why_missing()
    why_missing() -> str              in words; "" where library() is not None
    preloaded(environment) -> dict    variables for the exec of a process that is to have it
    is_loaded() -> bool               whether this process, or who forked it, was exec'd with it
    attach(path) -> IoPage            in the rank: follow the rules at `path` from now on, alone or
                                      with children started later; the page is made if it is absent
    detach() -> None                  in the rank: follow no rules any more

    IoRule(path=, operations=("open", "read", "write", "sync"), seconds=0.0, bytes_per_s=None,
           error=0, short=None, nth=1, count=None, spare=(), is_whole=False)
    page.add(rule) -> int             a rule more, beside the others; its number
    page.remove(number)               one rule less; who sleeps for it wakes within 50 ms
    page.set_rules(rules)             these, instead of all others
    page.clear()                      none; also from another process: IoPage.open(path).clear()
    page.note(number, now_ns)         counts a call that was struck without the shim
    page.fired() -> tuple[IoCount]    .matched .struck .bytes .slept_s .first_ns, by number
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Mapping
from pathlib import Path

from pytest_multihost.nemesis.io_shim.build import SOURCE, build, file_name, unfit
from pytest_multihost.nemesis.io_shim.compiled import find
from pytest_multihost.nemesis.io_shim.page import RULES, IoCount, IoPage, IoRule

__all__ = [
    "PAGE_VARIABLE",
    "RULES",
    "IoCount",
    "IoPage",
    "IoRule",
    "attach",
    "detach",
    "is_loaded",
    "library",
    "preloaded",
    "why_missing",
]

PAGE_VARIABLE = "PYTEST_MULTIHOST_IO_SHIM"
"""Names the page that a process follows from its exec on; without it, none until `attach`."""

_PRELOAD_VARIABLE = "LD_PRELOAD"


def library() -> Path | None:
    """Return the shim's library: installed, or compiled on first use; None if there is no way."""
    return _found()[0]


def why_missing() -> str:
    """Return why there is no library; empty if there is one."""
    return _found()[1]


def preloaded(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that give the shim to a process that is exec'd with `environment`.

    Empty if there is no library. What is preloaded already stays, behind it.
    """
    found = library()
    if found is None:
        return {}
    others = environment.get(_PRELOAD_VARIABLE, "").replace(":", " ").split()
    return {_PRELOAD_VARIABLE: ":".join([str(found), *(o for o in others if o != str(found))])}


def is_loaded() -> bool:
    """Return whether the shim stands in front of the C library in this process."""
    return _attach_function() is not None


def attach(path: Path) -> IoPage:
    """Follow the rules in the page at `path` from now on, and no others.

    The page is made if there is none. Processes that this one execs later follow it as well.

    Raises:
        RuntimeError: The shim is not loaded: this process was exec'd without it.
        OSError, ValueError: The page cannot be made, or is none.
    """
    if not is_loaded():
        raise RuntimeError(
            "This process has no I/O shim: it must be preloaded when the process is exec'd"
            f" ({why_missing() or 'preloaded() returns the variables for that'})."
        )
    page = IoPage.open(path) if path.exists() else IoPage.create(path)
    _point_at(os.fsencode(path))
    os.environ[PAGE_VARIABLE] = os.fspath(path)
    return page


def detach() -> None:
    """Follow no rules any more."""
    os.environ.pop(PAGE_VARIABLE, None)
    if is_loaded():
        _point_at(b"")


def _point_at(path: bytes) -> None:
    function = _attach_function()
    assert function is not None  # noqa: S101 - both callers have asked
    if error := function(path):
        raise OSError(error, os.strerror(error), os.fsdecode(path))


@functools.cache
def _attach_function() -> ctypes._NamedFuncPointer | None:
    try:
        function = ctypes.CDLL(None).multihost_shim_attach
    except (AttributeError, OSError, TypeError):  # absent; Windows has no program to look in
        return None
    function.argtypes = [ctypes.c_char_p]
    function.restype = ctypes.c_int
    return function


@functools.cache
def _found() -> tuple[Path | None, str]:
    try:
        return (None, unfit()) if unfit() else find(file_name(), SOURCE.parent, build)
    except OSError as error:
        return None, str(error)
