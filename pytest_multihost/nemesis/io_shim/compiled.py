"""Libraries in C that the package has: named after what they are made of, found, or compiled.

Each is compiled when a wheel is built or the package is installed editable, where there is a C
compiler, and else on first use. The build hook imports this before anything is installed.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

FLAGS = ("-O2", "-fPIC", "-shared", "-std=gnu11")
PATIENCE_S = 120.0
"""How long a compiler may take."""

OTHERS_S = 20.0
"""How long to wait for another process that compiles the same."""

_POLL_S = 0.05
_FAILED = "it could not be compiled"


def digest(directory: Path, *more: str) -> str:
    """Return what tells a library from those made of other sources, or of these in another way."""
    made_of = hashlib.sha256("\n".join(more).encode())
    for source in sorted(directory.glob("*.[ch]")):
        made_of.update(source.read_bytes())
    return made_of.hexdigest()[:16]


def find(name: str, home: Path, build: Callable[[Path], str]) -> tuple[Path | None, str]:
    """Return where a library is; where it is not to be had, None and why.

    Args:
        name: What it is called.
        home: Where its sources are, and it itself where it was compiled with the package.
        build: Compiles it to a path, and returns why it could not; empty if it could.

    Raises:
        OSError: A directory cannot be read or written.
    """
    target = cache_directory() / name
    for path in (home / name, target):
        if path.is_absolute() and path.exists():
            return path, ""
    problem = _build_once(target, build)
    return (None, problem) if problem else (target, "")


def cache_directory() -> Path:
    """Return where libraries are kept that were compiled on first use."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111 - Path.expanduser raises where there is no home
    return Path(base, "pytest-multihost-hangs")


def _build_once(target: Path, build: Callable[[Path], str]) -> str:
    """Compile it, unless somebody else does or it has failed before; return why it is not there."""
    if not target.is_absolute():  # there is no home: nothing is run from wherever this one is
        return f"there is no directory to keep it in: {target.parent} is not an absolute path"
    failed = target.with_suffix(".failed")
    if failed.exists():
        return f"{failed.read_text(errors='replace')} (remove {failed} to try again)"
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.with_suffix(".lock").open("w") as lock:
        if not _is_ours(lock):
            return "another process has been compiling it for too long"
        problem = "" if target.exists() else build(target)
        target.with_suffix(".lock").unlink(missing_ok=True)
    if problem.startswith(_FAILED):
        failed.write_text(problem)
    return problem


def _is_ours(lock: IO[str]) -> bool:
    """Wait for whoever is compiling it; return whether he is done."""
    give_up_s = time.monotonic() + OTHERS_S
    while time.monotonic() < give_up_s:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        time.sleep(_POLL_S)
    return False


def compile_library(source: Path, target: Path, flags: Sequence[str]) -> str:
    """Compile `source` to `target`, which is there completely or not at all.

    Args:
        source: The file in C; what it includes lies beside it.
        target: Where the library is to be.
        flags: For the compiler, beside `FLAGS`; what begins with ``-l`` comes last.

    Returns:
        Why it could not be done; empty if it could.
    """
    command = _compiler()
    if not command or not shutil.which(command[0]):
        return "there is no C compiler (cc, or what CC names)"
    linked = [flag for flag in flags if flag.startswith("-l")]
    command += [*FLAGS, *(flag for flag in flags if flag not in linked)]
    try:
        return _compile(command, [str(source), *linked], target)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"compiling it was given up: {error}"


def _compiler() -> list[str]:
    """Return the compiler's command; empty where CC is none, such as one with an open quote."""
    try:
        return shlex.split(os.environ.get("CC") or "cc")
    except ValueError:
        return []


def _compile(command: Sequence[str], inputs: Sequence[str], target: Path) -> str:
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as directory:
        made = Path(directory, target.name)
        done = subprocess.run(
            [*command, "-o", str(made), *inputs],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=PATIENCE_S,
            check=False,
        )
        if done.returncode:
            return f"{_FAILED}: {done.stderr.strip()[:2000]}"
        made.replace(target)
    return ""
