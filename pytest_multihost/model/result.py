"""What happened to one world: facts only, nothing judged."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from pytest_multihost.model.event import Event
from pytest_multihost.model.operation import Operations
from pytest_multihost.model.snapshot import RankSnapshot, WorldSnapshot
from pytest_multihost.model.spec import WorldSpec
from pytest_multihost.model.stack import Dump

Ending = Literal[
    "self",  # every rank left when told to
    "overrun",  # the test's deadline passed
    "startup-overrun",  # not all ranks were ready in time
    "settled",  # after a failure or death the others had their grace
    "proof",  # no wait in the world could end before the deadline
    "mismatch",  # ranks were in operations that can never match
    "stopped",  # somebody else stopped a rank
    "lost",  # the harness itself broke: no server, no ranks
    "interrupted",  # Ctrl-C in the controller
]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldResult:
    """One attempt of one test, as it was observed.

    Attributes:
        spec: What it was to be.
        launch: The way of launching.
        started_at: UTC time, ISO 8601.
        started_s: The same moment on the monotonic clock that the history uses.
        ended_s: When nothing of it was left.
        history: Everything observed, in the order of arrival.
        ending: Why it ended.
        reason: The harness's own words where it ended the world, else None.
        dumps: Stacks of the ranks, taken before they were ended.
        snapshots: What was seen of the ranks from outside: at the first trouble, and at last.
        operations: What was on each rank's slot page at last.
        progress_s: When a rank was last seen to get on, on the monotonic clock.
        detected_s: When the end was decided, for an ending that the harness chose.
        leftovers: Command lines of processes that ranks had left behind.
        last_words: For ranks that died, the end of their log.
    """

    spec: WorldSpec
    launch: str
    started_at: str
    started_s: float
    ended_s: float
    history: tuple[Event, ...]
    ending: Ending
    reason: str | None = None
    dumps: tuple[Dump, ...] = ()
    snapshots: tuple[WorldSnapshot, ...] = ()
    operations: tuple[Operations, ...] = ()
    progress_s: float | None = None
    detected_s: float | None = None
    leftovers: tuple[str, ...] = ()
    last_words: Mapping[int, str] = field(default_factory=dict)

    def with_events(self, events: Iterable[Event]) -> WorldResult:
        """Return the result with more events, in order of time among those of their rank."""
        history = list(self.history)
        for new in events:
            later = (i for i, e in enumerate(history) if e.rank == new.rank and e.at_s > new.at_s)
            history.insert(next(later, len(history)), new)
        return replace(self, history=tuple(history))

    @property
    def last_snapshot(self) -> WorldSnapshot | None:
        """What was seen of the world at last."""
        return self.snapshots[-1] if self.snapshots else None

    @property
    def last_seen(self) -> Mapping[int, RankSnapshot]:
        """What was seen of each rank at last; empty where nothing was."""
        return {each.rank: each for each in self.snapshots[-1].ranks} if self.snapshots else {}
