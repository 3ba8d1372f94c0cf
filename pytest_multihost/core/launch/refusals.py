"""Turn errors of the operating system into errors of launching, with a remedy."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator

from pytest_multihost.core.model.errors import LaunchError

FEWER_RANKS = "or use fewer ranks (and fewer of pytest-xdist's workers)"
"""The end of a remedy against a lack of something that each rank takes."""

_REMEDIES = {
    errno.EAGAIN: (
        f"Raise the limit on processes (ulimit -u, docker run --pids-limit), {FEWER_RANKS}."
    ),
    errno.EMFILE: f"Raise the limit on open files of a process (ulimit -n), {FEWER_RANKS}.",
    errno.ENFILE: f"Raise the machine's limit on open files (sysctl fs.file-max), {FEWER_RANKS}.",
    errno.ENOMEM: f"Free memory, or raise its limit (docker run --memory), {FEWER_RANKS}.",
    errno.ENOSPC: "Free some space: see df, and df -i.",
}


def remedy_against(error: BaseException) -> str:
    """Return a remedy against an error; empty if none is known or it is not an OSError."""
    return _REMEDIES.get(error.errno or 0, "") if isinstance(error, OSError) else ""


def refused(happened: str, error: OSError) -> LaunchError:
    """Return an error of the operating system as an error of launching."""
    return LaunchError(happened, seen=str(error), remedy=remedy_against(error))


@contextlib.contextmanager
def refusals(happened: str) -> Iterator[None]:
    """Turn errors of the operating system into errors of launching.

    Raises:
        LaunchError: There was one.
    """
    try:
        yield
    except OSError as error:
        raise refused(happened, error) from error
