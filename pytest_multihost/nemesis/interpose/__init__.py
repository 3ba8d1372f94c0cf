"""Intercept calls of Python code: of functions that a point names, and of files.

Nothing is replaced before it is needed, and everything is put back afterwards.
"""

from pytest_multihost.nemesis.interpose.call_targets import CallTarget, load_target
from pytest_multihost.nemesis.interpose.python_files import (
    SYSTEM_FILES,
    FileAccess,
    FileObserver,
    matcher,
    observing_files,
)

__all__ = [
    "SYSTEM_FILES",
    "CallTarget",
    "FileAccess",
    "FileObserver",
    "load_target",
    "matcher",
    "observing_files",
]
