"""The processes of ranks whose script is over, in a world of scripts.

Without the harness such a process would have ended, with all of its threads. The harness keeps it,
because its connections would break otherwise. Threads of libraries then go on in it: a thread that
shows progress, zmq's thread, a thread that looks at something now and then. They work for no rank
any more, so they end no wait of another rank, and a proof leaves them out. Three sorts of threads
still count: threads that have entered operations, for which other ranks may wait; threads of
the runtime, which serve other ranks; and threads that have not run since the world stands still,
because they have had no turn. A child process of such a rank takes no part in a collective or
transfer, so it ends none either.

The later actions of a thread of the program are unknown. So a rank with one, or with a child, is
only likely to be the rank for which the others wait.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from pytest_multihost.core.model.process import Descriptor, KernelSnapshot, Process, Thread
from pytest_multihost.core.proof.descriptor_blockers import SOCKETS
from pytest_multihost.core.proof.runtime_threads import is_python, is_runtime_thread


def without_left(
    now: KernelSnapshot,
    before: KernelSnapshot | None,
    ranks: Collection[int],
    *,
    active: Collection[int],
    resting: Collection[int] = (),
    without_children: bool = False,
) -> KernelSnapshot:
    """Return a deep snapshot in which the remains of some ranks do not count.

    Args:
        before: The deep snapshot before: a thread that runs at an instant has no stack to read.
        ranks: The ranks whose script is over.
        resting: Threads that have not run since the last progress.
        without_children: Whether no child of these ranks can end the wait of another rank.
    """
    processes = (
        _left(each, before.process(each.pid) if before is not None else None, {*active, *resting})
        if each.is_rank and each.rank in ranks and not each.is_dead
        else each
        for each in now.processes
        if each.is_rank or each.rank not in ranks or not without_children
    )
    return replace(now, processes=tuple(processes))


def running_on(now: KernelSnapshot, ranks: Collection[int]) -> frozenset[int]:
    """Return which of some ranks have a thread of the program beside the main one, or a child."""
    return frozenset(
        each.rank
        for each in now.processes
        if each.rank is not None and each.rank in ranks and not each.is_dead
        if not each.is_rank or any(map(_is_of_program, each.threads[1:]))
    )


def turns_of(now: KernelSnapshot) -> Mapping[int, tuple[int, int]]:
    """Return how often and how long each thread of the ranks has run."""
    ranks = (each for each in now.processes if each.is_rank)
    return {each.tid: (each.runs, each.cpu_ns) for rank in ranks for each in rank.threads}


def _is_of_program(thread: Thread) -> bool:
    is_alive = thread.state not in ("", "X", "Z")
    is_theirs = not (thread.is_exempt or is_runtime_thread(thread))
    return is_alive and is_theirs and bool(thread.code) and is_python(thread)


def _left(process: Process, was: Process | None, kept: Collection[int]) -> Process:
    earlier = {each.tid: each for each in was.threads} if was is not None else {}

    def is_needed(thread: Thread) -> bool:
        last = earlier.get(thread.tid)
        seen = [thread, *([last] if last is not None else [])]
        return thread is process.main or thread.tid in kept or any(map(is_runtime_thread, seen))

    threads = (e if is_needed(e) else replace(e, is_exempt=True) for e in process.threads)
    found = {fd: _without_outside(each) for fd, each in process.descriptors.items()}
    return replace(process, threads=tuple(threads), descriptors=found, caught=0, timers=0)


def _without_outside(found: Descriptor) -> Descriptor:
    """Return a descriptor, marked if no rank is at the other end of its connection."""
    is_alone = found.kind in SOCKETS and found.where != "inside"
    return replace(found, is_exempt=True) if is_alone else found
