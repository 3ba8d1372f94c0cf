"""What tells the time in a world."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pytest_multihost.core.model.event import now


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeSource:
    """What tells the time in a world: by default the machine's monotonic clock.

    Attributes:
        now: Returns the time in seconds.
        ends: Returns when timed waits end, by thread, where the arguments of their system calls do
            not tell: these are as of the machine's clock.
        threads: Names of threads in ranks that only serve this source.
    """

    now: Callable[[], float] = now
    ends: Callable[[], Mapping[int, float]] = dict
    threads: frozenset[str] = frozenset()


MACHINE_TIME = TimeSource()
