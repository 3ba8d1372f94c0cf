"""Merge snapshots of several machines into one.

Each machine has process ids and a clock of its own. Remote ids are mapped to numbers that no local
process has, and times to this machine's clock. A connection to another machine leads to a rank if
that rank's machine shows the other end.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pytest_multihost.core.model.process import Descriptor, KernelSnapshot, Process
from pytest_multihost.core.model.rank_names import Names

_FOREIGN = 1 << 32
"""Machine n's process ids are offset by n times this; Linux assigns no larger ids."""


@dataclass(frozen=True, slots=True)
class RemoteSnapshot:
    """A snapshot that was taken on another machine.

    Attributes:
        number: 1, 2, ...: distinguishes its process ids from all others.
        offset_s: Offset from its clock to this machine's.
        slack_s: Error bound of `offset_s`.
    """

    number: int
    snapshot: KernelSnapshot
    offset_s: float = 0.0
    slack_s: float = 0.0


def merge_snapshots(
    local: KernelSnapshot, others: Sequence[RemoteSnapshot], names: Names
) -> KernelSnapshot:
    """Return one snapshot of all processes of the world: ranks in order, then their children."""
    found = [_moved(process, each) for each in others for process in each.snapshot.processes]
    ordered = sorted(
        (*local.processes, *found), key=lambda each: (not each.is_rank, each.rank or 0)
    )
    is_deep = local.is_deep and all(each.snapshot.is_deep for each in others)
    return KernelSnapshot(at_s=local.at_s, processes=_connected(ordered, names), is_deep=is_deep)


def _moved(process: Process, where: RemoteSnapshot) -> Process:
    """Return a remote process with unique ids, and times on this machine's clock."""
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
    return replace(process, pid=process.pid + base, threads=threads, descriptors=descriptors)


def _earliest(ends_s: float | None, where: RemoteSnapshot) -> float | None:
    """Return the earliest time on this machine's clock for a remote end time."""
    if ends_s is None or math.isinf(ends_s):
        return ends_s
    return ends_s + where.offset_s - where.slack_s


def _connected(processes: Sequence[Process], names: Names) -> tuple[Process, ...]:
    """Return processes with connections between machines resolved."""
    owners = {
        each.endpoints: process
        for process in processes
        for each in process.descriptors.values()
        if each.kind == "tcp" and each.endpoints
    }
    return tuple(
        replace(
            process,
            descriptors={
                fd: _connect(each, owners.get(each.endpoints[::-1]), names)
                for fd, each in process.descriptors.items()
            },
        )
        for process in processes
    )


def _connect(found: Descriptor, other: Process | None, names: Names) -> Descriptor:
    """Return a descriptor, with the process of the world that it leads to, if any.

    A connection with data in flight stays as it is, because unacknowledged data may still arrive.
    """
    if found.kind != "tcp" or found.where != "outside" or other is None or found.queues[1]:
        return found
    who = "orphan" if other.rank is None else names.rank(other.rank)
    return replace(found, where="inside", peer=f"{found.peer} ({who})")
