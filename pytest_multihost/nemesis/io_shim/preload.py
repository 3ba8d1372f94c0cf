"""Give the shim to a process that is exec'd, and point this process at a page of rules."""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Mapping
from pathlib import Path

from pytest_multihost.nemesis.io_shim.library import find_library, why_missing
from pytest_multihost.nemesis.io_shim.rules_page import IoPage

PAGE_VARIABLE = "PYTEST_MULTIHOST_IO_SHIM"
"""Names the page that a process follows from its exec on; without it, none until `attach`."""

_PRELOAD_VARIABLE = "LD_PRELOAD"


def preload_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that give the shim to a process that is exec'd with `environment`.

    Empty if there is no library. Libraries that are preloaded already stay, behind the shim.
    """
    library = find_library()
    if library is None:
        return {}
    others = environment.get(_PRELOAD_VARIABLE, "").replace(":", " ").split()
    others = [other for other in others if other != str(library)]
    return {_PRELOAD_VARIABLE: ":".join([str(library), *others])}


def is_loaded() -> bool:
    """Return whether this process, or the one that has forked it, was exec'd with the shim."""
    return _attach_function() is not None


def attach(path: Path) -> IoPage:
    """Follow the rules in the page at `path` from now on, and no others.

    The page is created if it is absent. Processes that this one execs later follow it as well.

    Raises:
        RuntimeError: The shim is not loaded: this process was exec'd without it.
        OSError, ValueError: The page cannot be created, or the file is no page.
    """
    if not is_loaded():
        reason = why_missing() or "preload_variables() returns the variables for that"
        raise RuntimeError(
            "This process has no I/O shim: it must be preloaded when the process is exec'd"
            f" ({reason})."
        )
    page = IoPage.open(path) if path.exists() else IoPage.create(path)
    _set_page(os.fsencode(path))
    os.environ[PAGE_VARIABLE] = os.fspath(path)
    return page


def detach() -> None:
    """Follow no rules any more."""
    os.environ.pop(PAGE_VARIABLE, None)
    if is_loaded():
        _set_page(b"")


def _set_page(path: bytes) -> None:
    function = _attach_function()
    assert function is not None  # noqa: S101 - both callers have asked
    if error := function(path):
        raise OSError(error, os.strerror(error), os.fsdecode(path))


@functools.cache
def _attach_function() -> ctypes._NamedFuncPointer | None:
    """Return the shim's entry point; None in a process without the shim.

    CDLL(None) is dlopen(NULL): it finds symbols of the program itself and of what was preloaded.
    """
    try:
        function = ctypes.CDLL(None).multihost_shim_attach
    except (AttributeError, OSError, TypeError):  # absent; Windows has no program to look in
        return None
    function.argtypes = [ctypes.c_char_p]
    function.restype = ctypes.c_int
    return function
