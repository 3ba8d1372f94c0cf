"""Finds the members of a job's groups by gloo's connections, where frames do not show them.

gloo connects each member of a group with all others when the group is made, and runs one thread for
each group (``gloo_tcp_loop``), whose epoll watches exactly these connections. A rank to which none
of them leads is not a member, so no rank waits for it in an operation of that group. Processes of
several programs each have a default group of their own: the first that they have made.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from pytest_multihost.core.model.operation import Operation, group_by_value
from pytest_multihost.core.model.process import KernelSnapshot, Process, Thread
from pytest_multihost.extensions.live.waits import SeenWait

_LOOP = "gloo_tcp_loop"
_GPU = "/dev/nvidia"
"""NCCL's groups have other connections, and no thread of their own that shows them."""

_MAKING = frozenset({"init_process_group", "new_group"})
"""Operations that make a group, which has no connections yet."""

_Groups = tuple[frozenset[int], ...]


def with_gloo_members(
    waits: Mapping[int, SeenWait], snapshot: KernelSnapshot
) -> Mapping[int, SeenWait]:
    """Return the waits; operations of torch's groups have only ranks that may be members.

    Args:
        snapshot: A deep snapshot of the job.
    """
    asked = {rank: found for rank, each in waits.items() if (found := _of_torch(each)) is not None}
    groups = {
        rank: _groups_of(process, snapshot)
        for rank, process in snapshot.ranks.items()
        if asked and not process.is_dead
    }
    told = dict(waits)
    alike = group_by_value(
        ((each.name, each.group_title), rank)
        for rank, each in sorted(asked.items())
        if is_of_unknown_group(each)
    )
    for rank, each in asked.items():
        ranks = alike.get((each.name, each.group_title), ())
        own = groups.get(rank, ())
        members = _default_group(own, groups) if each.has_members else _possible(ranks, groups)
        if members:
            told[rank] = replace(waits[rank], operation=replace(each, group=members))
    return told


def is_of_unknown_group(operation: Operation) -> bool:
    """Return whether neither the members nor the ranks of the job tell an operation's group."""
    return not operation.has_members and operation.group_title.endswith("some of")


def _of_torch(wait: SeenWait) -> Operation | None:
    """Return the collective of torch in which a rank waits, in the default or an unknown group."""
    found = wait.operation
    if found is None or found.kind != "collective" or wait.is_apart or found.name in _MAKING:
        return None
    return found if found.source == "python-frames" else None


def _default_group(own: _Groups, groups: Mapping[int, _Groups]) -> tuple[int, ...]:
    """Return the members of a rank's default group; empty if unknown.

    All its members have made it first. Otherwise it is another group.
    """
    first = own[0] if own else frozenset[int]()
    is_first = all(groups.get(each, ())[:1] == (first,) for each in first)
    return tuple(sorted(first)) if is_first else ()


def _possible(ranks: Sequence[int], groups: Mapping[int, _Groups]) -> tuple[int, ...]:
    """Return the ranks that can be members of the group in which ranks wait; empty if unknown.

    The ranks may wait in several groups. If one group has them all, it is likelier.
    """
    own = [groups.get(rank, ()) for rank in ranks]
    if not all(own):
        return ()
    common = frozenset.intersection(*map(frozenset, own))
    fitting = [each for each in common if not each <= {*ranks}]
    every = [each for mine in own for each in mine]
    return tuple(sorted(frozenset[int]().union(*(fitting or every))))


def _groups_of(process: Process, snapshot: KernelSnapshot) -> _Groups:
    """Return the members of each group of gloo that a rank is in; empty if one is unknown."""
    if any(each.target.startswith(_GPU) for each in process.descriptors.values()):
        return ()
    loops = sorted((each for each in process.threads if each.name == _LOOP), key=_age)
    groups = [frozenset({process.rank, *_peers(each, process, snapshot)}) for each in loops]
    known = [frozenset(each for each in group if each is not None) for group in groups]
    return tuple(known) if known == groups else ()


def _age(thread: Thread) -> tuple[float, int]:
    return thread.started_s, thread.tid


def _peers(loop: Thread, process: Process, snapshot: KernelSnapshot) -> Iterator[int | None]:
    """Yield the rank at the other end of each connection of a group; None if it is unknown."""
    own = process.descriptors.get(loop.args[0]) if loop.args else None
    if own is None or own.kind != "epoll" or own.watched is None:
        yield None
        return
    for fd in own.watched:
        each = process.descriptors.get(fd)
        if each is not None and each.endpoints:
            peer = snapshot.process(each.holder)
            yield peer.rank if peer is not None else None
