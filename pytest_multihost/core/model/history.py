"""Histories: the collectives that each rank has entered in a group, and where they part."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from pytest_multihost.core.model.operation import GroupKey, Operation
from pytest_multihost.core.model.stack import Frame, innermost_user_frame

Evidence = Literal[
    "operations",  # they entered operations that cannot match
    "lines",  # they entered one operation from lines of different code paths
    "counts",  # some did not enter a collective that others entered
    "details",  # they entered one operation with different details
]
"""The evidence that ranks have parted."""


@dataclass(frozen=True, slots=True)
class CallSite:
    """A collective as one line of a rank enters it; see `Operation`.

    Attributes:
        frames: Its stack, innermost first; from a slot page, only the user's line.
    """

    name: str
    root: int | None = None
    detail: str = ""
    frames: tuple[Frame, ...] = ()

    @property
    def frame(self) -> Frame | None:
        """The user's line; None if a library calls it in a thread of its own."""
        return innermost_user_frame(self.frames)


@dataclass(frozen=True, slots=True)
class History:
    """The last collectives that a rank has entered in a group, without gaps.

    Attributes:
        first: The sequence of the oldest known collective.
        sites: The call sites, each once.
        order: For each collective, the index of its site.
        times_s: For each, when it began, on the monotonic clock.
    """

    rank: int
    group: GroupKey
    first: int = 1
    sites: tuple[CallSite, ...] = ()
    order: tuple[int, ...] = ()
    times_s: tuple[float, ...] = ()

    @property
    def last(self) -> int:
        """The sequence of the last one; 0 if the rank has entered none."""
        return self.first + len(self.order) - 1

    def site(self, sequence: int) -> CallSite | None:
        """Return the call site of a collective; None if it was not entered, or is unknown."""
        is_known = self.first <= sequence <= self.last
        return self.sites[self.order[sequence - self.first]] if is_known else None

    def time_s(self, sequence: int) -> float:
        """Return when a known collective began."""
        return self.times_s[sequence - self.first]

    def operation(self, sequence: int) -> Operation | None:
        """Return a collective as an ended operation; None as for `site`."""
        site = self.site(sequence)
        if site is None:
            return None
        since_s = self.time_s(sequence)
        ranks, ordinal, scope = self.group
        return Operation(
            name=site.name,
            kind="collective",
            group=ranks,
            ordinal=ordinal,
            scope=scope,
            sequence=sequence,
            root=site.root,
            detail=site.detail,
            since_s=since_s,
            ended_s=since_s,
            frame=site.frame,
        )

    def count(self, until: int, is_alike: Callable[[CallSite], bool]) -> int | None:
        """Return how many of the collectives up to `until` are alike; None if not all are known."""
        if self.first > 1:
            return None
        alike = [is_alike(site) for site in self.sites]
        return sum(alike[index] for index in self.order[:until])


@dataclass(frozen=True, slots=True)
class Side:
    """Ranks that did the same where ranks parted.

    Attributes:
        operation: The operation that they entered; None: they did not enter this collective.
        frame: The user's line.
        through: The outermost line that differs, if another side has the same user's line.
        count: How often they had entered it from there, this time included; for ranks that did not
            enter it, how often they had entered the others' collective. None if unknown.
    """

    ranks: tuple[int, ...]
    operation: Operation | None = None
    frame: Frame | None = None
    through: Frame | None = None
    count: int | None = None


@dataclass(frozen=True, slots=True)
class Parting:
    """Where the histories of a group's ranks part.

    Attributes:
        common: How many collectives its ranks have in common before.
        at_s: When the first rank entered this place, on the monotonic clock.
        sides: The ranks by their action there, the smallest side first.
        lasts: The collectives at the places where histories end.
    """

    group: GroupKey
    common: int
    evidence: Evidence
    at_s: float
    sides: tuple[Side, ...]
    lasts: tuple[Side, ...] = field(default=())

    @property
    def minority(self) -> tuple[int, ...]:
        """All ranks except those of the largest side; none if two sides are equally large."""
        if not self.sides:
            return ()
        *fewer, most = sorted(self.sides, key=lambda each: len(each.ranks))
        if not fewer or len(fewer[-1].ranks) == len(most.ranks):
            return ()
        return tuple(sorted(rank for each in fewer for rank in each.ranks))

    def operations(self, rank: int) -> tuple[Operation, ...]:
        """Return the operations of a rank at the parting, and where histories end."""
        sides = (each for each in (*self.sides, *self.lasts) if rank in each.ranks)
        return tuple(each.operation for each in sides if each.operation is not None)
