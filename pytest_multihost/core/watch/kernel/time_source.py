"""The source of a world's time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pytest_multihost.core.model.event import now


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeSource:
    """The source of a world's time: by default the machine's monotonic clock.

    Attributes:
        ends: Returns the end of timed waits, by thread, if the arguments of their system calls do
            not show it because these use the machine's clock.
        threads: Names of threads in ranks that only serve this source.
    """

    now: Callable[[], float] = now
    ends: Callable[[], Mapping[int, float]] = dict
    threads: frozenset[str] = frozenset()


MACHINE_TIME = TimeSource()
