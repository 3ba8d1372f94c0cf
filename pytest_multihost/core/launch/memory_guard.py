"""End a world while there is still memory to say so.

When memory runs out, the kernel kills a process of its choice silently: a rank at best, often
pytest's own. `capacity` refuses a world that cannot fit, but the ranks of an admitted world may
take more later, and other programs may take memory too.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import psutil

from pytest_multihost.core.launch.control_groups import OWN_GROUPS, FreeMemory
from pytest_multihost.core.launch.refusals import FEWER_RANKS
from pytest_multihost.core.model.errors import LaunchError

INTERVAL_S = 0.5
"""Time between two looks, which cost 0.1 ms each."""

_RESERVE_SHARE, _MOST_RESERVE = 32, 256 << 20
"""The least memory to leave: this part of all, and at most so many bytes.

With less, the kernel may kill processes before the next look. Ranks that fork copy pages at some
0.3 GB a second on two cores."""

_OUTLIER = 4
"""How many times as much as most others a rank must hold to be named."""


@dataclass(slots=True)
class MemoryGuard:
    """Looks at times whether a world's machine is about to run out of memory."""

    look: Callable[[], FreeMemory] = OWN_GROUPS.memory
    _looked_s: float = field(default_factory=time.monotonic)

    def check(self, pids: Callable[[], Mapping[int, int]] = dict) -> None:
        """Check that enough memory is left, if the last look is long enough ago.

        Args:
            pids: Returns the process ids of the ranks on this machine.

        Raises:
            LaunchError: Nearly all memory is used.
        """
        if time.monotonic() < self._looked_s + INTERVAL_S:
            return
        self._looked_s = time.monotonic()
        require_memory(self.look(), pids())


def require_memory(left: FreeMemory, pids: Mapping[int, int]) -> None:
    """Check that enough memory is left for a world to go on.

    Args:
        pids: The process ids of the ranks on this machine.

    Raises:
        LaunchError: Nearly all memory is used.
    """
    if left.available + left.swap >= min(left.total // _RESERVE_SHARE, _MOST_RESERVE):
        return
    holder = _outlier({rank: _resident_bytes(pid) for rank, pid in pids.items()})
    raise LaunchError(
        "the world was ended because the machine is about to run out of memory",
        seen=f"{left.available / 1e6:.0f} MB of {left.total / 1e9:.1f} GB are left.{holder}",
        remedy=f"Free memory, or raise its limit (docker run --memory), {FEWER_RANKS}.",
    )


def _outlier(held: Mapping[int, int]) -> str:
    """Return a sentence about the rank that holds by far the most memory; empty if none does."""
    rank = max(held, key=held.__getitem__, default=None)
    others = [each for other, each in held.items() if other != rank]
    usual = statistics.median(others) if others else 0
    if rank is None or not usual or held[rank] < _OUTLIER * usual:
        return ""
    return f" Rank {rank} holds {held[rank] / 1e9:.1f} GB, and others {usual / 1e9:.1f} GB."


def _resident_bytes(pid: int) -> int:
    """Return the memory that a process holds, shared memory included; 0 if it is gone."""
    with contextlib.suppress(psutil.Error):
        return int(psutil.Process(pid).memory_info().rss)
    return 0
