"""What a rank does that needs other ranks: collectives, transfers, barriers, waits for a store.

And how a group of ranks is written for the reader.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeVar

from pytest_multihost.model.stack import Frame

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

OperationKind = Literal[
    "collective",  # every member of the group must enter it
    "transfer",  # one other rank must do its part: send, receive
    "wait",  # somebody, unknown who, must provide something: a key of a store
]

OWN_SCOPE = "operation "
"""How the scope of an operation of the user's own begins."""

SOCKET_SCOPE = "socket"
"""The scope of a wait for somebody to connect, who may be none of the ranks."""

PROGRAM_SCOPE = "program "
"""How the scope begins by which a rank notes what programs of jax run on; the user's line that
started them follows. Nothing is entered there: the count says which was started last."""

GroupKey = tuple[tuple[int, ...], int, str]
"""Members, ordinal and scope of a group."""

FLIGHT_SCOPE = "flight-recorder"
"""The scope of what torch's flight recorder tells: it counts what our own records do not see, and
so counts apart."""

WORLD_GROUP = "world group"


def group_name(group: Sequence[int], world_size: int, ordinal: int = 0) -> str:
    """Return what the reader calls a group of ranks: ``world group``, ``group 0,2``.

    Args:
        group: Its members.
        world_size: Ranks of the world.
        ordinal: How many groups of the same members were made before it.
    """
    is_world = tuple(group) == tuple(range(world_size)) and ordinal == 0
    return WORLD_GROUP if is_world else f"group {','.join(map(str, group))}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One operation of one rank.

    Two ranks are in the same collective when `scope`, `group`, `ordinal` and `sequence` agree.

    Attributes:
        name: As the runtime's users call it: ``all_reduce``, ``send``, ``store.wait``.
        kind: Who must do something for it to end.
        group: Ranks that take part, ascending; of a wait, all ranks of the world.
        ordinal: Which of the groups with these members: 0 for the first that was made. The default
            group and one with the same members are told apart by it.
        has_members: Whether it is known that `group` takes part, and not only a part of it.
        scope: Whose groups these are: empty for the runtime's, ``harness``, or what else tells
            operations apart that never meet, such as a coordination service's barrier by its id.
        sequence: Which collective of the group, transfer with this peer, or wait: 1 is the first; 0
            where that is not known.
        peer: The other rank of a transfer.
        tag: Of a transfer: only one with the same tag can be its other side.
        root: The rank that sends or receives for all, where the collective has one.
        detail: What tells operations of one name apart for the reader: shapes, a key, a tag. Never
            grounds for a judgement.
        since_s: When it began, on the monotonic clock.
        ended_s: When it was over; None while it is open.
        waited_s: Since when a thread waits for its end; None for work that only runs beside.
        failed: Whether it was left by an exception.
        error: By which, in one line; empty where that is not known.
        timeout_s: After how many seconds it gives up, as its caller has set; None: unknown.
        thread: Native id of the thread that began it, or waits for it.
        frame: The user's line that began it, or waits for it.
        source: Who tells: ``recorder``, ``flight-recorder``, ``native-frames``, ``harness``, or the
            kernel: ``proc``.
    """

    name: str
    kind: OperationKind
    group: tuple[int, ...]
    sequence: int
    since_s: float
    ordinal: int = 0
    has_members: bool = True
    scope: str = ""
    peer: int | None = None
    tag: int = 0
    root: int | None = None
    detail: str = ""
    ended_s: float | None = None
    waited_s: float | None = None
    failed: bool = False
    error: str = ""
    timeout_s: float | None = None
    thread: int = 0
    frame: Frame | None = None
    source: str = "recorder"

    @property
    def is_open(self) -> bool:
        """Whether it has not ended."""
        return self.ended_s is None

    @property
    def group_key(self) -> GroupKey:
        """What is the same for this group on all of its members."""
        return self.group, self.ordinal, self.scope

    @property
    def place(self) -> tuple[GroupKey, int]:
        """Where it is in the sequence of its group: the same on all of its members."""
        return self.group_key, self.sequence

    @property
    def is_own(self) -> bool:
        """Whether it is of the user's own: nobody knows what it does beside waiting."""
        return self.scope.startswith(OWN_SCOPE)

    @property
    def gives_up_s(self) -> float:
        """When it gives up by itself, on the monotonic clock."""
        return math.inf if self.timeout_s is None else self.since_s + self.timeout_s

    def describe(self, world_size: int, *, names_world: bool = True) -> str:
        """Return it as the reader knows it: ``all_reduce #3 (world group)``.

        Args:
            world_size: Ranks of the world; a group of all of them has no members to list.
            names_world: Whether to say so where the group is the world's.
        """
        if self.scope == "harness":
            return f"{self.name} {self.detail!r}" if self.detail else self.name
        if self.kind == "wait":
            return f"{self.name} {self.detail}".rstrip()
        words = f"{self.name} #{self.sequence}" if self.sequence else self.name
        if self.kind == "transfer" or self.is_own:
            return words
        if self.scope:
            return f"{self.name} {self.detail}".rstrip()
        group = group_name(self.group, world_size, self.ordinal)
        return words if group == WORLD_GROUP and not names_world else f"{words} ({group})"


@dataclass(frozen=True, slots=True)
class Operations:
    """What a rank's slot page holds at one instant.

    Attributes:
        rank: Whose page.
        recent: The last operations that began, oldest first, the open ones among them.
        entered: For each group the sequence of the last collective that the rank has entered; a
            group that it has made and not used has 0.
    """

    rank: int
    recent: tuple[Operation, ...] = ()
    entered: Mapping[GroupKey, int] = field(default_factory=dict)

    @property
    def open(self) -> tuple[Operation, ...]:
        """The operations that have not ended."""
        return tuple(each for each in self.recent if each.is_open)


def program_scope(file: str, line: int) -> str:
    """Return the scope by which a rank notes programs that the user's line has started."""
    return f"{PROGRAM_SCOPE}{file}:{line}"


def rank_set(ranks: Iterable[int]) -> str:
    """Return ranks as a reader writes them: "rank 3", "ranks 0-2,5"."""
    numbers = sorted(set(ranks))
    return f"rank{'' if len(numbers) == 1 else 's'} {rank_numbers(numbers)}"


def rank_numbers(ranks: Iterable[int]) -> str:
    """Return the numbers alone: "3", "0-2,5"."""
    return ",".join(_span(first, last) for first, last in spans(sorted(set(ranks))))


def spans(ranks: Iterable[int]) -> list[list[int]]:
    """Return ascending ranks as spans, each its first and its last."""
    found: list[list[int]] = []
    for rank in ranks:
        if found and found[-1][1] == rank - 1:
            found[-1][1] = rank
        else:
            found.append([rank, rank])
    return found


def group_by_value(pairs: Iterable[tuple[K, V]]) -> dict[K, list[V]]:
    """Return what belongs to equal keys together, in the order in which the keys were met.

    Mostly ranks to which the same applies, because equal things are told once.
    """
    groups: dict[K, list[V]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return groups


def _span(first: int, last: int) -> str:
    if first == last:
        return str(first)
    return f"{first},{last}" if last == first + 1 else f"{first}-{last}"
