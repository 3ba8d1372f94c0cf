"""Compile the shim: when a wheel is built, when it is installed editable, or on first use.

Stands alone: the build hook runs this file before anything of ours can be imported.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

SOURCE = Path(__file__).with_name("shim.c")
_FLAGS = ("-O2", "-fPIC", "-shared", "-std=gnu11", "-U_FORTIFY_SOURCE", "-pthread")
_PATIENCE_S = 60.0


def file_name() -> str:
    """Return what the library is called: after what it is made of, so none is taken for another."""
    made_of = SOURCE.read_bytes() + platform.machine().encode()
    return f"_shim-{hashlib.sha256(made_of).hexdigest()[:16]}.so"


def compiler() -> list[str]:
    """Return the command of the C compiler, ``$CC`` or ``cc``; empty if there is none."""
    command = shlex.split(os.environ.get("CC") or "cc")
    return command if command and shutil.which(command[0]) else []


def build(target: Path) -> str:
    """Compile the shim to `target`, which is there completely or not at all.

    Returns:
        Why it could not be done; empty if it could.
    """
    if not sys.platform.startswith("linux"):
        return f"the shim is for Linux, and this is {sys.platform}"
    command = compiler()
    if not command:
        return "there is no C compiler (cc, or what CC names)"
    try:
        return _compile(command, target)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"the shim could not be compiled: {error}"


def _compile(command: list[str], target: Path) -> str:
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as directory:
        made = Path(directory, target.name)
        done = subprocess.run(
            [*command, *_FLAGS, "-o", str(made), str(SOURCE), "-ldl"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PATIENCE_S,
            check=False,
        )
        if done.returncode:
            return f"the shim could not be compiled: {done.stderr.strip()[:2000]}"
        made.replace(target)
    return ""
