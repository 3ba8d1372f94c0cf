"""Which ranks a process group of torch consists of, and what identifies it on all of them."""

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
Work = Any  # of an operation that runs beside the thread that began it
Argument = Any  # of a function: a store, a tensor or a sequence of these
"""Objects of torch's, which the type checker does not see."""

Function = Callable[..., Any]
Prepared = tuple[Call, Iterator[int]]
"""What every record of an operation holds, and what yields the operation's sequence."""


@dataclass(slots=True, eq=False)
class Group:
    """A process group.

    Attributes:
        recorder: Its page prepares the calls.
        members: Ranks of this world, by their number in the group.
        ordinal: Which of the groups with these members.
        is_of_world: Whether torch's ranks are this world's. If not - a test made a smaller torch
            world - the mapping of ranks is unknown, and an operation is recorded as a wait.
        is_for_cpu: Whether it was made for gloo by name.
        prepared: What was prepared, by name, root or peer, and tag.
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
        """What identifies it on all ranks.

        Never torch's `pg_id`, which counts the groups that one rank has made: two ranks that are
        members of different groups give the same group different numbers.
        """
        return tuple(sorted(self.members)), self.ordinal, RUNTIME_SCOPE

    def prepare(self, name: str, kind: OperationKind, other: int = -1, tag: int = 0) -> Prepared:
        """Prepare an operation, once.

        Args:
            name: As torch's users call it.
            kind: Who must do something for it to end.
            other: The number in the group of a collective's root or a transfer's peer; -1: none.
            tag: Of a transfer.
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
    """The process groups of this rank, by the address of torch's object; gone with it."""

    recorder: Recorder
    module: ModuleType  # torch.distributed.distributed_c10d
    known: dict[int, Group] = field(default_factory=dict)
    _ordinals: Counter[Ranks] = field(default_factory=Counter)

    def get(self, pg: ProcessGroup) -> Group:
        """Return what is known of a process group."""
        return self.known.get(id(pg)) or self.register(pg)

    def register(
        self, pg: ProcessGroup, ordinal: int | None = None, *, is_for_cpu: bool = False
    ) -> Group:
        """Add a process group; `ordinal` where it was counted before it was made."""
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
        """Count one more group with these members, and return which it is.

        All members make their groups in one order, so they count alike.
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

    For a Python subclass of a bound class, pybind11 looks from C++ for a method that overrides the
    C++ one, and finds the wrapper. It knows that the call came from an override, and must not go
    to it again, by the name of the calling code.
    """
    wrapper.__code__ = wrapper.__code__.replace(co_name=original.__name__)
    update_wrapper(wrapper, original, assigned=("__doc__", "__name__", "__qualname__"), updated=())
    return wrapper
