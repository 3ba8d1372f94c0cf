"""Which ranks a process group of torch consists of, and what it is called on all of them."""

from __future__ import annotations

import itertools
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import update_wrapper
from types import ModuleType
from typing import Any

from pytest_multihost.model.operation import GroupKey, OperationKind
from pytest_multihost.rank.recorder.recorder import Ranks, Recorder
from pytest_multihost.slots import Call

Function = Callable[..., Any]
Prepared = tuple[Call, Iterator[int]]
"""What notes an operation, and what tells its sequence."""


@dataclass(slots=True, eq=False)
class Group:
    """A process group.

    Attributes:
        recorder: What prepares its calls.
        members: In this world's numbers, by their number in the group.
        ordinal: Which of the groups with these members.
        is_ours: Whether its ranks are this world's. Where they are not - a test made a smaller
            torch world of its own - nobody knows who they are, and an operation is a mere wait.
        pg: torch's object.
        collectives: Prepared, by name and root.
        transfers: Prepared, by name, peer and tag.
    """

    recorder: Recorder
    members: Ranks
    ordinal: int
    is_ours: bool
    pg: weakref.ref[Any]
    collectives: dict[tuple[str, int], Prepared] = field(default_factory=dict)
    transfers: dict[tuple[str, int, int], Prepared] = field(default_factory=dict)

    @property
    def key(self) -> GroupKey:
        """What it is called on all ranks."""
        return tuple(sorted(self.members)), self.ordinal, ""

    def collective(self, name: str, root: int = -1) -> Prepared:
        """Return what notes a collective; `root` is the root's number in the group."""
        found = self.collectives.get((name, root))
        if found is None:
            found = self._prepare(name, "collective", root=root)
        return self.collectives.setdefault((name, root), found)

    def transfer(self, name: str, peer: int, tag: int) -> Prepared:
        """Return what notes a transfer; `peer` is the other's number in the group, or -1."""
        found = self.transfers.get((name, peer, tag))
        if found is None:
            found = self._prepare(name, "transfer", peer=peer)
        return self.transfers.setdefault((name, peer, tag), found)

    def _prepare(
        self, name: str, kind: OperationKind, *, peer: int = -1, root: int = -1
    ) -> Prepared:
        page = self.recorder.page
        if not self.is_ours:
            everybody = page.group(self.recorder.everybody)
            return page.call(name, "wait", everybody), itertools.count(1)
        peer, root = (each if each < 0 else self.members[each] for each in (peer, root))
        call = page.call(name, kind, page.group(*self.key), peer=peer, root=root)
        counts_itself = kind == "collective"
        return call, itertools.repeat(0) if counts_itself else itertools.count(1)


@dataclass(slots=True, eq=False)
class Groups:
    """The process groups of this rank.

    Attributes:
        recorder: What prepares their calls.
        module: `torch.distributed.distributed_c10d`.
    """

    recorder: Recorder
    module: ModuleType
    _known: dict[int, Group] = field(default_factory=dict)
    _ordinals: Counter[Ranks] = field(default_factory=Counter)

    def of(self, pg: Any) -> Group:  # noqa: ANN401 - torch is not seen by the type checker
        """Return what is known of a process group."""
        return self._known.get(id(pg)) or self.register(pg)

    def register(self, pg: Any, ordinal: int | None = None) -> Group:  # noqa: ANN401 - as above
        """Get to know a process group; `ordinal` where it was counted before it was made."""
        known = self._known.get(id(pg))
        if known is not None:
            return known
        places = self.module.get_process_group_ranks(pg)
        members = tuple(places)
        if ordinal is None:
            ordinal = self.count(members)
        address = id(pg)

        def forget(_: object) -> None:
            self._known.pop(address, None)

        group = Group(self.recorder, members, ordinal, self.is_ours, weakref.ref(pg, forget))
        return self._known.setdefault(address, group)

    def count(self, members: Sequence[int]) -> int:
        """Count one more group with these members, and return which it is."""
        key = tuple(sorted(members))
        ordinal = self._ordinals[key]
        self._ordinals[key] += 1
        return ordinal

    @property
    def default(self) -> Any:  # noqa: ANN401 - as above
        """The default group of torch, or None."""
        return self.module._world.default_pg  # noqa: SLF001 - no public way

    @property
    def is_ours(self) -> bool:
        """Whether torch's ranks are this world's."""
        default = self.default
        if default is None:
            return True
        places: tuple[int, int] = default.rank(), default.size()
        return places == (self.recorder.rank, self.recorder.size)

    def by_name(self) -> dict[str, Group]:
        """Return all groups that exist, by the name that torch has for them."""
        names = self.module._world.pg_names  # noqa: SLF001 - no public way
        return {str(name): self.of(pg) for pg, name in list(names.items())}


def pose_as(original: Function, wrapper: Function, name: str) -> Function:
    """Make `wrapper` look like the bound method that it stands for.

    A Python subclass of a bound class is asked from C++ for its own method of that name. pybind11
    then finds ours; that it was called from there it tells by the name of the calling code.
    """
    wrapper.__code__ = wrapper.__code__.replace(co_name=name)
    update_wrapper(wrapper, original, assigned=("__doc__", "__name__", "__qualname__"), updated=())
    return wrapper
