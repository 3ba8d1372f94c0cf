"""Compile the hot path: when a wheel is built, when it is installed editable, or on first use."""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path

from pytest_multihost.nemesis.io_shim.compiled import compile_library, digest

SOURCE = Path(__file__).with_name("_fast.c")
_FLAGS = ("-fvisibility=hidden",)


def abi() -> str:
    """Return for which Python a library is, such as ``cpython-311-x86_64-linux-gnu``."""
    return str(sysconfig.get_config_var("SOABI") or "")


def file_name() -> str:
    """Return what the library is called: after its sources, and the Python that it is for."""
    return f"_fast-{digest(SOURCE.parent, *_FLAGS)}.{abi()}.so"


def unfit() -> str:
    """Return why this Python cannot have it; empty if it can."""
    if sys.implementation.name != "cpython" or not sys.platform.startswith("linux"):
        return f"it is for CPython on Linux, not {sys.implementation.name} on {sys.platform}"
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        return "it relies on the interpreter's lock, which this Python is built without"
    return "" if abi() else "this Python does not say which extensions it can load"


def build(target: Path) -> str:
    """Compile it to `target`, which is there completely or not at all.

    Returns:
        Why it could not be done; empty if it could.
    """
    headers = Path(sysconfig.get_path("include"))
    if problem := unfit():
        return problem
    if not (headers / "Python.h").exists():
        return f"there is no Python.h in {headers}: Python's development files are not installed"
    return compile_library(SOURCE, target, [*_FLAGS, "-isystem", str(headers)])
