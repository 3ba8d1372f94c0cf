"""One observed fact, and the frames from which ranks and server let it be known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

EventKind = Literal[
    "forked",  # the rank's process exists
    "hello",  # it runs our code and can be asked for its stacks
    "ready",  # its backend is up
    "phase",  # it entered setup, call, teardown or shutdown
    "report",  # pytest made a report in it
    "subtest",  # a subtest of the user ended in it
    "warning",  # a warning was recorded in it
    "parked",  # its test body is over; runtime and sockets stay open
    "exchange",  # it entered a barrier, gather or broadcast of the harness
    "sync_point",  # it passed a named point
    "done",  # its teardown is over
    "interrupted",  # something that pytest does not turn into a report left the test
    "fault",  # a fault has begun in it, or is over
    "point",  # it passed a point that a fault could be bound to
    "points",  # which points it has passed in all, and how often
    "network",  # on its behalf the network of the hosts has been changed, or could not be
    "exited",  # its process ended
    "released",  # the controller opened a gate for it
]
"""Kinds of events. All but those of the harness are told by the rank itself."""

_OF_THE_HARNESS = frozenset({"forked", "network", "exited", "released"})

TOLD_BY_RANKS = frozenset(get_args(EventKind)) - _OF_THE_HARNESS
"""Kinds that a rank may tell of."""

BROKEN = 70
"""Exit code of a rank that could not tell its result (EX_SOFTWARE of sysexits.h)."""

RELEASES = ("go", "teardown", "exit")
"""The gates that the controller opens, in order."""


@dataclass(frozen=True, slots=True)
class Event:
    """One observed fact about one rank.

    Attributes:
        at_s: Seconds on the machine's monotonic clock.
        rank: Whom it concerns.
        kind: What happened.
        detail: JSON object with whatever the kind carries.
        payload: Bytes that travelled with it; never written to artifacts, never unpickled here.
    """

    at_s: float
    rank: int
    kind: EventKind
    detail: Mapping[str, Any] = field(default_factory=dict)
    payload: bytes = b""

    def to_json(self, *, origin_s: float) -> dict[str, Any]:
        """Return a JSON object with the time counted from `origin_s`, without the payload."""
        return {
            "at_s": round(self.at_s - origin_s, 6),
            "rank": self.rank,
            "kind": self.kind,
            "detail": dict(self.detail),
        }


@dataclass(frozen=True, slots=True)
class ExitStatus:
    """How a process ended.

    Attributes:
        code: Exit code, None when a signal ended it.
        signal: Signal number, None when it exited.
        cpu_s: User and system seconds of it and its reaped children.
        peak_rss_bytes: Largest resident set.
    """

    code: int | None
    signal: int | None
    cpu_s: float
    peak_rss_bytes: int
