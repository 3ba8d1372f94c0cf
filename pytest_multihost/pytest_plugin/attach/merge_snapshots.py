"""Kernel snapshots of a world's processes on several machines, merged to one.

Each machine has process ids, inodes and a clock of its own. What comes from another one gets
numbers that no process of ours has, and our time. A connection that leads out of one machine leads
to a rank if that rank's machine shows the other end.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from pytest_multihost.model.process import Descriptor, KernelSnapshot, Process

_FOREIGN = 1 << 32
"""Added once for each other machine to its process ids; Linux gives none that are larger."""


_SPACE = "net:["
"""Begins what is said of an address that means something in one network namespace alone."""


@dataclass(frozen=True, slots=True)
class RemoteSnapshot:
    """A snapshot that was taken by a peer.

    Attributes:
        number: 1, 2, ...: tells its process ids from all others.
        snapshot: What it has seen.
        offset_s: What must be added to its times to make them ours.
        slack_s: By how much they may then be wrong.
        machine: Which machine it is; a loopback address means something on that one alone.
    """

    number: int
    snapshot: KernelSnapshot
    offset_s: float = 0.0
    slack_s: float = 0.0
    machine: str = ""


def merge_snapshots(
    local: KernelSnapshot, others: Sequence[RemoteSnapshot], *, machine: str = ""
) -> KernelSnapshot:
    """Return one snapshot of all processes of the world; `machine` is ours."""
    ours = [_named(process, machine) for process in local.processes]
    found = [_moved(process, each) for each in others for process in each.snapshot.processes]
    processes = (*ours, *found)
    ranks = [each for each in processes if each.is_rank]
    children = [each for each in processes if not each.is_rank]
    ordered = [*sorted(ranks, key=lambda each: each.rank or 0), *children]
    is_deep = local.is_deep and all(each.snapshot.is_deep for each in others)
    return KernelSnapshot(at_s=local.at_s, processes=_connected(ordered), is_deep=is_deep)


def _moved(process: Process, where: RemoteSnapshot) -> Process:
    """Return a process of another machine with ids of its own and our times."""
    base = where.number * _FOREIGN
    threads = tuple(
        replace(
            each,
            started_s=each.started_s + where.offset_s,
            ends_s=_earliest(each.ends_s, where),
            child=each.child + base if each.child > 0 else each.child,
            holders=None if each.holders is None else tuple(pid + base for pid in each.holders),
        )
        for each in process.threads
    )
    descriptors = {
        fd: replace(
            each,
            ends_s=_earliest(each.ends_s, where),
            pid=each.pid + base if each.pid > 0 else each.pid,
        )
        for fd, each in process.descriptors.items()
    }
    moved = replace(process, pid=process.pid + base, threads=threads, descriptors=descriptors)
    return _named(moved, where.machine)


def _named(process: Process, machine: str) -> Process:
    """Return a process in which loopback addresses say on which machine they are."""
    descriptors = {
        fd: replace(each, endpoints=(machine + each.endpoints[0], machine + each.endpoints[1]))
        if each.endpoints[0].startswith(_SPACE)
        else each
        for fd, each in process.descriptors.items()
    }
    return replace(process, descriptors=descriptors)


def _earliest(ends_s: float | None, where: RemoteSnapshot) -> float | None:
    """Return the earliest time on our clock at which something ends there."""
    if ends_s is None or math.isinf(ends_s):
        return ends_s
    return ends_s + where.offset_s - where.slack_s


def _connected(processes: Iterable[Process]) -> tuple[Process, ...]:
    """Return processes with connections between machines told as such."""
    processes = tuple(processes)
    owners = {
        each.endpoints: process
        for process in processes
        for each in process.descriptors.values()
        if each.kind == "tcp" and all(each.endpoints)
    }
    return tuple(
        replace(
            process,
            descriptors={
                fd: _connect(each, owners.get((each.endpoints[1], each.endpoints[0])))
                for fd, each in process.descriptors.items()
            },
        )
        for process in processes
    )


def _connect(found: Descriptor, other: Process | None) -> Descriptor:
    """Return a descriptor that leads to a process of the world, if it does.

    Not while something is on its way: what the other side has not acknowledged may yet arrive.
    """
    if found.kind != "tcp" or found.where != "outside" or other is None or found.queues[1]:
        return found
    who = "orphan" if other.rank is None else f"rank {other.rank}"
    return replace(found, where="inside", peer=f"{found.peer} ({who})")
