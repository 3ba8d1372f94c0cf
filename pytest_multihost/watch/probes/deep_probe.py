"""Probe ranks whose records do not show which ranks they wait for, once the world is judged.

Probes that need the rank's help or briefly stop its threads run only now: torch's flight recorder,
the native frames below a jitted function, the holder of the GIL. Each is omitted if unavailable.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from pytest_multihost.blame.inferred import operation_of, waits_at_sockets
from pytest_multihost.model.operation import Operations
from pytest_multihost.model.process import KernelSnapshot
from pytest_multihost.model.result import RankSnapshot, WorldSnapshot
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
    stacks = reading.result() if reading is not None else NativeStacks()
    # Again, since the holder of the GIL is now known.
    counted = _pids_with_native_operations(ranks, asked, may_run_jax=may_run_jax)
    ranks = _with_native(ranks, counted, stacks, at_s)
    found = waits_at_sockets(kernel)  # which no recorder sees
    ranks = tuple(
        replace(seen, operations=(*seen.operations, found[seen.rank]))
        if seen.rank in found and _is_unclear(seen)
        else seen
        for seen in ranks
    )
    return ranks, stacks.unobserved


def _pids_with_native_operations(
    ranks: Sequence[RankSnapshot], pids: Mapping[int, int], *, may_run_jax: bool
) -> dict[int, int]:
    """Return those of `pids` whose native frames may show an operation."""
    return {
        seen.rank: pids[seen.rank]
        for seen in ranks
        if seen.rank in pids
        and (
            seen.label == "BLOCKED"
            or (may_run_jax and not (seen.holds_gil and seen.label != "RUNNING"))
        )
    }


def _is_unclear(seen: RankSnapshot) -> bool:
    """Return whether a rank's records show no wait for other ranks, at most for its own devices."""
    waited = [each for each in seen.operations if each.waited_s is not None]
    return all(each.kind == "wait" and len(each.group) == 1 for each in waited)


def _with_flight(
    ranks: Sequence[RankSnapshot], scratch: Path, asked: Sequence[int]
) -> tuple[RankSnapshot, ...]:
    """Add operations of `asked` ranks that only torch's flight recorders have."""
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
    """Add the operations that the native frames of these ranks show, and the frames.

    Of the threads only the main one is kept, and the one that is in the operation.
    """
    everybody = tuple(seen.rank for seen in ranks)
    found = []
    for seen in ranks:
        if seen.rank not in pids or seen.rank not in stacks.threads:
            found.append(seen)
            continue
        threads = stacks.threads[seen.rank]
        operation = operation_of(threads, group=everybody, at_s=at_s)
        new = (operation,) if operation is not None else ()
        tids = {pids[seen.rank], *(each.thread for each in new)}
        native = tuple(each for each in threads if each.thread in tids)
        found.append(replace(seen, operations=(*seen.operations, *new), native=native))
    return tuple(found)


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
    ranks = (
        replace(
            seen,
            operations=later.operations,
            entered=later.entered,
            native=later.native,
            holds_gil=later.holds_gil,
        )
        for seen in failure.ranks
        for later in (probed.get(seen.rank, seen),)
    )
    return replace(failure, ranks=tuple(ranks))


def _with_gil_holders(
    ranks: Sequence[RankSnapshot], pids: Mapping[int, int]
) -> tuple[RankSnapshot, ...]:
    """Note whose main thread holds the GIL while it waits for something else."""
    may_hold = [s.rank for s in ranks if s.label in _MAY_HOLD_GIL and s.rank in pids]
    holders = gil_holders({rank: pids[rank] for rank in may_hold})
    return tuple(replace(seen, holds_gil=True) if seen.rank in holders else seen for seen in ranks)
