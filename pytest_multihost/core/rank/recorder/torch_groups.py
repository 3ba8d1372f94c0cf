"""The process groups of torch: their ranks, and the keys that identify them on all ranks."""

from __future__ import annotations

import itertools
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import update_wrapper
from types import ModuleType
from typing import Any

from pytest_multihost.core.model.event import now_ns
from pytest_multihost.core.model.memberships import complete_key, member_key
from pytest_multihost.core.model.operation import RUNTIME_SCOPE, GroupKey, OperationKind, Scope
from pytest_multihost.core.rank.recorder.recorder import Ranks, Recorder
from pytest_multihost.core.slots import Call
from pytest_multihost.core.torch_private import uses_nccl

ProcessGroup = Any
Work = Any  # an operation that runs while the thread that began it continues
Argument = Any  # an argument of a function: a store, a tensor or a sequence of these
"""Objects of torch, which the type checker does not know."""

Function = Callable[..., Any]
Prepared = tuple[Call, Iterator[int]]
"""The call that all records of an operation share, and the sequence of its records."""


@dataclass(slots=True, eq=False)
class Group:
    """A process group.

    Attributes:
        members: torch's ranks, by their number in the group.
        ordinal: Its number among the groups with these members.
        torch_world: Empty if torch's ranks are this world's. Else the name of the group in which
            they are numbers; see `Memberships`.
        is_for_cpu: Whether the caller requested gloo for it.
        prepared: Prepared operations, by name, root or peer, and tag.
    """

    recorder: Recorder
    members: Ranks
    ordinal: int
    torch_world: str
    pg: weakref.ref[ProcessGroup]
    is_for_cpu: bool = False
    prepared: dict[tuple[str, int, int], Prepared] = field(default_factory=dict)

    @property
    def key(self) -> GroupKey:
        """The key that identifies the group on all ranks.

        torch's `pg_id` is not such a key: it counts the groups that one rank has made, so two ranks
        with different other groups give the same group different numbers.
        """
        scope = Scope(RUNTIME_SCOPE.kind, self.torch_world)
        return tuple(sorted(self.members)), self.ordinal, scope

    def prepare(self, name: str, kind: OperationKind, other: int = -1, tag: int = 0) -> Prepared:
        """Prepare an operation, once.

        Args:
            kind: Determines which ranks must act for it to end.
            other: The number in the group of a collective's root or a transfer's peer; -1: none.
        """
        page, number = self.recorder.page, self.recorder.page.group(*self.key)
        rank = self.members[other] if other >= 0 else -1
        peer, root = (rank, -1) if kind == "transfer" else (-1, rank)
        call = page.call(
            name, kind, number, peer=peer, root=root, tag=tag, is_for_cpu=self.is_for_cpu
        )
        # The page counts collectives.
        sequence = itertools.repeat(0) if kind == "collective" else itertools.count(1)
        return self.prepared.setdefault((name, other, tag), (call, sequence))


@dataclass(slots=True, eq=False)
class Groups:
    """The process groups of this rank, by the address of torch's object, as long as it lives.

    Attributes:
        on_nccl: Called when one of NCCL is added.
    """

    recorder: Recorder
    module: ModuleType  # torch.distributed.distributed_c10d
    on_nccl: Callable[[], None]
    known: dict[int, Group] = field(default_factory=dict)
    _ordinals: Counter[tuple[Ranks, str]] = field(default_factory=Counter)

    def get(self, pg: ProcessGroup) -> Group:
        """Return the group of torch's object."""
        return self.known.get(id(pg)) or self.register(pg)

    def register(
        self,
        pg: ProcessGroup,
        ordinal: int | None = None,
        *,
        parent: ProcessGroup | None = None,
        is_for_cpu: bool = False,
    ) -> Group:
        """Add a process group that torch has made from another one.

        Args:
            ordinal: Its ordinal, if it was counted before it was made.
            parent: That other group; by default the default group.
        """
        known = self.known.get(id(pg))
        if known is not None:
            return known
        recorder, members = self.recorder, tuple(self.module.get_process_group_ranks(pg))
        parent = self.default if parent is None else parent
        if parent is pg or parent is None:
            has_ranks = recorder.is_numbered(pg.rank(), pg.size()) and parent is pg
            torch_world = ""
        else:  # a group that a program has made without another one has numbers of its own
            made_from = self.get(parent)
            has_ranks = members[pg.rank()] == made_from.members[parent.rank()]
            torch_world = made_from.torch_world
        if not has_ranks:
            return self.register_numbered(pg, self.new_name())
        return self._add(pg, members, torch_world, ordinal, is_for_cpu=is_for_cpu)

    def register_numbered(self, pg: ProcessGroup, name: str) -> Group:
        """Add a process group whose members have numbers of their own.

        Args:
            name: The name that its members have agreed on.
        """
        size = pg.size()
        self.declare(pg.rank(), size, name)
        group = self._add(pg, tuple(range(size)), name, None)
        self.recorder.page.group(*group.key)  # as made and not used
        return group

    def _add(
        self,
        pg: ProcessGroup,
        members: Ranks,
        torch_world: str,
        ordinal: int | None,
        *,
        is_for_cpu: bool = False,
    ) -> Group:
        if ordinal is None:
            ordinal = self.next_ordinal(members, torch_world)
        address = id(pg)

        def forget(_: object) -> None:
            self.known.pop(address, None)

        if uses_nccl(self.module, pg):
            self.on_nccl()
        reference = weakref.ref(pg, forget)
        group = Group(self.recorder, members, ordinal, torch_world, reference, is_for_cpu)
        return self.known.setdefault(address, group)

    def declare(self, number: int, size: int, name: str) -> None:
        """Record this rank's number in a group."""
        self.recorder.page.group(*member_key(number, size, name))

    def complete(self, size: int, name: str) -> None:
        """Record that all members of a group have met, by the name on which they have agreed."""
        self.recorder.page.group(*complete_key(size, name))

    def next_ordinal(self, members: Sequence[int], torch_world: str = "") -> int:
        """Count one more group with these members, and return its ordinal.

        All members make their groups in the same order, so they count alike.
        """
        key = tuple(sorted(members)), torch_world
        ordinal = self._ordinals[key]
        self._ordinals[key] += 1
        return ordinal

    @property
    def default(self) -> ProcessGroup:
        """The default group of torch, or None."""
        return self.module.group.WORLD

    def new_name(self) -> str:
        """Return a name for a group. No other is equal; it sorts by the time."""
        return f"{now_ns():020d}-{self.recorder.rank}"


def copy_identity(original: Function, wrapper: Function) -> Function:
    """Make `wrapper` look like the bound method that it replaces.

    If a Python class inherits from a bound class, pybind11 looks in C++ for an overriding method,
    and finds the wrapper. To avoid endless recursion, it compares the method's name with the name
    of the calling code, so the wrapper's code must have the original name.
    """
    wrapper.__code__ = wrapper.__code__.replace(co_name=original.__name__)
    update_wrapper(wrapper, original, assigned=("__doc__", "__name__", "__qualname__"), updated=())
    return wrapper
