"""Look closer at ranks of which too little is known, once their world is judged.

What needs the rank's own help or stops its threads for an instant comes only now: torch's flight
recorder, the native frames beneath a jitted function, who holds the interpreter. Each is left out
where it is not to be had.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from pytest_multihost.blame.inferred import operation_of, waits_at_sockets
from pytest_multihost.model.operation import Operation, Operations
from pytest_multihost.model.process import KernelSnapshot
from pytest_multihost.model.snapshot import RankSnapshot, WorldSnapshot
from pytest_multihost.model.stack import NativeThread
from pytest_multihost.slots import FlightMailbox
from pytest_multihost.watch.probes.native import NativeStacks
from pytest_multihost.watch.probes.pyspy import gil_holders

FLIGHT_S = 0.2
"""How long a rank may take to answer; it needs a few milliseconds."""

_MAY_HOLD_GIL = frozenset({"BLOCKED", "SLEEPING", "IO", "DISK", "CHILD", "RUNNING"})
"""Labels of main threads that may hold the GIL: they wait, for which it should have been released,
or compute, for which it must be released now and then; the stacks tell which."""

_POLL_S = 0.01


def is_unclear(seen: RankSnapshot) -> bool:
    """Whether its records do not say for whom a rank waits; its own devices are nobody."""
    waited = [each for each in seen.operations if each.waited_s is not None]
    return all(_is_own_devices(each) for each in waited)


def _is_own_devices(operation: Operation) -> bool:
    return operation.kind == "wait" and len(operation.group) == 1


def with_flight(
    ranks: Sequence[RankSnapshot], scratch: Path, asked: Sequence[int]
) -> tuple[RankSnapshot, ...]:
    """Add what torch's flight recorders know of `asked` ranks and our own records do not."""
    since_s = time.monotonic()
    mailboxes = [FlightMailbox(scratch, rank) for rank in asked]
    waiting = [each for each in mailboxes if each.ask()]
    deadline_s = since_s + FLIGHT_S
    found: dict[int, Operations] = {}
    while waiting and time.monotonic() < deadline_s:
        time.sleep(_POLL_S)
        answers = {each.rank: each.read(since_s=since_s) for each in waiting}
        found |= {rank: answer for rank, answer in answers.items() if answer is not None}
        waiting = [each for each in waiting if each.rank not in found]
    return tuple(
        replace(
            seen,
            operations=(*seen.operations, *found[seen.rank].recent),
            entered=(*seen.entered, *found[seen.rank].entered.items()),
        )
        if seen.rank in found
        else seen
        for seen in ranks
    )


def with_native(
    ranks: Sequence[RankSnapshot], pids: Mapping[int, int], look: NativeStacks, at_s: float
) -> tuple[RankSnapshot, ...]:
    """Add the operations that the native frames of these ranks show."""
    everybody = tuple(seen.rank for seen in ranks)
    found = {
        rank: operation_of(threads, group=everybody, at_s=at_s)
        for rank, threads in look.threads.items()
        if rank in pids
    }
    return tuple(
        _with(seen, found[seen.rank], look.threads[seen.rank], pids[seen.rank])
        if seen.rank in found
        else seen
        for seen in ranks
    )


def with_sockets(ranks: Sequence[RankSnapshot], look: KernelSnapshot) -> tuple[RankSnapshot, ...]:
    """Add what ranks wait in at sockets of their own, of which nothing else tells."""
    found = waits_at_sockets(look)
    return tuple(
        replace(seen, operations=(*seen.operations, found[seen.rank]))
        if seen.rank in found and is_unclear(seen)
        else seen
        for seen in ranks
    )


def with_deep(trouble: WorldSnapshot, end: WorldSnapshot, still: frozenset[int]) -> WorldSnapshot:
    """Add to what was seen when trouble came what a closer look told in the end.

    It says the same of both only where a rank has not run in between.

    Args:
        trouble: A glance; what needs a rank's help was not asked then.
        end: The closer look.
        still: Ranks that have not run in between.
    """
    told = {seen.rank: seen for seen in end.ranks if seen.rank in still}
    ranks = (_closer(seen, told.get(seen.rank, seen)) for seen in trouble.ranks)
    return replace(trouble, ranks=tuple(ranks))


def _closer(seen: RankSnapshot, told: RankSnapshot) -> RankSnapshot:
    return replace(
        seen,
        operations=told.operations,
        entered=told.entered,
        native=told.native,
        holds_gil=told.holds_gil,
    )


def _with(
    seen: RankSnapshot, operation: Operation | None, threads: Sequence[NativeThread], pid: int
) -> RankSnapshot:
    """Add an operation, and of the threads the main one and the one that told of it."""
    telling = {pid, operation.thread} if operation is not None else {pid}
    native = tuple(each for each in threads if each.thread in telling)
    told = (operation,) if operation is not None else ()
    return replace(seen, operations=(*seen.operations, *told), native=native)


def with_gil_holders(
    ranks: Sequence[RankSnapshot], pids: Mapping[int, int]
) -> tuple[RankSnapshot, ...]:
    """Note whose main thread holds the GIL while it waits for something else."""
    asked = {seen.rank: pids[seen.rank] for seen in ranks if _may_hold_gil(seen, pids)}
    holders = gil_holders(asked)
    return tuple(replace(seen, holds_gil=True) if seen.rank in holders else seen for seen in ranks)


def _may_hold_gil(seen: RankSnapshot, pids: Mapping[int, int]) -> bool:
    return seen.label in _MAY_HOLD_GIL and seen.rank in pids
