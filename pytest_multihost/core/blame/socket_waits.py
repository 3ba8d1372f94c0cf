"""Waits at sockets: operations that no recorder has seen, inferred from the kernel's tables.

A main thread that reads from a socket, or writes to a full one, waits for the rank that holds the
peer socket, or that has not accepted the connection yet: this counts as a transfer. If a thread
other than that rank's main one may serve the peer socket, the dependency of the answer is unknown,
and no rank is named. A main thread that waits for a connection waits for any of the other ranks.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from pytest_multihost.core.model.operation import (
    RUNTIME_SCOPE,
    SOCKET_SCOPE,
    Operation,
    OperationKind,
)
from pytest_multihost.core.model.process import Descriptor, Endpoint, KernelSnapshot, Process

_Ends = tuple[Endpoint, ...]


def waits_at_sockets(snapshot: KernelSnapshot) -> dict[int, Operation]:
    """Return the operations in which main threads wait at sockets, by rank.

    Args:
        snapshot: A deep snapshot of the world.
    """
    awaited_by = {
        rank: awaited for rank, process in snapshot.ranks.items() if (awaited := _awaited(process))
    }
    holders = _holders(snapshot) if awaited_by else {}  # a large world has thousands of sockets
    found = {}
    for rank, awaited in awaited_by.items():
        process = snapshot.ranks[rank]
        connections = [each for each in awaited if each.kind != "listen"]
        peers = {_peer(each, holders, snapshot) for each in connections} - {rank}
        known = {each for each in peers if each is not None}
        if any(each.kind == "listen" for each in awaited):
            found[rank] = _operation(process, snapshot, "wait", snapshot.ranks.keys())
        elif peers and known == peers:
            found[rank] = _operation(process, snapshot, "transfer", {rank, *known})
    return found


def _operation(
    process: Process, snapshot: KernelSnapshot, kind: OperationKind, group: Collection[int]
) -> Operation:
    main, others = process.threads[0], set(group) - {process.rank}
    return Operation(
        name=main.call,
        kind=kind,
        group=tuple(sorted(group)),
        sequence=0,
        scope=SOCKET_SCOPE if kind == "wait" else RUNTIME_SCOPE,
        peer=min(others) if kind == "transfer" and len(others) == 1 else None,
        detail=main.target,
        since_s=snapshot.at_s,
        waited_s=snapshot.at_s,
        thread=main.tid,
        source="proc",
    )


def _awaited(process: Process) -> list[Descriptor]:
    """Return the sockets that can end the main thread's wait; empty if anything else can end it."""
    main = process.main
    fds = (main.fds or ()) if main is not None and main.state == "S" else ()
    found = [process.descriptors.get(fd) for fd in fds]
    sockets = [each for each in found if each and (each.kind == "listen" or _is_inside(each))]
    return sockets if len(sockets) == len(found) else []


def _holders(snapshot: KernelSnapshot) -> Mapping[_Ends, int]:
    """Return the rank that holds each end of a connection, if only its main thread uses it."""
    found: dict[_Ends, int] = {}
    shared: set[_Ends] = set()
    for process in snapshot.processes:
        beside = {fd for thread in process.threads[1:] for fd in thread.fds or ()}
        for each in filter(_is_inside, process.descriptors.values()):
            is_alone = process.is_rank and each.fd not in beside and each.endpoints not in found
            if is_alone and process.rank is not None:
                found[each.endpoints] = process.rank
            else:
                shared.add(each.endpoints)
    return {ends: rank for ends, rank in found.items() if ends not in shared}


def _peer(found: Descriptor, holders: Mapping[_Ends, int], snapshot: KernelSnapshot) -> int | None:
    """Return the rank at the other end of a connection, or that has to accept it; None if unknown.

    No rank has to if a thread beside its main one waits for connections, or another process may
    accept them, too.
    """
    ends, process = found.endpoints[::-1], snapshot.process(found.holder)
    if ends in holders or process is None or not process.is_rank:
        return holders.get(ends)
    listening = [each for each in process.descriptors.values() if each.kind == "listen"]
    targets = {each.target for each in listening}
    others = [d for p in snapshot.processes for d in p.descriptors.values() if p is not process]
    own = process.descriptors.values()
    is_accepted = any(each.endpoints == ends for each in (*own, *others))
    is_shared = any(each.target in targets for each in others)
    beside = {fd for thread in process.threads[1:] for fd in thread.fds or ()}
    is_served = any(each.fd in beside for each in listening)
    return None if is_accepted or is_shared or is_served else process.rank


def _is_inside(found: Descriptor) -> bool:
    is_connection = found.kind in {"tcp", "unix"} and found.endpoints != ()
    return is_connection and found.where == "inside" and not found.is_exempt
