"""Do all members call each group the same? Compared over the store, before anything connects.

Two members that name a group differently look for each other under different keys, for as long as
the group's timeout lasts. The store is up from the start and needs no connection between ranks, so
asking there ends in any case, and can say who has not come.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

Store = Any
"""A store of torch's, which the type checker does not see."""


Entry = tuple[str, tuple[int, ...]]
"""A group: its name, and the ranks that are in it."""

_PREFIX = "pytest_multihost/prewarm"
_PRIMARY = 0


class GroupsDisagreeError(RuntimeError):
    """Members of a group do not agree on it; nothing was connected. Raised on every rank.

    Attributes:
        problems: One sentence for each group.
    """

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__(
            f"process groups were not connected: {'; '.join(problems)}. Members that call a group"
            " differently never find each other: make groups on all ranks in one order, without"
            " use_local_synchronization where ranks have made different numbers of groups."
        )
        self.problems = tuple(problems)


class RanksMissingError(TimeoutError):
    """Some ranks did not come in time; nothing was connected.

    Attributes:
        ranks: Which.
    """

    def __init__(self, ranks: Sequence[int], timeout: timedelta) -> None:
        super().__init__(
            f"process groups were not connected: {named(ranks)} did not call within"
            f" {timeout.total_seconds():g} s. All ranks of the default group must call it."
        )
        self.ranks = tuple(ranks)


def order(name: str) -> tuple[int, int, str]:
    """Return a sort key for groups that is the same on every rank that calls the group so.

    torch numbers the groups that all ranks make, and hashes the names of others. Ranks that walk
    their groups in one order, whichever, never wait for each other in a cycle.
    """
    return (0, int(name), "") if name.isdecimal() else (1, 0, name)


def disagreements(entries_by_rank: Mapping[int, Iterable[Entry]]) -> tuple[str, ...]:
    """Return one sentence for each group that is not the same to all of its members.

    Args:
        entries_by_rank: The groups of each rank.
    """
    names: dict[tuple[int, ...], dict[int, set[str]]] = {}
    for rank, entries in entries_by_rank.items():
        for name, members in entries:
            names.setdefault(members, {}).setdefault(rank, set()).add(name)
    return tuple(text for members in sorted(names) for text in _problem(members, names[members]))


def _problem(members: tuple[int, ...], names: Mapping[int, set[str]]) -> Iterator[str]:
    of_each = [names.get(rank, set()) for rank in members]
    common = set.intersection(*of_each)
    if any(each - common for each in of_each):
        parts = [
            f"rank {rank} {_calls(each - common)}"
            for rank, each in zip(members, of_each, strict=True)
        ]
        yield f"of the group of {named(members)}, {', '.join(parts)}"


def _calls(names: set[str]) -> str:
    if not names:
        return "has nothing like it"
    return f"says {' and '.join(repr(name) for name in sorted(names, key=order))}"


def named(ranks: Sequence[int]) -> str:
    """Return ranks in words."""
    listed = ", ".join(map(str, ranks))
    return f"ranks {listed}" if len(ranks) > 1 else f"rank {listed}"


@dataclass(frozen=True, slots=True)
class Agreement:
    """One call of all ranks, through keys of the store.

    Attributes:
        store: The default group's.
        prefix: Of the call's keys.
        rank: This one.
        size: Of the default group.
    """

    store: Store
    prefix: str
    rank: int
    size: int

    @classmethod
    def begin(cls, store: Store, rank: int, size: int) -> Agreement:
        """Begin this rank's next call; all ranks count alike, since all must call each time."""
        nth = store.add(f"{_PREFIX}/calls/{rank}", 1)
        return cls(store, f"{_PREFIX}/{nth}", rank, size)

    def agree(self, entries: Sequence[Entry], timeout: timedelta) -> None:
        """Return when all ranks have come and agree.

        Args:
            entries: This rank's groups.
            timeout: How late a rank may be.

        Raises:
            GroupsDisagreeError: They do not.
            RanksMissingError: Not all came.
        """
        self.store.set(self._entries_key(self.rank), json.dumps(entries))
        answer = f"{self.prefix}/answer"
        if self.rank == _PRIMARY:
            self.store.set(answer, json.dumps(self._compare(timeout)))
        # The primary may be late as well, and then waits for the others itself.
        if self._missing([answer], 2 * timeout):
            raise RanksMissingError([_PRIMARY], 2 * timeout)
        missing, problems = json.loads(self.store.get(answer))
        if missing:
            raise RanksMissingError(missing, timeout)
        if problems:
            raise GroupsDisagreeError(problems)

    def _compare(self, timeout: timedelta) -> tuple[list[int], tuple[str, ...]]:
        """Return who is missing, and if nobody is, on what they disagree."""
        keys = [self._entries_key(rank) for rank in range(self.size)]
        if missing := self._missing(keys, timeout):
            return [keys.index(key) for key in missing], ()
        found = {rank: json.loads(self.store.get(key)) for rank, key in enumerate(keys)}
        return [], disagreements(
            {rank: [(name, tuple(ranks)) for name, ranks in own] for rank, own in found.items()}
        )

    def _missing(self, keys: Sequence[str], timeout: timedelta) -> list[str]:
        """Return the keys that nobody has set in time.

        What a store raises then differs from store to store. A broken one raises again.
        """
        try:
            self.store.wait(list(keys), timeout)
        except RuntimeError:
            return [key for key in keys if not self.store.check([key])]
        return []

    def _entries_key(self, rank: int) -> str:
        return f"{self.prefix}/groups/{rank}"

    def report_failure(self, what: str) -> None:
        """Write why this rank did not connect, if the store can still be written."""
        with contextlib.suppress(RuntimeError):
            self.store.set(f"{self.prefix}/failure/{self.rank}", what)

    def failures(self, ranks: Iterable[int]) -> dict[int, str]:
        """Return why others did not connect, by rank."""
        found = {}
        with contextlib.suppress(RuntimeError):
            for rank in ranks:
                key = f"{self.prefix}/failure/{rank}"
                if self.store.check([key]):
                    found[rank] = self.store.get(key).decode()
        return found
