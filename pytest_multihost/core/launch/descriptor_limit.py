"""The limit of open files: a world of a thousand ranks takes more than the usual 1024.

The processes of the harness raise their own limit as far as they may. Ranks get the limit that the
user has set.
"""

from __future__ import annotations

import errno
import os
import resource

from pytest_multihost.core.model.errors import LaunchError

_ENOUGH = 65_536
_OTHERS = 200
"""Open files of the harness besides those for ranks."""

_EACH = 2
"""Open files for each rank while a world is started."""

_SPARE = 64
"""Open files that the controller may need at once: it looks at each process of a world."""

_original: list[tuple[int, int]] = []


def raise_descriptor_limit() -> None:
    """Let this process open as many files as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _ENOUGH if hard == resource.RLIM_INFINITY else min(hard, _ENOUGH)
    if soft < most:
        _original[:] = _original or [(soft, hard)]
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def keep_descriptors_free() -> None:
    """See to it that this process can open its next files, whatever else it has opened.

    A test, a plugin or a thread of the program may have taken all that the soft limit allows.

    Raises:
        LaunchError: No file can be opened, and the limit cannot be raised.
    """
    lowest = _lowest_free()
    if lowest is not None and lowest + _SPARE < resource.getrlimit(resource.RLIMIT_NOFILE)[0]:
        return
    raise_descriptor_limit()
    if _lowest_free() is None:
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        raise LaunchError(
            "pytest's own process can open no more files, so it sees no rank any more",
            seen=f"The hard limit of open files is {limit}, and all are open.",
            remedy="Close the files that the tests, fixtures or plugins leave open.",
        )


def _lowest_free() -> int | None:
    """Return the lowest free descriptor; None if there is none."""
    try:
        found = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        if error.errno != errno.EMFILE:
            raise
        return None
    os.close(found)
    return found


def restore_descriptor_limit() -> None:
    """Give this process, a new rank, the limit that the user has set."""
    if _original:
        resource.setrlimit(resource.RLIMIT_NOFILE, _original[0])


def require_descriptors(ranks: int) -> None:
    """Raise the limit of this process, and check that it suffices for so many ranks.

    Raises:
        LaunchError: It does not.
    """
    needed = _EACH * ranks + _OTHERS
    if needed > resource.getrlimit(resource.RLIMIT_NOFILE)[0]:
        raise_descriptor_limit()
    if needed > (limit := resource.getrlimit(resource.RLIMIT_NOFILE)[0]):
        raise LaunchError(
            f"{ranks} ranks take {needed} open files",
            seen=f"The hard limit of open files is {limit}.",
            remedy=f"Raise it (ulimit -Hn), or use at most {(limit - _OTHERS) // _EACH} ranks."
            if limit > _OTHERS + _EACH
            else "Raise it (ulimit -Hn).",
        )
