"""What the engine asks of whoever watches a world."""

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
    """What a watch has to tell of a world at last."""

    snapshots: tuple[WorldSnapshot, ...] = ()
    operations: tuple[Operations, ...] = ()
    progress_s: float | None = None


class Watch(Protocol):
    """Looks at one world from outside, without touching it."""

    @property
    def interval_s(self) -> float:
        """How often it wants to look."""

    def check(self, now: float, facts: Sequence[RankFacts], *, deadline_s: float) -> Ground | None:
        """Look at the ranks; return what shows that the world hangs, if anything does.

        Args:
            now: The time.
            facts: What the ranks have told.
            deadline_s: When the world will be ended in any case.
        """

    def note_failure(self, now: float, facts: Sequence[RankFacts]) -> None:
        """Keep where every rank stands: one of them has just raised or died."""

    def has_settled(self, now: float, facts: Sequence[RankFacts]) -> bool:
        """Whether, after a raise, nobody gets on any more: the others are seen to wait."""

    def close(self, now: float, facts: Sequence[RankFacts]) -> Observations:
        """Look a last time, before the ranks are ended, and return everything."""


@dataclass(frozen=True, slots=True)
class NoWatch:
    """Sees nothing: hangs are told by the deadline alone."""

    interval_s: float = 1.0

    def check(self, now: float, facts: Sequence[RankFacts], *, deadline_s: float) -> Ground | None:
        """See nothing."""

    def note_failure(self, now: float, facts: Sequence[RankFacts]) -> None:
        """Keep nothing."""

    def has_settled(self, now: float, facts: Sequence[RankFacts]) -> bool:  # noqa: ARG002 - Watch
        """Nothing is known."""
        return False

    def close(self, now: float, facts: Sequence[RankFacts]) -> Observations:  # noqa: ARG002 - Watch
        """Have nothing to tell."""
        return Observations()
