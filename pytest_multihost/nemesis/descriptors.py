"""Make file descriptors scarce."""

from __future__ import annotations

import itertools
import os
import resource
from collections.abc import Collection

from pytest_multihost.nemesis.kind import FaultKind, Strike, whole


def limit_for(is_open: Collection[int], headroom: int) -> int:
    """Return the limit under which `headroom` more descriptors can be opened.

    The kernel hands out the lowest free number, and only those below the limit.
    """
    free = (number for number in itertools.count() if number not in is_open)
    return next(itertools.islice(free, headroom, None))


def _press(strike: Strike) -> None:
    # Listing the folder takes a descriptor itself, gone by the time that we count.
    listed = [int(name) for name in os.listdir("/proc/self/fd")]
    is_open = [number for number in listed if os.path.exists(f"/proc/self/fd/{number}")]  # noqa: PTH110
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = limit_for(is_open, strike.fault.params["headroom"])
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(wanted, hard), hard))
    strike.healing.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))


FD_PRESSURE = FaultKind(
    name="fd_pressure",
    perform=_press,
    params={"headroom": whole},
    required=frozenset({"headroom"}),
    lasts=True,
)
