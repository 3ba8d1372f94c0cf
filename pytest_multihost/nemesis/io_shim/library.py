"""The shim's library, and which page of rules this process follows."""

from __future__ import annotations

import ctypes
import functools
import os
from pathlib import Path

from pytest_multihost.nemesis.io_shim.rules_page import IoPage
from pytest_multihost.preload import PreloadedLibrary

LIBRARY = PreloadedLibrary(Path(__file__).with_name("shim.c"))

PAGE_VARIABLE = "PYTEST_MULTIHOST_IO_SHIM"
"""Names the page that a process follows from its exec on; without it, none until `attach`."""

find_library = LIBRARY.find
"""Returns the shim's library, compiled now if it must be; None if there is no way."""

why_missing = LIBRARY.why_missing
"""Returns why there is no library; empty if there is one."""


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
    set_page = _attach_function()
    if set_page is None:
        reason = why_missing() or "preload_variables() returns the variables for that"
        raise RuntimeError(
            "This process has no I/O shim: it must be preloaded when the process is exec'd"
            f" ({reason})."
        )
    page = IoPage.open(path) if path.exists() else IoPage.create(path)
    if error := set_page(os.fsencode(path)):
        raise OSError(error, os.strerror(error), os.fspath(path))
    os.environ[PAGE_VARIABLE] = os.fspath(path)
    return page


def detach() -> None:
    """Follow no rules any more."""
    os.environ.pop(PAGE_VARIABLE, None)
    if (set_page := _attach_function()) is not None:
        set_page(b"")


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
