"""Compile the hot path: when a wheel is built, when it is installed editable, or on first use.

Stands alone: the build hook runs this file before anything of ours can be imported.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

SOURCE = Path(__file__).with_name("_fast.c")
_FLAGS = ("-O2", "-fPIC", "-shared", "-std=gnu11", "-fvisibility=hidden")
_PATIENCE_S = 120.0


def abi() -> str:
    """Return for which Python a library is, such as ``cpython-311-x86_64-linux-gnu``."""
    return str(sysconfig.get_config_var("SOABI") or "")


def file_name() -> str:
    """Return what the library is called: after its source, and the Python that it is for."""
    return f"_fast-{hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:16]}.{abi()}.so"


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
    command = _compiler()
    headers = Path(sysconfig.get_path("include"))
    if problem := unfit():
        return problem
    if not command or not shutil.which(command[0]):
        return "there is no C compiler (cc, or what CC names)"
    if not (headers / "Python.h").exists():
        return f"there is no Python.h in {headers}: Python's development files are not installed"
    try:
        return _compile([*command, *_FLAGS, "-isystem", str(headers)], target)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"compiling it was given up: {error}"


def _compiler() -> list[str]:
    """Return the compiler's command; empty where CC is none, such as one with an open quote."""
    try:
        return shlex.split(os.environ.get("CC") or "cc")
    except ValueError:
        return []


def _compile(command: list[str], target: Path) -> str:
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as directory:
        made = Path(directory, target.name)
        done = subprocess.run(
            [*command, "-o", str(made), str(SOURCE)],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PATIENCE_S,
            check=False,
        )
        if done.returncode:
            return f"it could not be compiled: {done.stderr.strip()[:2000]}"
        made.replace(target)
    return ""
