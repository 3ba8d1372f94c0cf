"""Turn errors of the operating system into errors of launching, with a remedy."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator

from pytest_multihost.core.model.errors import LaunchError

_FEWER = "or use fewer ranks (and fewer of pytest-xdist's workers)"
_REMEDIES = {
    errno.EAGAIN: f"Raise the limit on processes (ulimit -u, docker run --pids-limit), {_FEWER}.",
    errno.EMFILE: f"Raise the limit on open files of a process (ulimit -n), {_FEWER}.",
    errno.ENFILE: f"Raise the machine's limit on open files (sysctl fs.file-max), {_FEWER}.",
    errno.ENOMEM: f"Free memory, or raise its limit (docker run --memory), {_FEWER}.",
    errno.ENOSPC: "Free some space: see df, and df -i.",
}


def remedy_against(error: BaseException) -> str:
    """Return a remedy against an error; empty if none is known or it is no OSError."""
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
