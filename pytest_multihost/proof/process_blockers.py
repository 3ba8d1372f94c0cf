"""What may end a wait of one process: signals and timers, its descriptors, each of its threads."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_multihost.proof.descriptor_blockers import descriptor_blockers
from pytest_multihost.proof.interval import DEAD, Interval
from pytest_multihost.proof.thread_blockers import thread_blockers
from pytest_multihost.proof.threads.owners import is_runtime_thread

_SIGALRM = 1 << 13


def process_blockers(interval: Interval) -> Iterator[str]:
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
