"""Where the library with the hot path is, and why there is none.

It is looked for, and compiled if it must be, once by a process for all that it forks.
"""

from __future__ import annotations

import fcntl
import functools
import importlib.util
import os
from pathlib import Path
from types import ModuleType

from pytest_multihost.rank.recorder.fast.build import SOURCE, build, file_name, unfit

PURE_VARIABLE = "PYTEST_MULTIHOST_PURE"
"""Set to 1, it leaves the library out: when a wheel is built, and when it is looked for."""

_NAME = "pytest_multihost.rank.recorder.fast._fast"  # Python derives the name of its start from it


def loaded() -> ModuleType | None:
    """Return the library: installed, or compiled on first use; None if there is no way."""
    return _found()[0]


def why_missing() -> str:
    """Return why there is no library; empty if there is one."""
    return _found()[1]


@functools.cache
def _found() -> tuple[ModuleType | None, str]:
    if os.environ.get(PURE_VARIABLE) == "1":
        return None, f"{PURE_VARIABLE}=1 leaves it out"
    if problem := unfit():
        return None, problem
    try:
        return _from([SOURCE.parent, _cache_directory()])
    except (ImportError, OSError) as error:
        return None, f"it cannot be loaded: {error}"


def _from(directories: list[Path]) -> tuple[ModuleType | None, str]:
    """Load it from the first directory that has it; if none has, compile it into the last."""
    name = file_name()
    for directory in directories:
        if directory.is_absolute() and (directory / name).exists():
            return _load(directory / name), ""
    problem = _build_once(directories[-1] / name)
    return (None, problem) if problem else (_load(directories[-1] / name), "")


def _build_once(target: Path) -> str:
    """Compile it, unless somebody is at it or it has failed before; return why it is not there."""
    if not target.is_absolute():  # there is no home: nothing is run from wherever this one is
        return f"there is no directory to keep it in: {target.parent} is not an absolute path"
    failed = target.with_suffix(".failed")
    if failed.exists():
        return f"{failed.read_text(errors='replace')} (remove {failed} to try again)"
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.with_suffix(".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return "another process is compiling it right now"
        problem = "" if target.exists() else build(target)
    if problem.startswith("it could not be compiled"):
        failed.write_text(problem)
    return problem


def _load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(_NAME, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"Python does not know what {path} is")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _cache_directory() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111 - Path.expanduser raises where there is no home
    return Path(base, "pytest-multihost-hangs")
