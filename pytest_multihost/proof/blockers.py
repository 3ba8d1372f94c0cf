"""What may end a wait of a world before its deadline: what blocks a proof, one sentence each."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_multihost.model.process import KernelSnapshot, Process
from pytest_multihost.proof.descriptor_blockers import descriptor_blockers
from pytest_multihost.proof.snapshot import DEAD, Interval, Snapshot, interval_of
from pytest_multihost.proof.thread_blockers import thread_blockers
from pytest_multihost.proof.threads.owners import is_runtime_thread

_SIGALRM = 1 << 13  # signal 14; bit 0 is signal 1


def blockers(before: Snapshot, now: Snapshot, *, deadline_s: float) -> tuple[str, ...]:
    """Return all that may end a wait of the world before the deadline, one sentence each.

    Args:
        before: A deep snapshot.
        now: The next one.
        deadline_s: When the world is ended in any case, on the monotonic clock.
    """
    found = []
    if not (before.kernel.is_deep and now.kernel.is_deep):
        found.append("only main threads were looked at")
    living = [each for each in now.kernel.processes if not each.is_dead]
    if not any(each.is_rank for each in living):
        found.append("no rank is alive")
    for process in living:
        was = before.kernel.process(process.pid)
        if was is None:
            found.append(f"{_name(process)} has just begun")
        else:
            interval = interval_of(was, process, before, now, deadline_s)
            found += [f"{_name(process)} {each}" for each in _process_blockers(interval)]
    found += [
        f"{_name(each)} has just ended"
        for each in before.kernel.processes
        if not each.is_dead and _is_gone(each, now.kernel)
    ]
    return tuple(dict.fromkeys(found))


def _is_gone(process: Process, kernel: KernelSnapshot) -> bool:
    found = kernel.process(process.pid)
    return found is None or found.is_dead


def _name(process: Process) -> str:
    whose = f"rank {process.rank}:" if process.rank is not None else "orphan:"
    return whose if process.is_rank else f"{whose} child process `{process.name}` {process.pid}"


def _process_blockers(interval: Interval) -> Iterator[str]:
    """Yield what may end a wait, as the rest of a sentence about the process."""
    if any(thread.state in {"T", "t"} for thread in interval.process.threads):
        yield "is stopped"
        return
    yield from _signal_blockers(interval)
    for descriptor in interval.process.descriptors.values():
        yield from descriptor_blockers(interval, descriptor)
    for thread in interval.process.threads:
        if thread.state not in DEAD:
            name = "main thread" if interval.is_main(thread) else f"thread {thread.name}"
            yield from (f"{name} {each}" for each in thread_blockers(interval, thread))
    yield from _ended_threads(interval)


def _signal_blockers(interval: Interval) -> Iterator[str]:
    """Yield what may send the process a signal: its handler runs in the midst of any wait."""
    process = interval.process
    yield from (f"{each} cannot be read" for each in process.unread)
    if process.tracer:
        yield f"is traced by process {process.tracer}"
    if process.pending:
        yield "is about to get a signal"
    if process.caught & _SIGALRM:  # alarm(2) and setitimer(2) are in none of the files in /proc
        yield "has a handler for SIGALRM, which a timer may send"
    if process.timers is None:
        yield "has timers that cannot be read"
    elif process.timers:
        yield "has made a timer"


def _ended_threads(interval: Interval) -> Iterator[str]:
    """Yield threads that have ended in between: somebody may have waited for them."""
    tids = {thread.tid for thread in interval.process.threads}
    for tid, thread in interval.earlier.items():
        if tid not in tids and thread.state not in DEAD and not is_runtime_thread(thread):
            yield f"thread {thread.name} has just ended"
