"""Operations that involve other ranks: collectives, transfers, barriers, waits for a store."""

from __future__ import annotations

import math
import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Literal, TypeVar

from pytest_multihost.core.model.child import Child
from pytest_multihost.core.model.rank_names import Names, rank_numbers
from pytest_multihost.core.model.stack import Frame

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

OperationKind = Literal[
    "collective",  # every member of the group must enter it
    "transfer",  # one other rank must do its part: send, receive
    "wait",  # an unknown rank must provide something: a key of a store
]


@dataclass(frozen=True, slots=True)
class Scope:
    """A namespace of groups: operations match only within one; in JSON it is its text.

    Attributes:
        kind: Empty for the groups of the runtime under test. Else ``harness``, ``operation`` (the
            user's own), ``program``, ``socket``, ``flight-recorder``, or another word for
            operations that never match others, such as a coordination service's barriers.
        name: Which of its kind: the operation's name, the barrier's id, the program's line. In slot
            pages also the group in which the members of a group are numbers; see `memberships`.
    """

    kind: str = ""
    name: str = ""

    @classmethod
    def parse(cls, text: str) -> Scope:
        """Return the scope with this text."""
        kind, _, name = text.partition(" ")
        return cls(kind, name)

    def __str__(self) -> str:
        """Return its text."""
        return f"{self.kind} {self.name}" if self.name else self.kind


RUNTIME_SCOPE = Scope()
HARNESS_SCOPE = Scope("harness")

SOCKET_SCOPE = Scope("socket")
"""The scope of a wait for a connection, perhaps from a process that is not a rank."""

READY_SCOPE = Scope("ready")
"""The scope of a rank's wait for another one to be ready, as its role says."""

CALLEE_SCOPE = Scope("rpc-callee")
"""The scope of a function that a rank runs for another one, in a thread of its own."""

FLIGHT_SCOPE = Scope("flight-recorder")
"""The scope of operations from torch's flight recorder. It has its own sequence numbers, because it
also counts operations that the slot page does not record."""

STORE_CLIENT = "TCPStore"
"""The operation in which a process connects to a store, or hosts it."""

STORE_KIND = "in-store"
"""The kind of the scope of waits at a store that is not the default group's. Its name says where
the store is. A rank that uses the store has entered a group in this scope, without an operation."""

BARRIER_KIND = "barrier"
"""The kind of the scope of one barrier of jax's coordination service. Its name is the id."""

REQUEST_SCOPE = Scope("group-request")
"""The scope in which a rank counts the groups that it asks for together with all other ranks. A
group's members are in the detail; the rank may be none of them."""

Payload = tuple[tuple[str, int], ...]
"""Types of tensors, each with its number of elements, or 0."""

GroupKey = tuple[tuple[int, ...], int, Scope]
"""Members, ordinal and scope of a group."""

GroupPlace = tuple[GroupKey, int]
"""A group and the number of an operation in its sequence; equal on all members."""

WORLD_GROUP = "world group"

PROGRAM_PREFIX = "jit_"
"""How the name of an operation begins that is a compiled program of jax with collectives."""

IN_LOOP, IN_BRANCH = "in a loop", "in a branch"
"""How the detail of a program calls a loop and a branch that values of each process control."""

JAX_SHUTDOWN = "jax.distributed.shutdown"
"""Name of the operation in which the processes of jax leave each other."""

KEY_WAITS = ("blocking_key_value_get", "blocking_key_value_get_bytes")
"""Names of the waits for a key of jax's coordination service."""

PROGRAM_START = "a jitted function"
"""Name of the operation in which a rank starts a program on the devices of several ranks."""


def group_name(group: Sequence[int], names: Names, ordinal: int = 0) -> str:
    """Return the reader's name of a group of ranks: ``world group``, ``2nd group 0,2``.

    Args:
        ordinal: How many groups of the same members were made before it.
    """
    # Not compared one by one: a large world asks for each of its ranks.
    is_world = len(group) == names.size and [*group[:1], *group[-1:]] == [0, names.size - 1]
    if ordinal == 0 and is_world:
        return WORLD_GROUP
    which = f"{nth(ordinal + 1)} " if ordinal else ""
    return f"{which}group {names.in_roles(group) or ','.join(map(str, group))}"


@dataclass(frozen=True, slots=True)
class Start:
    """How an operation began.

    Attributes:
        thread: Native id of the thread that began it.
    """

    thread: int
    frame: Frame | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One operation of one rank.

    Two ranks are in the same collective when `scope`, `group`, `ordinal` and `sequence` agree.

    Attributes:
        name: The runtime's name for it: ``all_reduce``, ``send``, ``store.wait``.
        kind: Which ranks must act for it to end.
        group: Ranks that take part, ascending; for a wait, all ranks of the world.
        ordinal: Which of the groups with these members: 0 for the first that was made. It
            distinguishes the default group from another with the same members.
        group_title: The program's name for the group; for the reader only, and mostly empty.
        has_members: Whether all of `group` is known to take part, not only a part of it.
        group_size: How many members its group has if they are not all known, or are not ranks; then
            `group` has the known members. 0 if the size is unknown. None if all are known.
        sequence: Which collective of the group, transfer with this peer, or wait: 1 is the first; 0
            if unknown.
        peer: The other rank of a transfer.
        tag: Tag of a transfer, which matches only a transfer with the same tag.
        root: The rank that sends or receives for all, where the collective has one.
        payload: Types of its tensors, each with its number of elements, or 0 if members need not
            agree in that; empty if unknown.
        detail: Distinguishes operations of one name for the reader: shapes, a key, a tag. Evidence
            only for the harness's own operations and for programs: the collectives of these.
        since_s: When it began, on the monotonic clock.
        ended_s: When it was over; None while it is open.
        waited_s: Since when a thread waits for its end; None for work in the background.
        failed: Whether it ended with an exception.
        error: That exception, in one line; empty if unknown.
        timeout_s: Its timeout in seconds, as its caller has set it; None: unknown.
        fails_test: Whether its error certainly fails the test: its caller has set no timeout, and
            nothing in the test handles an exception there.
        is_handed_on: Whether its end may have been noticed without a record: by a future, in C++,
            or by a test for completion.
        is_for_cpu: Whether its group asks for gloo by name, whatever the other groups use.
        thread: Native id of the thread that began it, or waits for it.
        frame: The user's line that began it, or waits for it.
        start: How it began, if another thread waits for it than began it; else None.
        source: Where this comes from: ``recorder``, ``flight-recorder``, ``native-frames``,
            ``harness``, or the kernel: ``proc``.
        child: The child process of the rank that is in it; None: the rank itself.
        medium: Its transport, if the kernel shows it: ``tcp``, ``unix``.
    """

    name: str
    kind: OperationKind
    group: tuple[int, ...]
    sequence: int
    since_s: float
    ordinal: int = 0
    group_title: str = ""
    has_members: bool = True
    group_size: int | None = None
    scope: Scope = RUNTIME_SCOPE
    peer: int | None = None
    tag: int = 0
    root: int | None = None
    payload: Payload = ()
    detail: str = ""
    ended_s: float | None = None
    waited_s: float | None = None
    failed: bool = False
    error: str = ""
    timeout_s: float | None = None
    fails_test: bool = False
    is_handed_on: bool = False
    is_for_cpu: bool = False
    thread: int = 0
    frame: Frame | None = None
    start: Start | None = None
    source: str = "recorder"
    child: Child | None = None
    medium: str = ""

    @property
    def is_open(self) -> bool:
        """Whether it has not ended."""
        return self.ended_s is None

    @property
    def group_key(self) -> GroupKey:
        """The identity of its group, equal on all members."""
        return self.group, self.ordinal, self.scope

    @property
    def place(self) -> GroupPlace:
        """Its position in the sequence of its group, equal on all members."""
        return self.group_key, self.sequence

    def is_same_as(self, other: Operation) -> bool:
        """Return whether an operation of another rank is this one: its kind, at its place.

        Transfers are counted apart from collectives, so a transfer and a collective may be the
        first of one group.
        """
        return self.kind == other.kind and self.place == other.place

    @property
    def is_of_one(self) -> bool:
        """Whether its rank is the only member: it waits for its own devices."""
        return len(self.group) == 1 and self.group_size is None

    @property
    def is_program(self) -> bool:
        """Whether it is a compiled program of jax, which may compute as well as wait."""
        return self.kind == "collective" and self.name.startswith(PROGRAM_PREFIX)

    @property
    def may_run_unlike(self) -> bool:
        """Whether it is a program that need not run the same number of collectives on each rank."""
        return self.is_program and (IN_LOOP in self.detail or IN_BRANCH in self.detail)

    @property
    def began(self) -> Start:
        """How it began."""
        return self.start or Start(self.thread, self.frame)

    @property
    def is_own(self) -> bool:
        """Whether the user declared it: its effects besides waiting are unknown."""
        return self.scope.kind == "operation"

    @property
    def gives_up_s(self) -> float:
        """When its timeout expires, on the monotonic clock."""
        return math.inf if self.timeout_s is None else self.since_s + self.timeout_s

    @property
    def title(self) -> str:
        """Its text for the reader, without its group: ``all_reduce #3``."""
        if self.scope == HARNESS_SCOPE:
            return f"{self.name} {self.detail!r}" if self.detail else self.name
        if self.scope == READY_SCOPE:
            return self.name
        is_of_runtime = self.scope in (RUNTIME_SCOPE, FLIGHT_SCOPE)
        is_numbered = self.kind == "transfer" or self.is_own or is_of_runtime
        if self.kind == "wait" or not is_numbered:
            return f"{self.name} {self.detail}".rstrip()
        tag = f" (tag {self.tag})" if self.kind == "transfer" and self.tag > 0 else ""
        return f"{self.name} #{self.sequence}{tag}" if self.sequence else f"{self.name}{tag}"

    def group_name(self, names: Names) -> str:
        """Return the reader's name of its group; empty for an operation without one."""
        is_of_runtime = self.scope in (RUNTIME_SCOPE, FLIGHT_SCOPE)
        if not is_of_runtime or self.kind in ("transfer", "wait"):
            return ""
        if self.group_size is not None:
            return f"group of {self.group_size}"
        if self.group_title:
            return f"{self.group_title} {names.in_roles(self.group) or rank_numbers(self.group)}"
        return group_name(self.group, names, self.ordinal)

    def describe(self, names: Names, *, names_world: bool = True) -> str:
        """Return its text for the reader: ``all_reduce #3 (world group)``.

        Args:
            names: The world's; a group of all of its ranks is shown without its members.
            names_world: Whether to name the group if it is the world's.
        """
        group = self.group_name(names)
        is_named = group and (names_world or group != WORLD_GROUP)
        return f"{self.title} ({group})" if is_named else self.title


@dataclass(frozen=True, slots=True)
class Operations:
    """The content of a rank's slot page at one instant.

    Attributes:
        recent: The last operations that began, oldest first, the open ones among them.
        entered: For each group the sequence of the last collective that the rank has entered; 0
            for a group that it has made and not used.
    """

    rank: int
    recent: tuple[Operation, ...] = ()
    entered: Mapping[GroupKey, int] = field(default_factory=dict)

    @property
    def open(self) -> tuple[Operation, ...]:
        """The operations that have not ended."""
        return tuple(each for each in self.recent if each.is_open)


RPC_KINDS = ("sync", "async", "async_jit", "remote")
"""How torch.distributed.rpc calls functions (RPCExecMode)."""


def rpc_name(kind: str, function: str) -> str:
    """Return the name of the operation that calls a function of another rank.

    Args:
        kind: One of `RPC_KINDS`.
    """
    return f"rpc_{kind}({function})"


@cache  # a rank asks for it at each start of a program, from the same few lines
def program_scope(file: str, line: int) -> Scope:
    """Return the scope under which a rank records the devices of jax programs, by the user's line.

    No operation is entered there: the count identifies the program that was started last.
    """
    return Scope("program", f"{file}:{line}")


def comparable(payloads: Iterable[Payload]) -> list[Payload]:
    """Return payloads so that equal ones match: without sizes if one of them has none."""
    found = [*payloads]
    if all(size for payload in found for _, size in payload):
        return found
    return [tuple((each, 0) for each, _ in payload) for payload in found]


def payload_text(payload: Payload) -> str:
    """Return the text of a payload: ``Float[8] Long[1]``."""
    return " ".join(f"{each}[{size}]" if size else each for each, size in payload)


_TENSOR = re.compile(r"(\w+)\[([\d,]*)\]")


def tensor_text(dtype: str, shape: Iterable[int], *, more: int = 0) -> str:
    """Return the detail of an operation for the first of its tensors: ``f32[2,3] +1``."""
    text = f"{dtype}[{','.join(map(str, shape))}]"
    return f"{text} +{more}" if more else text


def tensor_size(detail: str) -> tuple[str, int] | None:
    """Return the type and the number of elements of the only tensor in a detail.

    None if the detail has none, or several.
    """
    found = _TENSOR.fullmatch(detail)
    if found is None:
        return None
    return found[1], math.prod(int(each) for each in found[2].split(",") if each)


def group_by_value(pairs: Iterable[tuple[K, V]]) -> dict[K, list[V]]:
    """Return values grouped by key, in the order of the keys' first occurrence.

    Mostly used for ranks to which the same applies, so that it is reported once.
    """
    groups: dict[K, list[V]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return groups


def nth(number: int) -> str:
    """Return ``1st``, ``2nd``, ``3rd``, ``11th``."""
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{'th' if number // 10 % 10 == 1 else ending}"
