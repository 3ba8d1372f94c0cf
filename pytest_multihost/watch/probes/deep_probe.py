"""Probe ranks whose records do not say for whom they wait, once their world is judged.

What needs the rank's own help or stops its threads for an instant comes only now: torch's flight
recorder, the native frames beneath a jitted function, who holds the GIL. Each is left out where it
cannot be had.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from pytest_multihost.blame.inferred import operation_of, waits_at_sockets
from pytest_multihost.model.operation import Operation, Operations
from pytest_multihost.model.process import KernelSnapshot
from pytest_multihost.model.result import RankSnapshot, WorldSnapshot
from pytest_multihost.model.stack import NativeThread
from pytest_multihost.slots import FlightMailbox
from pytest_multihost.watch.probes.native import NativeStacks, native_threads
from pytest_multihost.watch.probes.pyspy import gil_holders

FLIGHT_S = 0.2
"""How long a rank may take to answer; it needs a few milliseconds."""

_MAY_HOLD_GIL = frozenset({"BLOCKED", "SLEEPING", "IO", "DISK", "CHILD", "RUNNING"})
"""Labels of main threads that may hold the GIL: they wait, for which it should have been released,
or compute, for which it must be released now and then; the stacks tell which."""

_POLL_S = 0.01


def probe_unclear_ranks(
    ranks: Sequence[RankSnapshot],
    kernel: KernelSnapshot,
    *,
    pids: Mapping[int, int],
    alive: Sequence[int],
    scratch: Path,
    may_run_jax: bool,
    at_s: float,
) -> tuple[tuple[RankSnapshot, ...], tuple[str, ...]]:
    """Return ranks with what probes have found, and what could not be read.

    Args:
        ranks: All ranks, as shallow and deep snapshots show them.
        kernel: The last deep snapshot.
        pids: Process ids of the ranks that may be read.
        alive: Ranks that may answer for themselves.
        scratch: The world's directory.
        may_run_jax: Whether operations can go on beside the main thread, unseen by a recorder.
        at_s: When the last shallow snapshot was taken.
    """
    if not any(_is_unclear(seen) and seen.rank in pids for seen in ranks):
        return tuple(ranks), ()
    ranks = _with_flight(ranks, scratch, alive)
    unclear = {s.rank: pids[s.rank] for s in ranks if _is_unclear(s) and s.rank in pids}
    asked = _pids_with_native_operations(ranks, unclear, may_run_jax=may_run_jax)
    with ThreadPoolExecutor(1) as pool:  # two sorts of readers, which both start slowly
        reading = pool.submit(native_threads, asked) if asked else None
        ranks = _with_gil_holders(ranks, unclear)
    unobserved: tuple[str, ...] = ()
    if reading is not None:
        stacks = reading.result()
        # Again, for now it is known who holds the GIL.
        counted = _pids_with_native_operations(ranks, asked, may_run_jax=may_run_jax)
        ranks = _with_native(ranks, counted, stacks, at_s)
        unobserved = stacks.unobserved
    return _with_sockets(ranks, kernel), unobserved


def _pids_with_native_operations(
    ranks: Sequence[RankSnapshot], pids: Mapping[int, int], *, may_run_jax: bool
) -> dict[int, int]:
    """Return those of `pids` whose native frames may show an operation."""
    return {
        seen.rank: pids[seen.rank]
        for seen in ranks
        if seen.rank in pids
        and (seen.label == "BLOCKED" or (may_run_jax and not _waits_with_gil(seen)))
    }


def _waits_with_gil(seen: RankSnapshot) -> bool:
    return seen.holds_gil and seen.label != "RUNNING"


def _is_unclear(seen: RankSnapshot) -> bool:
    """Return whether a rank's records do not say for whom it waits; its own devices are nobody."""
    waited = [each for each in seen.operations if each.waited_s is not None]
    return all(_is_own_devices(each) for each in waited)


def _is_own_devices(operation: Operation) -> bool:
    return operation.kind == "wait" and len(operation.group) == 1


def _with_flight(
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


def _with_native(
    ranks: Sequence[RankSnapshot], pids: Mapping[int, int], stacks: NativeStacks, at_s: float
) -> tuple[RankSnapshot, ...]:
    """Add the operations that the native frames of these ranks show."""
    everybody = tuple(seen.rank for seen in ranks)
    found = {
        rank: operation_of(threads, group=everybody, at_s=at_s)
        for rank, threads in stacks.threads.items()
        if rank in pids
    }
    return tuple(
        _with(seen, found[seen.rank], stacks.threads[seen.rank], pids[seen.rank])
        if seen.rank in found
        else seen
        for seen in ranks
    )


def _with_sockets(
    ranks: Sequence[RankSnapshot], kernel: KernelSnapshot
) -> tuple[RankSnapshot, ...]:
    """Add what ranks wait for at sockets of their own, which no recorder sees."""
    found = waits_at_sockets(kernel)
    return tuple(
        replace(seen, operations=(*seen.operations, found[seen.rank]))
        if seen.rank in found and _is_unclear(seen)
        else seen
        for seen in ranks
    )


def with_probe_results(
    failure: WorldSnapshot, end: WorldSnapshot, unmoved: frozenset[int]
) -> WorldSnapshot:
    """Add to the snapshot at the first failure what probes found at the end.

    At the failure there was no time for probes. What they found later was so then, too, of ranks
    that have not run in between.

    Args:
        failure: The snapshot at the first failure.
        end: The last one, with what probes have found.
        unmoved: Ranks that have not run in between.
    """
    probed = {seen.rank: seen for seen in end.ranks if seen.rank in unmoved}
    ranks = (_probed(seen, probed.get(seen.rank, seen)) for seen in failure.ranks)
    return replace(failure, ranks=tuple(ranks))


def _probed(seen: RankSnapshot, later: RankSnapshot) -> RankSnapshot:
    return replace(
        seen,
        operations=later.operations,
        entered=later.entered,
        native=later.native,
        holds_gil=later.holds_gil,
    )


def _with(
    seen: RankSnapshot, operation: Operation | None, threads: Sequence[NativeThread], pid: int
) -> RankSnapshot:
    """Add an operation, and of the threads the main one and the one that is in it."""
    tids = {pid, operation.thread} if operation is not None else {pid}
    native = tuple(each for each in threads if each.thread in tids)
    found = (operation,) if operation is not None else ()
    return replace(seen, operations=(*seen.operations, *found), native=native)


def _with_gil_holders(
    ranks: Sequence[RankSnapshot], pids: Mapping[int, int]
) -> tuple[RankSnapshot, ...]:
    """Note whose main thread holds the GIL while it waits for something else."""
    asked = {seen.rank: pids[seen.rank] for seen in ranks if _may_hold_gil(seen, pids)}
    holders = gil_holders(asked)
    return tuple(replace(seen, holds_gil=True) if seen.rank in holders else seen for seen in ranks)


def _may_hold_gil(seen: RankSnapshot, pids: Mapping[int, int]) -> bool:
    return seen.label in _MAY_HOLD_GIL and seen.rank in pids
