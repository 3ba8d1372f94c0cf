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
from pytest_multihost.watch.slots import Call

Function = Callable[..., Any]


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
        calls: Prepared, by name, root, peer and tag.
    """

    recorder: Recorder
    members: Ranks
    ordinal: int
    is_ours: bool
    pg: weakref.ref[Any]
    calls: dict[object, tuple[Call, Iterator[int]]] = field(default_factory=dict)

    @property
    def key(self) -> GroupKey:
        """What it is called on all ranks."""
        return tuple(sorted(self.members)), self.ordinal, ""

    def call(
        self, name: str, kind: OperationKind, *, peer: int = -1, root: int = -1, tag: int = 0
    ) -> tuple[Call, Iterator[int]]:
        """Return what notes an operation, and what tells its sequence.

        Args:
            name: As users call it.
            kind: Who must do something for it to end.
            peer: The other member, by its number in the group; -1: any, or none.
            root: The same of the member that sends or receives for all.
            tag: Tells transfers apart.
        """
        key = name, peer, root, tag
        found = self.calls.get(key)
        if found is None:
            page = self.recorder.page
            if self.is_ours:
                peer, root = (each if each < 0 else self.members[each] for each in (peer, root))
                call = page.call(name, kind, page.group(*self.key), peer=peer, root=root)
            else:
                call = page.call(name, "wait", page.group(self.recorder.everybody))
            counts_itself = kind == "collective" and self.is_ours
            sequence = itertools.repeat(0) if counts_itself else itertools.count(1)
            found = self.calls.setdefault(key, (call, sequence))
        return found


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
