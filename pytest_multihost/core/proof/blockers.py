"""The blockers of a proof: everything that may end a wait of a world before its deadline.

Each rule yields the rest of a sentence about a process, thread or descriptor for everything that
may end a wait. It yields nothing if only threads that are judged themselves can end the wait.

This module has the rules for processes, `thread_blockers` those for threads, and
`descriptor_blockers` those for descriptors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pytest_multihost.core.model.process import Descriptor, Process
from pytest_multihost.core.model.rank_names import Names
from pytest_multihost.core.proof.descriptor_blockers import (
    SOCKETS,
    descriptor_blockers,
    is_gpu,
    may_arrive,
    may_await_gpu,
    moves_data,
)
from pytest_multihost.core.proof.runtime_threads import has_gloo_timeout, is_runtime_thread
from pytest_multihost.core.proof.snapshot import Interval, Snapshot
from pytest_multihost.core.proof.thread_blockers import gives_up, thread_blockers
from pytest_multihost.core.proof.threads import DEAD

SIGALRM = 1 << 13  # signal 14; bit 0 is signal 1


def blockers(before: Snapshot, now: Snapshot, *, deadline_s: float) -> tuple[str, ...]:
    """Return everything that may end a wait of the world before the deadline, as sentences.

    A reason that several ranks share is one sentence.

    Args:
        deadline_s: When the world is ended in any case, on the monotonic clock.
    """
    found: list[str] = []
    of_ranks: dict[str, list[int]] = {}
    of_others: list[str] = []
    if not (before.kernel.is_deep and now.kernel.is_deep):
        found.append("only main threads were observed")
    living = [each for each in now.kernel.processes if not each.is_dead]
    if not any(each.is_rank for each in living):
        found.append("no rank is alive")
    for process in living:
        was = before.kernel.process(process.pid)
        if was is None:
            of_others.append(f"{process_name(process, now.names)} has just begun")
        else:
            earlier = {thread.tid: thread for thread in was.threads}
            interval = Interval(was, process, before, now, deadline_s, earlier)
            for why in process_blockers(interval):
                if process.rank is not None and process.is_rank:
                    of_ranks.setdefault(why, []).append(process.rank)
                else:
                    of_others.append(f"{process_name(process, now.names)} {why}")
    found += [f"{now.names.of(ranks)}: {why}" for why, ranks in of_ranks.items()]
    found += of_others
    pids = {each.pid for each in living}
    ended = [e for e in before.kernel.processes if not e.is_dead and e.pid not in pids]
    found += [f"{process_name(each, now.names)} has just ended" for each in ended]
    return tuple(dict.fromkeys(found))


def rank_blockers(
    before: Snapshot, now: Snapshot, *, deadline_s: float
) -> Mapping[int, tuple[str, ...]]:
    """Return the events that may end a wait of each rank or of its children, as sentences.

    A connection that leads outside the world counts only if a thread waits for it. Waits of the
    runtime's own threads do not count unless they give up, because the question is about a rank,
    not about the world.

    Args:
        deadline_s: How long its waits are to last, on the monotonic clock.
    """
    found: dict[int, list[str]] = {}
    for process in now.kernel.processes:
        if process.rank is None or process.is_dead:
            continue
        was = before.kernel.process(process.pid)
        if was is None:
            why = ["has just begun"]
        else:
            earlier = {thread.tid: thread for thread in was.threads}
            interval = Interval(was, process, before, now, deadline_s, earlier)
            why = list(_own_blockers(interval))
        found.setdefault(process.rank, []).extend(
            f"{process_name(process, now.names)} {each}" for each in why
        )
    return {rank: tuple(each) for rank, each in found.items()}


def _own_blockers(interval: Interval) -> Iterator[str]:
    if any(thread.state in {"T", "t"} for thread in interval.process.threads):
        main = interval.process.main
        if main is not None and not interval.has_not_moved(main):
            yield "has just been stopped"
        return  # only a signal from outside lets it go on
    yield from _signal_blockers(interval.process)
    for thread in interval.process.threads:
        is_main = thread is interval.process.main
        is_runtimes = interval.process.is_rank and not is_main and is_runtime_thread(thread)
        name = "main thread" if is_main else f"thread {thread.name}"
        if thread.state in DEAD:
            continue
        if is_runtimes and interval.is_busy(thread):
            yield f"{name} runs"
        elif is_runtimes and has_gloo_timeout(thread) and interval.times_out(thread):
            yield f"{name} {gives_up(interval, thread)}"
        elif not is_runtimes:
            yield from (f"{name} {each}" for each in thread_blockers(interval, thread))
    for found in interval.process.descriptors.values():
        if found.kind in SOCKETS:
            yield from _own_traffic(interval, found)


def _own_traffic(interval: Interval, found: Descriptor) -> Iterator[str]:
    last = interval.was.descriptors.get(found.fd)
    peer = found.peer or "an unknown peer"
    if last is not None and moves_data(interval, last, found):
        yield f"moves data on the {found.kind} socket to {peer}"
    elif last is not None and may_arrive(interval, found):
        yield f"has sent data to {peer} that may still arrive"


def process_name(process: Process, names: Names) -> str:
    """Return how sentences begin that are about a process."""
    if process.is_parent and not process.is_rank:
        return f"process `{process.name}` {process.pid}:"
    whose = f"{names.rank(process.rank)}:" if process.rank is not None else "orphan:"
    return whose if process.is_rank else f"{whose} child process `{process.name}` {process.pid}"


def process_blockers(interval: Interval) -> Iterator[str]:
    """Yield the events that may end a wait of a process, as the rest of a sentence about it."""
    process = interval.process
    if any(thread.state in {"T", "t"} for thread in process.threads):
        yield "is stopped"
        return
    yield from _signal_blockers(process)
    # Once for all descriptors: CUDA opens about five, and the check reads each thread.
    awaits_gpu = any(map(is_gpu, process.descriptors.values())) and may_await_gpu(interval)
    for descriptor in process.descriptors.values():
        yield from descriptor_blockers(interval, descriptor, awaits_gpu=awaits_gpu)
    for thread in process.threads:
        if thread.state not in DEAD:
            name = "main thread" if thread is process.main else f"thread {thread.name}"
            yield from (f"{name} {each}" for each in thread_blockers(interval, thread))
    tids = {thread.tid for thread in process.threads}
    for tid, thread in interval.earlier.items():
        # Other threads may have waited for the end of a thread that is not a runtime's own.
        is_others = thread.is_exempt or is_runtime_thread(thread)
        if tid not in tids and thread.state not in DEAD and not is_others:
            yield f"thread {thread.name} has just ended"


def _signal_blockers(process: Process) -> Iterator[str]:
    """Yield the sources of a signal to the process: its handler can interrupt any wait."""
    yield from (f"{each} cannot be read" for each in process.unread)
    if process.tracer:
        yield f"is traced by process {process.tracer}"
    if process.pending:
        yield "is about to get a signal"
    if process.caught & SIGALRM:  # no file in /proc shows alarm(2) and setitimer(2)
        yield "has a handler for SIGALRM, which a timer may send"
    if process.timers is None:
        yield "has timers that cannot be read"
    elif process.timers:
        yield "has made a timer"
