"""The harness's own barrier, gather and broadcast, which go through the controller.

They never touch the runtime under test, so they work before it is up, while it hangs and after it
broke. All three work in the same way: every rank enters an operation, and when the last one has
entered, each gets its answer. If a rank can no longer enter because it failed, died or left its
test, the others get an error at once instead of waiting forever.

Operations are matched by (operation, name, how often this rank has entered it before), so a
barrier in a loop needs no counter in its name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from pytest_multihost.core.launch.frames import WireFrame
from pytest_multihost.core.model.event import ExchangeEntered
from pytest_multihost.core.model.messages import (
    CollectiveBroken,
    CollectiveComplete,
    CollectiveKey,
    ToRank,
)
from pytest_multihost.core.model.rank_names import PLAIN, Names

Answers = dict[int, WireFrame[ToRank]]
"""The frame to send to each rank."""

Entries = dict[int, tuple[CollectiveKey, bytes]]
"""Each rank's part in an operation: the key it waits for, and its contribution."""


@dataclass(slots=True)
class HarnessCollectives:
    """The operations that the ranks of one world have entered.

    Attributes:
        size: Number of ranks that may enter them.
        outside: Ranks that never do, because they run a program in place of the test.
        lost: Ranks that will never enter anything again, with the reason.
    """

    size: int
    outside: frozenset[int] = frozenset()
    names: Names = PLAIN
    lost: dict[int, str] = field(default_factory=dict)
    _inside: dict[CollectiveKey, Entries] = field(default_factory=dict)
    _alone: dict[int, bool] = field(default_factory=dict)
    _counted: dict[tuple[int, str, str], int] = field(default_factory=dict)
    _begun_at: dict[tuple[int, str, str], int] = field(default_factory=dict)

    def enter(self, rank: int, entered: ExchangeEntered, payload: bytes) -> Answers:
        """Record that `rank` entered an operation; return the answers that are due now."""
        operation, name, nth = entered.operation, entered.name, entered.nth
        self._counted[rank, operation, name] = nth + 1
        # The key under which the ranks of an operation meet.
        key = operation, name, nth - self._begun_at.get((rank, operation, name), 0)
        self._inside.setdefault(key, {})[rank] = ((operation, name, nth), payload)
        self._alone[rank] = entered.alone
        if len(self._inside[key]) == self.size:
            return _complete(key, self._inside.pop(key))
        if self.lost:
            return self._break(key, _why_lost(self.lost, self.names))
        return self._break_disagreement()

    def mark_lost(self, rank: int, why: str) -> Answers:
        """Record that `rank` will enter nothing more; return the errors that are due now."""
        if rank in self.outside:
            return {}
        self.lost.setdefault(rank, why)
        answers: Answers = {}
        for key in list(self._inside):
            answers |= self._break(key, _why_lost(self.lost, self.names))
        return answers

    def readmit(self, ranks: Iterable[int]) -> None:
        """Record that `ranks` can enter operations again: they continue with their teardown.

        Earlier entries do not count there, because after a failure some ranks have entered more
        operations than others.
        """
        for rank in ranks:
            self.lost.pop(rank, None)
        self._begun_at = dict(self._counted)

    def _break(self, key: CollectiveKey, why: str) -> Answers:
        happened = f"{_name(key)} can never complete: {why}"
        return {
            rank: WireFrame(CollectiveBroken(own_key, happened))
            for rank, (own_key, _) in self._inside.pop(key).items()
        }

    def _break_disagreement(self) -> Answers:
        """Release all ranks if all wait, but not for the same operation.

        A rank with a second thread may still enter the others' operation. Then nothing is proven,
        and the world's deadline decides.
        """
        waiting = {rank: key for key, ranks in self._inside.items() for rank in ranks}
        if len(waiting) < self.size or not all(self._alone[rank] for rank in waiting):
            return {}
        places = sorted(waiting.items())
        why = "; ".join(f"{self.names.rank(rank)} is in {_name(key)}" for rank, key in places)
        answers: Answers = {}
        for key in list(self._inside):
            answers |= self._break(key, f"all ranks wait, each for something else: {why}")
        return answers


def _name(key: CollectiveKey) -> str:
    operation, name, _ = key
    return f"{operation} {name!r}" if name else operation


def _complete(key: CollectiveKey, entries: Entries) -> Answers:
    contributors = {"barrier": (), "broadcast": (min(entries),), "gather": sorted(entries)}[key[0]]
    parts = [entries[rank][1] for rank in contributors]
    sizes = tuple(map(len, parts))
    return {
        rank: WireFrame(CollectiveComplete(own_key, sizes), b"".join(parts))
        for rank, (own_key, _) in entries.items()
    }


def _why_lost(lost: Mapping[int, str], names: Names) -> str:
    return "; ".join(f"{names.rank(rank)} {why}" for rank, why in sorted(lost.items()))
