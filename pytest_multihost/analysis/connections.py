"""Whom a rank waits for at a connection of its own, of which no recorder knows.

A main thread that reads from a socket, or writes to one that is full, waits for the rank that holds
the other end: a transfer like any other. Where that end is attended by a thread beside the main one
- a server within the rank - nobody knows what the answer waits for, and nobody is named.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pytest_multihost.model.operation import Operation
from pytest_multihost.model.process import Descriptor, Look, Process

SOURCE = "proc"

_Ends = tuple[str, str]


def transfers(look: Look) -> dict[int, Operation]:
    """Return what ranks wait in at connections between them, by rank.

    Args:
        look: A close look at the world.
    """
    holders = _holders(look)
    found = {}
    for rank, process in look.ranks.items():
        far = {holders.get(each) for each in _awaited(process)} - {rank}
        if far and None not in far:
            found[rank] = _transfer(process, rank, {each for each in far if each is not None}, look)
    return found


def _transfer(process: Process, rank: int, far: set[int], look: Look) -> Operation:
    main = process.threads[0]
    return Operation(
        name=main.call,
        kind="transfer",
        group=tuple(sorted({rank, *far})),
        sequence=0,
        peer=min(far) if len(far) == 1 else None,
        detail=main.target,
        since_s=look.at_s,
        waited_s=look.at_s,
        thread=main.tid,
        source=SOURCE,
    )


def _awaited(process: Process) -> Iterator[_Ends]:
    """Yield the other ends of the connections that can end the main thread's wait."""
    main = process.main
    for fd in (main.fds or ()) if main is not None and main.state == "S" else ():
        found = process.descriptors.get(fd)
        here, there = found.ends if found is not None and _is_inside(found) else ("", "")
        yield there, here


def _holders(look: Look) -> Mapping[_Ends, int]:
    """Return the ranks whose main threads alone attend to an end of a connection."""
    found: dict[_Ends, int] = {}
    shared: set[_Ends] = set()
    for process in look.processes:
        beside = {fd for thread in process.threads[1:] for fd in thread.fds or ()}
        for each in filter(_is_inside, process.descriptors.values()):
            is_alone = process.is_rank and each.fd not in beside and each.ends not in found
            if is_alone and process.rank is not None:
                found[each.ends] = process.rank
            else:
                shared.add(each.ends)
    return {ends: rank for ends, rank in found.items() if ends not in shared}


def _is_inside(found: Descriptor) -> bool:
    is_connection = found.kind in {"tcp", "unix"} and all(found.ends)
    return is_connection and found.where == "inside" and not found.is_exempt
