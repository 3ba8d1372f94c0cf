"""Where the library with the hot path is, and why there is none.

It is looked for, and compiled if it must be, once by a process for all that it forks.
"""

from __future__ import annotations

import functools
import importlib.util
import os
from pathlib import Path
from types import ModuleType

from pytest_multihost.nemesis.io_shim.compiled import find
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
        path, problem = find(file_name(), SOURCE.parent, build)
        return (_load(path), "") if path else (None, problem)
    except (ImportError, OSError) as error:
        return None, f"it cannot be loaded: {error}"


def _load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(_NAME, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"Python does not know what {path} is")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
