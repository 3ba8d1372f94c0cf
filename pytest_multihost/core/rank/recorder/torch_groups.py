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

from pytest_multihost.core.model.operation import RUNTIME_SCOPE, GroupKey, OperationKind
from pytest_multihost.core.rank.recorder.recorder import Ranks, Recorder
from pytest_multihost.core.slots import Call

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
        members: Ranks of this world, by their number in the group.
        ordinal: Its number among the groups with these members.
        is_of_world: Whether torch's ranks are this world's. If a test has made a smaller torch
            world, the mapping of ranks is unknown, and operations are recorded as waits.
        is_for_cpu: Whether the caller requested gloo for it.
        prepared: Prepared operations, by name, root or peer, and tag.
    """

    recorder: Recorder
    members: Ranks
    ordinal: int
    is_of_world: bool
    pg: weakref.ref[ProcessGroup]
    is_for_cpu: bool = False
    prepared: dict[tuple[str, int, int], Prepared] = field(default_factory=dict)

    @property
    def key(self) -> GroupKey:
        """The key that identifies the group on all ranks.

        torch's `pg_id` is no such key: it counts the groups that one rank has made, so two ranks
        with different other groups give the same group different numbers.
        """
        return tuple(sorted(self.members)), self.ordinal, RUNTIME_SCOPE

    def prepare(self, name: str, kind: OperationKind, other: int = -1, tag: int = 0) -> Prepared:
        """Prepare an operation, once.

        Args:
            name: torch's name for it.
            kind: Determines which ranks must act for it to end.
            other: The number in the group of a collective's root or a transfer's peer; -1: none.
            tag: The tag of a transfer.
        """
        page, sequence = self.recorder.page, itertools.count(1)
        if not self.is_of_world:
            call = page.call(name, "wait", page.group(self.recorder.all_ranks))
        else:
            rank = self.members[other] if other >= 0 else -1
            peer, root = (rank, -1) if kind == "transfer" else (-1, rank)
            number, is_for_cpu = page.group(*self.key), self.is_for_cpu
            call = page.call(
                name, kind, number, peer=peer, root=root, tag=tag, is_for_cpu=is_for_cpu
            )
        if self.is_of_world and kind == "collective":  # the page counts them
            return self.prepared.setdefault((name, other, tag), (call, itertools.repeat(0)))
        return self.prepared.setdefault((name, other, tag), (call, sequence))


@dataclass(slots=True, eq=False)
class Groups:
    """The process groups of this rank, by the address of torch's object, as long as it lives."""

    recorder: Recorder
    module: ModuleType  # torch.distributed.distributed_c10d
    known: dict[int, Group] = field(default_factory=dict)
    _ordinals: Counter[Ranks] = field(default_factory=Counter)

    def get(self, pg: ProcessGroup) -> Group:
        """Return the group of torch's object."""
        return self.known.get(id(pg)) or self.register(pg)

    def register(
        self, pg: ProcessGroup, ordinal: int | None = None, *, is_for_cpu: bool = False
    ) -> Group:
        """Add a process group.

        Args:
            ordinal: Its ordinal, if it was counted before it was made.
        """
        known = self.known.get(id(pg))
        if known is not None:
            return known
        members = tuple(self.module.get_process_group_ranks(pg))
        if ordinal is None:
            ordinal = self.next_ordinal(members)
        address = id(pg)

        def forget(_: object) -> None:
            self.known.pop(address, None)

        of_world, reference = self.is_of_world, weakref.ref(pg, forget)
        group = Group(self.recorder, members, ordinal, of_world, reference, is_for_cpu)
        return self.known.setdefault(address, group)

    def next_ordinal(self, members: Sequence[int]) -> int:
        """Count one more group with these members, and return its ordinal.

        All members make their groups in the same order, so they count alike.
        """
        key = tuple(sorted(members))
        ordinal = self._ordinals[key]
        self._ordinals[key] += 1
        return ordinal

    @property
    def default(self) -> ProcessGroup:
        """The default group of torch, or None."""
        return self.module.group.WORLD

    @property
    def is_of_world(self) -> bool:
        """Whether torch's ranks are this world's."""
        default = self.default
        if default is None:
            return True
        rank_and_size: tuple[int, int] = default.rank(), default.size()
        return rank_and_size == (self.recorder.rank, self.recorder.size)


def copy_identity(original: Function, wrapper: Function) -> Function:
    """Make `wrapper` look like the bound method that it replaces.

    If a Python class inherits from a bound class, pybind11 looks in C++ for an overriding method,
    and finds the wrapper. To avoid endless recursion, it compares the method's name with the name
    of the calling code, so the wrapper's code must have the original name.
    """
    wrapper.__code__ = wrapper.__code__.replace(co_name=original.__name__)
    update_wrapper(wrapper, original, assigned=("__doc__", "__name__", "__qualname__"), updated=())
    return wrapper
