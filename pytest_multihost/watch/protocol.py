"""What the engine asks of whatever watches a world."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from pytest_multihost.model.operation import Operations
from pytest_multihost.model.snapshot import WorldSnapshot
from pytest_multihost.outcome import RankFacts

Ground = Literal["proof", "mismatch", "stopped"]
"""What shows, before the deadline, that a world hangs."""


@dataclass(frozen=True, slots=True)
class Observations:
    """What a watch has observed of a world, as far as it has kept it.

    Attributes:
        snapshots: Oldest first: at the first failure if there was one, the last ones, the end.
        operations: All operations that the ranks' slot pages still have.
        progress_s: When a rank last made progress; None where that is not known.
    """

    snapshots: tuple[WorldSnapshot, ...] = ()
    operations: tuple[Operations, ...] = ()
    progress_s: float | None = None


class Watch(Protocol):
    """Observes one world from outside, without touching it."""

    @property
    def interval_s(self) -> float:
        """How soon the next `check` is due."""

    def check(self, now: float, facts: Sequence[RankFacts], *, deadline_s: float) -> Ground | None:
        """Take a snapshot if it is due; return what shows that the world hangs, if anything does.

        Args:
            now: The time.
            facts: What is known of the ranks from their events.
            deadline_s: When the world will be ended in any case.
        """

    def note_failure(self, now: float, facts: Sequence[RankFacts]) -> None:
        """Keep a snapshot: a rank has just raised or died."""

    def has_settled(self, now: float, facts: Sequence[RankFacts]) -> bool:
        """Return whether, after a raise, no rank makes progress any more: the others wait."""

    def close(self, now: float, facts: Sequence[RankFacts]) -> Observations:
        """Take the last snapshots, before the ranks are ended, and return everything."""


@dataclass(frozen=True, slots=True)
class NoWatch:
    """Observes nothing: only the deadline ends a world that hangs."""

    interval_s: float = 1.0

    def check(self, now: float, facts: Sequence[RankFacts], *, deadline_s: float) -> Ground | None:
        """Return None: nothing is known."""

    def note_failure(self, now: float, facts: Sequence[RankFacts]) -> None:
        """Keep nothing."""

    def has_settled(self, now: float, facts: Sequence[RankFacts]) -> bool:  # noqa: ARG002 - Watch
        """Return False: nothing is known."""
        return False

    def close(self, now: float, facts: Sequence[RankFacts]) -> Observations:  # noqa: ARG002 - Watch
        """Return nothing."""
        return Observations()
