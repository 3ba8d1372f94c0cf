"""The watchdog: looks at a world's ranks from outside until it hangs or ends.

It sees slot pages and /proc, and touches nothing. What it has seen goes into sightings; whether
they prove anything is decided by pure functions.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pytest_multihost.analysis.facts import RankFacts
from pytest_multihost.analysis.standings import quick_standings
from pytest_multihost.analysis.waits import find_waits
from pytest_multihost.model.operation import Operations
from pytest_multihost.model.sighting import RankSighting, Sighting, Why
from pytest_multihost.watch.slots import read_slots, slots_path
from pytest_multihost.watch.watch import Ground, Observed

LOOK_S = 0.5
"""How often the world is looked at."""

_KEPT = 4
"""How many of the last looks are kept."""


@dataclass(slots=True)
class Watchdog:
    """A watch on one world.

    Attributes:
        scratch: The world's directory, where its slot pages lie.
        size: Number of ranks.
    """

    scratch: Path
    size: int
    interval_s: float = LOOK_S
    _trouble: Sighting | None = None
    _looks: deque[Sighting] = field(default_factory=lambda: deque(maxlen=_KEPT))
    _operations: tuple[Operations, ...] = ()
    _progress_s: float = 0.0
    _clashed_s: float | None = None
    _looked_s: float = 0.0

    def look(self, now: float, facts: Sequence[RankFacts], *, deadline_s: float) -> Ground | None:
        """Look at the ranks; return what shows that the world hangs, if anything does."""
        del deadline_s
        if now < self._looked_s + LOOK_S:
            return None
        has_progressed = self._see(now, facts, "tick")
        if has_progressed or not self._clashes():
            self._clashed_s = None
        elif self._clashed_s is None:
            self._clashed_s = now
        else:
            return "mismatch"
        return None

    def note_trouble(self, now: float, facts: Sequence[RankFacts]) -> None:
        """Keep where every rank stands: one of them has just raised or died."""
        if self._trouble is None:
            self._see(now, facts, "trouble")
            self._trouble = self._looks.pop()

    def is_over(self, now: float, facts: Sequence[RankFacts]) -> bool:
        """Whether, after a raise, nobody gets on any more: the others are seen to wait."""
        if now < self._looked_s + LOOK_S:
            return False
        has_progressed = self._see(now, facts, "tick")
        rest = [each.rank for each in facts if not each.is_past_body]
        waits = {each.rank for each in quick_standings(self._operations) if each.pending}
        return not has_progressed and bool(rest) and waits.issuperset(rest)

    def close(self, now: float, facts: Sequence[RankFacts]) -> Observed:
        """Look a last time, before the ranks are ended, and return everything."""
        self._see(now, facts, "end")
        trouble = (self._trouble,) if self._trouble is not None else ()
        return Observed((*trouble, *self._looks), self._operations, self._progress_s or None)

    def _see(self, now: float, facts: Sequence[RankFacts], why: Why) -> bool:
        """Take a sighting; return whether any rank has got on since the last one."""
        self._looked_s = now
        self._operations = tuple(
            read_slots(slots_path(self.scratch, rank), rank=rank) for rank in range(self.size)
        )
        ranks = tuple(_seen(each) for each in self._operations)
        self._looks.append(Sighting(at_s=now, why=why, ranks=ranks))
        progress_s = max(map(_last_step_s, self._operations), default=0.0)
        progress_s = max([progress_s, *(_last_word_s(each) for each in facts)])
        has_progressed = progress_s > self._progress_s
        self._progress_s = max(self._progress_s, progress_s)
        return has_progressed

    def _clashes(self) -> bool:
        waits = find_waits(quick_standings(self._operations))
        clashing = {wait.rank for wait in waits if wait.clashes}
        return any(wait.clashes and wait.missing & clashing for wait in waits)


def _seen(operations: Operations) -> RankSighting:
    return RankSighting(
        rank=operations.rank,
        operations=operations.open,
        entered=tuple(operations.entered.items()),
    )


def _last_step_s(operations: Operations) -> float:
    """Return when a rank last began, began to wait for, or ended an operation."""
    moments = (
        moment
        for each in operations.recent
        for moment in (each.since_s, each.waited_s, each.ended_s)
        if moment is not None
    )
    return max(moments, default=0.0)


def _last_word_s(facts: RankFacts) -> float:
    """Return when a rank last told of something, or died."""
    return facts.heard_s if facts.exited_s is None or facts.was_ended else facts.exited_s
