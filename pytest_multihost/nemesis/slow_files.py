"""Slow, broken and short reads and writes, as far as Python does them."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from dataclasses import dataclass
from time import sleep  # by name: the test may replace it in its module
from typing import Any

from pytest_multihost.nemesis.files import FILES, Access, Watcher, matcher
from pytest_multihost.nemesis.kind import FaultKind, Strike, positive, seconds, text, truth

_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS})
"""Errors of those who write."""


@dataclass(frozen=True, slots=True)
class Disturbance:
    """What happens to a call on a file.

    Attributes:
        seconds: What it takes in addition.
        bytes_per_s: How fast data moves at most.
        error: The error that it ends in.
        short_reads: Whether a read gets half.
    """

    seconds: float = 0.0
    bytes_per_s: float | None = None
    error: int | None = None
    short_reads: bool = False

    def before(self, access: Access) -> int | None:
        """Wait, fail, or return how many bytes to move at most."""
        if self.seconds:
            sleep(self.seconds)
        if self.error is not None and (self.error not in _NO_ROOM or access.call == "write"):
            raise OSError(self.error, os.strerror(self.error), access.path)
        if self.short_reads and access.call == "read" and access.size > 1:
            return access.size // 2
        return None

    def after(self, access: Access) -> None:
        """Let what was moved take its time."""
        if self.bytes_per_s and access.size > 0:
            sleep(access.size / self.bytes_per_s)


def disturbance(params: Mapping[str, Any]) -> Disturbance:
    """Return what the parameters of a `slow_io` ask for."""
    return Disturbance(
        seconds=params.get("seconds", 0.0),
        bytes_per_s=params.get("bytes_per_s"),
        error=error_number(params["error"]) if "error" in params else None,
        short_reads=params.get("short_reads", False),
    )


def error_number(name: object) -> int | None:
    """Return the number of an error of the operating system, None where there is none."""
    found = getattr(errno, name, None) if isinstance(name, str) and name.startswith("E") else None
    return found if isinstance(found, int) else None


def _slow_down(strike: Strike) -> None:
    chosen = disturbance(strike.fault.params)

    def before(access: Access) -> int | None:
        strike.begun()
        return chosen.before(access)

    watcher = Watcher(matcher(strike.fault.params["path"]), before, chosen.after)
    FILES.watch(watcher)
    strike.healing.callback(FILES.unwatch, watcher)


def _error(value: object) -> str | None:
    return None if error_number(value) is not None else "the name of an error, as 'EIO'"


SLOW_IO = FaultKind(
    name="slow_io",
    perform=_slow_down,
    params={
        "seconds": seconds,
        "bytes_per_s": positive,
        "error": _error,
        "short_reads": truth,
        "path": text,
    },
    required=frozenset({"path"}),
    lasts=True,
    tells_itself=True,
)
