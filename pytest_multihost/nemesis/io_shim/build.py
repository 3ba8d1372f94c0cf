"""Compile the shim: when a wheel is built, when it is installed editable, or on first use."""

from __future__ import annotations

import platform
import sys
from pathlib import Path

from pytest_multihost.nemesis.io_shim.compiled import compile_library, digest

SOURCE = Path(__file__).with_name("shim.c")
_FLAGS = ("-U_FORTIFY_SOURCE", "-pthread", "-ldl")


def file_name() -> str:
    """Return what the library is called: after what it is made of, so none is taken for another."""
    return f"_shim-{digest(SOURCE.parent, platform.machine(), *_FLAGS)}.so"


def unfit() -> str:
    """Return why this system cannot have it; empty if it can."""
    is_fit = sys.platform.startswith("linux") and platform.libc_ver()[0] == "glibc"
    return "" if is_fit else "it is for Linux with the GNU C library"


def build(target: Path) -> str:
    """Compile the shim to `target`, which is there completely or not at all.

    Returns:
        Why it could not be done; empty if it could.
    """
    return unfit() or compile_library(SOURCE, target, _FLAGS)
