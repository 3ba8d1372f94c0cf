"""The waits of a rank's threads for locks of each other, from its stacks."""

from __future__ import annotations

from collections.abc import Collection

from pytest_multihost.core.blame.wait_graph import Wait
from pytest_multihost.core.model.stack import Dump, LockWait


def held_inside(inside: Wait, dumps: Collection[Dump]) -> LockWait | None:
    """Return the wait of a rank's main thread for a lock that the thread of another wait holds."""
    thread = inside.operation.thread if inside.operation is not None else 0
    found = [each for dump in dumps if dump.rank == inside.rank for each in dump.locks]
    waits = {each.ident: each for each in found}
    main = next((each for each in found if each.is_main and each.lock), None)
    chain: list[LockWait] = []
    wait = main
    while wait is not None and wait not in chain and wait.holder is not None:
        if thread and wait.holder.native_id == thread:
            return main
        chain.append(wait)
        wait = waits.get(wait.holder.ident)
    return None


def lock_cycle(dumps: Collection[Dump], rank: int) -> tuple[LockWait, ...]:
    """Return the waits of a rank's threads for each other; empty if its main thread needs none."""
    found = [each for dump in dumps if dump.rank == rank for each in dump.locks]
    waits = {each.ident: each for each in found if each.holder is not None}
    chain: list[LockWait] = []
    wait = next((each for each in waits.values() if each.is_main), None)
    while wait is not None and wait not in chain:
        chain.append(wait)
        wait = waits.get(wait.holder.ident) if wait.holder is not None else None
    cycle = chain[chain.index(wait) :] if wait is not None else []
    return tuple(cycle) if len(cycle) > 1 else ()
