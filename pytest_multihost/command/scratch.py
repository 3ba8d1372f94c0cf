"""The temporary directory of a run, which does not outlive it for long however that ends.

Its server removes it when the controller is killed. Where both are killed, the next run does: who
uses a directory holds a lock on it, which also tells of processes in another namespace.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

_PREFIX = "multihost-run-"
_YOUNG_S = 60.0
"""One that was just made may not be locked yet."""


@contextlib.contextmanager
def scratch_folder() -> Iterator[Path]:
    """Make a temporary directory for a run, and remove it and those of runs that were killed."""
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        _remove_abandoned(folder.parent)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(descriptor)


def _remove_abandoned(parent: Path) -> None:
    """Remove directories of this user's runs whose processes have been killed."""
    for each in parent.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):  # it is locked, or gone
            found = each.lstat()
            if found.st_uid != os.geteuid() or time.time() - found.st_mtime < _YOUNG_S:
                continue
            descriptor = os.open(each, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(each, ignore_errors=True)
            finally:
                os.close(descriptor)
