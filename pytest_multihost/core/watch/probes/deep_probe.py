"""Probe ranks whose records do not show which ranks they wait for, once the world is judged.

Probes that need the rank's help or briefly stop its threads run only now: torch's flight recorder,
the native frames below a jitted function, the holder of the GIL. A probe that is not available is
skipped.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from pytest_multihost.core.blame.inferred import OF_PROGRAMS, operation_of
from pytest_multihost.core.blame.role_waits import Link, RoleWait, role_waits, waits_in_circles
from pytest_multihost.core.blame.socket_waits import waits_at_sockets
from pytest_multihost.core.model.child import Child
from pytest_multihost.core.model.event import Exited
from pytest_multihost.core.model.message_sockets import (
    find_endpoints,
    is_for_answer,
    may_be_for_answer,
    waits_for_request,
)
from pytest_multihost.core.model.operation import Operation, Operations, group_by_value
from pytest_multihost.core.model.process import KernelSnapshot, Process
from pytest_multihost.core.model.rank_names import Names
from pytest_multihost.core.model.result import RankSnapshot, WorldSnapshot
from pytest_multihost.core.model.stack import NativeThread
from pytest_multihost.core.outcome import describe_exit
from pytest_multihost.core.proof.runtime_threads import is_ended_by_stop
from pytest_multihost.core.watch.kernel import SharedObjects
from pytest_multihost.core.watch.probes.flight_requests import FlightRequests
from pytest_multihost.core.watch.probes.native_frames import (
    NativeReader,
    NativeStacks,
    native_threads,
)
from pytest_multihost.core.watch.probes.py_spy import gil_holders
from pytest_multihost.core.watch.shared_waits import shared_waits, with_shared_wait

_MAY_HOLD_GIL = frozenset({"BLOCKED", "SLEEPING", "IO", "DISK", "CHILD", "RUNNING"})
"""Labels of main threads that may hold the GIL. They wait, and should have released it first, or
compute, and must release it at intervals; the stacks show which."""


def probe_unclear_ranks(  # noqa: PLR0913 - the ranks to ask, and how each probe asks
    ranks: Sequence[RankSnapshot],
    kernel: KernelSnapshot,
    *,
    pids: Mapping[int, int],
    flight: FlightRequests,
    may_run_jax: bool,
    at_s: float,
    names: Names,
    reader: NativeReader | None = None,
    children: Mapping[int, str] | None = None,
) -> tuple[tuple[RankSnapshot, ...], tuple[str, ...]]:
    """Return the ranks with the results of probes, and a sentence for each failed probe.

    Args:
        ranks: All ranks, as shallow and deep snapshots show them.
        pids: Process ids of the ranks that may be read.
        flight: The requests to the ranks that may answer.
        may_run_jax: Whether operations can run off the main thread, unseen by the recorder.
        at_s: When the last shallow snapshot was taken.
        reader: Reads native frames; may have been started before.
        children: The names of the ranks' children, by process id, if ranks run programs of several
            roles, which ask each other over sockets. None: they run one.
    """
    ranks = _with_lost(ranks, kernel, children) if children is not None else ranks
    if not any(_is_unclear(seen) and seen.rank in pids for seen in ranks):
        return tuple(ranks), ()
    ranks = _with_flight(ranks, flight.operations())
    unclear = [seen for seen in ranks if seen.rank in pids and _is_unclear(seen)]
    processes = kernel.ranks
    asked = {
        seen.rank: pids[seen.rank]
        for seen in unclear
        if _may_be_in_native_operation(seen, may_run_jax=may_run_jax)
        and not any(map(is_ended_by_stop, processes[seen.rank].threads))
    }
    with ThreadPoolExecutor(1) as pool:  # in parallel, because both readers start slowly
        reading = pool.submit(native_threads, asked, names=names, reader=reader) if asked else None
        may_hold = {s.rank: pids[s.rank] for s in unclear if s.label in _MAY_HOLD_GIL}
        holders = gil_holders(may_hold)
    stacks = reading.result() if reading is not None else NativeStacks()
    # Waits that no recorder sees.
    at_sockets = {} if children is not None else waits_at_sockets(kernel)
    objects = SharedObjects([each.pid for each in kernel.processes])
    asked_ranks = [seen.rank for seen in unclear if seen.rank not in at_sockets]
    shared = shared_waits(
        kernel, objects, asked=asked_ranks, names=names, are_roles=children is not None
    )
    found = []
    for each in ranks:
        seen = replace(each, holds_gil=True) if each.rank in holders else each
        # Decided again, because the holder of the GIL is now known.
        is_asked = _may_be_in_native_operation(seen, may_run_jax=may_run_jax)
        if seen.rank in stacks.threads and is_asked:
            seen = _with_native(seen, stacks.threads[seen.rank], pids[seen.rank], len(ranks), at_s)
        if seen.rank in at_sockets and _is_unclear(seen):
            seen = replace(seen, operations=(*seen.operations, at_sockets[seen.rank]))
        elif _is_unclear(seen):
            seen = with_shared_wait(seen, shared.get(seen.rank), processes[seen.rank], kernel.at_s)
        found.append(seen)
    found = _with_role_waits(found, kernel, children)
    return tuple(found), stacks.unobserved


def _with_lost(
    ranks: Sequence[RankSnapshot], kernel: KernelSnapshot, names: Mapping[int, str]
) -> Sequence[RankSnapshot]:
    """Return the ranks with their children that signals have ended."""
    lost = group_by_value(
        (each.rank, _child(each, names))
        for each in kernel.processes
        if not each.is_rank and each.is_dead and os.WIFSIGNALED(each.status)
    )
    return [replace(each, lost=tuple(lost.get(each.rank, ()))) for each in ranks] if lost else ranks


def _child(process: Process, names: Mapping[int, str]) -> Child:
    ended = ""
    if process.is_dead and os.WIFSIGNALED(process.status):
        ended = describe_exit(Exited(signal=os.WTERMSIG(process.status)))
    return Child(process.pid, names.get(process.pid, ""), process.name, ended)


def _with_role_waits(
    ranks: Sequence[RankSnapshot], kernel: KernelSnapshot, names: Mapping[int, str] | None
) -> list[RankSnapshot]:
    """Return the ranks with their waits for answers of each other.

    In a world without roles only message sockets and circles show these.
    """
    waiting = {each.rank for each in ranks if not _is_unclear(each)}
    waits = role_waits(kernel, waiting) if names is not None else {}
    processes, found = kernel.ranks, []
    circles = _circles(ranks, kernel, {*waiting, *(r for r, e in waits.items() if e.is_sure)})
    serving = {each.rank for each in ranks if any(map(_is_idle_wait, each.operations))} - waiting
    serving -= {rank for rank, wait in waits.items() if wait.is_certain}
    at_rest = serving | {rank for rank, wait in waits.items() if wait.is_at_rest} - waiting
    for each in ranks:
        wait = waits.get(each.rank, RoleWait())
        owed = [one for one in each.operations if is_for_answer(one) and one.is_open]
        if each.rank in circles:
            circle = circles[each.rank].operation(processes[each.rank], kernel.at_s)
            found.append(_in_circle(each, circle) if circle is not None else each)
            continue
        if each.rank in serving:
            wait = RoleWait(is_idle=True)
        elif owed and {*owed[0].group} - {each.rank} <= at_rest:
            operations = tuple(one for one in each.operations if one not in owed)
            found.append(replace(each, operations=operations, asks=owed[0]))
            continue
        elif owed:  # also operations that coroutines await, while their loop waits
            each = replace(each, operations=tuple(map(_awaited, each.operations)))  # noqa: PLW2901
        asks = wait.operation(processes[each.rank], kernel.at_s)
        asks = None if each.rank in waiting else asks
        child = kernel.process(wait.child) if wait.child else None
        seen = replace(
            each,
            is_idle=wait.is_idle,
            is_for_child=wait.is_for_child,
            child=_child(child, names or {}) if child is not None else None,
            is_endless=wait.is_endless,
            sent_nothing=wait.sent_nothing,
            needs_message=wait.needs_message,
            serves=wait.serves,
            asks=None if wait.is_certain else asks,
        )
        if asks is not None and wait.is_certain:
            seen = replace(seen, operations=(*seen.operations, asks))
        found.append(seen)
    return found


def _in_circle(seen: RankSnapshot, wait: Operation) -> RankSnapshot:
    """Return a rank with its wait in a circle, in place of waits for messages of any rank."""
    others = [each for each in seen.operations if not waits_for_request(each)]
    own = next(filter(_is_idle_wait, seen.operations), wait)
    told = replace(wait, name=own.name, detail=own.detail, frame=own.frame, since_s=own.since_s)
    return replace(seen, operations=(*others, told))


def _circles(
    ranks: Sequence[RankSnapshot], kernel: KernelSnapshot, known: Collection[int]
) -> Mapping[int, RoleWait]:
    """Return the waits of ranks in circles, at connections or in message sockets."""
    pages = [Operations(each.rank, entered=dict(each.entered)) for each in ranks]
    ends, asking = find_endpoints(pages), set(known)
    at_messages: dict[int, frozenset[Link]] = {}
    for each in ranks:
        pending = [one for one in each.operations if one.is_open]
        links = [ends.links(one, each.rank) for one in pending if waits_for_request(one)]
        # A wait for an answer that is owed, or perhaps, is for known ranks.
        if not all(links) or any(is_for_answer(one) or may_be_for_answer(one) for one in pending):
            asking.add(each.rank)
        elif links:
            at_messages[each.rank] = frozenset[Link]().union(*links)
    return waits_in_circles(kernel, at_messages, asking)


def _awaited(operation: Operation) -> Operation:
    """Return an operation as a thread's wait, if an answer is owed to it."""
    is_owed = is_for_answer(operation) and operation.is_open and operation.waited_s is None
    return replace(operation, waited_s=operation.since_s) if is_owed else operation


def _is_idle_wait(operation: Operation) -> bool:
    return operation.is_open and waits_for_request(operation)


def needs_native_frames(ranks: Sequence[RankSnapshot], *, may_run_jax: bool) -> bool:
    """Return whether `probe_unclear_ranks` is going to read native frames of any of the ranks."""
    return any(
        _is_unclear(seen) and _may_be_in_native_operation(seen, may_run_jax=may_run_jax)
        for seen in ranks
    )


def _may_be_in_native_operation(seen: RankSnapshot, *, may_run_jax: bool) -> bool:
    is_at_work = may_run_jax and not (seen.holds_gil and seen.label != "RUNNING")
    return seen.label == "BLOCKED" or is_at_work


def _with_native(
    seen: RankSnapshot, threads: Sequence[NativeThread], pid: int, size: int, at_s: float
) -> RankSnapshot:
    """Add the operation that a rank's native frames show, and the frames of its threads.

    Only the main thread and the thread in the operation are kept.
    """
    operation = operation_of(threads, group=tuple(range(size)), at_s=at_s)
    programs = [each for each in seen.operations if each.is_program]
    if operation is not None and operation.name in OF_PROGRAMS and programs:
        # The recorder has the program that it belongs to, with its name and members.
        first = replace(programs[0], waited_s=at_s, source=operation.source)
        operations = [first if each is programs[0] else each for each in seen.operations]
        seen, operation = replace(seen, operations=tuple(operations)), None
    new = (operation,) if operation is not None else ()
    tids = {pid, *(each.thread for each in new)}
    native = tuple(each for each in threads if each.thread in tids)
    return replace(seen, operations=(*seen.operations, *new), native=native)


def _is_unclear(seen: RankSnapshot) -> bool:
    """Return whether a rank's records show no wait, except for its own devices.

    A program that a rank runs may compute.
    """
    waited = [each for each in seen.operations if each.waited_s is not None]
    return all(
        (each.kind == "wait" and each.is_of_one) or (each.is_program and seen.label == "RUNNING")
        for each in waited
    )


def _with_flight(
    ranks: Sequence[RankSnapshot], found: Mapping[int, Operations]
) -> tuple[RankSnapshot, ...]:
    """Add operations that only torch's flight recorders have."""
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


def with_probe_results(
    failure: WorldSnapshot, end: WorldSnapshot, unmoved: frozenset[int]
) -> WorldSnapshot:
    """Add results of the probes at the end to the snapshot at the first failure.

    At the failure there was no time for probes. For ranks that have not run in between, later
    results were already true then.

    Args:
        failure: The snapshot at the first failure.
        end: The last snapshot, with the results of probes.
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
