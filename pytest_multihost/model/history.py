"""What each rank has entered in a group of ranks, in order, and where these orders part."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from pytest_multihost.model.operation import GroupKey, Operation
from pytest_multihost.model.stack import Frame, innermost_user_frame

Evidence = Literal[
    "operations",  # they entered operations that cannot match
    "lines",  # they entered one operation from lines that belong to different ways
    "counts",  # some did not enter what others did
    "details",  # they entered one operation with different details
]
"""What shows that ranks have parted."""


@dataclass(frozen=True, slots=True)
class CallSite:
    """A collective as one line of a rank enters it; see `Operation`.

    Attributes:
        frames: Whence it was called, innermost first; of a slot page the user's line alone.
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
        rank: The rank.
        group: The group.
        first: The sequence of the oldest one that is known.
        sites: From where they were entered, each once.
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
        """Return from where a collective was entered; None if it was not, or is not known."""
        is_known = self.first <= sequence <= self.last
        return self.sites[self.order[sequence - self.first]] if is_known else None

    def time_s(self, sequence: int) -> float:
        """Return when a collective that is known began."""
        return self.times_s[sequence - self.first]

    def operation(self, sequence: int) -> Operation | None:
        """Return a collective as an operation that is over; None as for `site`."""
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
        ranks: The ranks.
        operation: What they entered; None: they did not enter this collective of the group.
        frame: The user's line.
        through: Where that line is the same on another side, the outermost line that differs.
        count: How often they had entered it from there, this time included; of ranks that did not
            enter it, how often they had entered what the others did. None if unknown.
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
        group: The group.
        common: How many collectives its ranks have in common before.
        evidence: What shows it.
        at_s: When the first rank entered what the others did not, on the monotonic clock.
        sides: What the ranks did there, the smallest side first.
        lasts: What ranks have entered at the places where histories end.
    """

    group: GroupKey
    common: int
    evidence: Evidence
    at_s: float
    sides: tuple[Side, ...]
    lasts: tuple[Side, ...] = field(default=())

    @property
    def minority(self) -> tuple[int, ...]:
        """All ranks but those of the largest side; none if two sides are as large."""
        if not self.sides:
            return ()
        *fewer, most = sorted(self.sides, key=lambda each: len(each.ranks))
        if not fewer or len(fewer[-1].ranks) == len(most.ranks):
            return ()
        return tuple(sorted(rank for each in fewer for rank in each.ranks))

    def operations(self, rank: int) -> tuple[Operation, ...]:
        """Return what is told here of a rank."""
        sides = (each for each in (*self.sides, *self.lasts) if rank in each.ranks)
        return tuple(each.operation for each in sides if each.operation is not None)
