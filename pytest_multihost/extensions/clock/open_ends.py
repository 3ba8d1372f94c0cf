"""Finds events that may end a wait of a world besides its own threads and its clock's timers.

A clock may jump to the earliest timer only if nothing else can happen before. The rules are
therefore those of a proof (`blockers`), for a world whose known timers never expire. Anything that
still blocks the proof acts in real time, and the clock must not run ahead of it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace

from pytest_multihost.core.model.process import NEVER, Process, Thread
from pytest_multihost.core.proof import Snapshot
from pytest_multihost.core.proof.blockers import SIGALRM, process_blockers, process_name
from pytest_multihost.core.proof.snapshot import Interval
from pytest_multihost.core.proof.thread_blockers import waits_for_harness
from pytest_multihost.core.proof.threads import DEAD


def open_ends(
    now: Snapshot,
    *,
    timed: Collection[int],
    timerfds: Collection[tuple[int, int]] = (),
    frozen: Collection[int] = (),
) -> tuple[str, ...]:
    """Return everything outside a quiescent world that may end one of its waits, as sentences.

    Args:
        timed: The threads whose timers the clock has.
        timerfds: The timer descriptors that the clock has, as process and number.
        frozen: Ranks that are stopped and will not be continued.
    """
    found = []
    for process in now.kernel.processes:
        if not process.is_dead and process.rank not in frozen:
            known = _with_timers(process, timerfds)
            found += [
                f"{process_name(process, now.names)} {each}"
                for each in _open_ends(now, known, timed)
            ]
    return tuple(dict.fromkeys(found))


def _with_timers(process: Process, timerfds: Collection[tuple[int, int]]) -> Process:
    """Return a process whose timers never expire if the clock has them, else at any time."""
    timers = {
        fd: replace(each, ends_s=NEVER if (process.pid, fd) in timerfds else None)
        for fd, each in process.descriptors.items()
        if each.kind == "timerfd" and each.ends_s and each.ends_s < NEVER
    }
    return replace(process, descriptors={**process.descriptors, **timers}) if timers else process


def _open_ends(now: Snapshot, process: Process, timed: Collection[int]) -> Iterator[str]:
    """Yield the rest of a sentence about a process for each of its open ends.

    The clock's page has the timers of setitimer(2) and timer_create(2) as well as the waits.
    """
    threads = tuple(
        replace(each, ends_s=NEVER) if each.tid in timed else each for each in process.threads
    )
    closed = replace(
        process,
        threads=threads,
        caught=process.caught & ~SIGALRM,
        timers=None if process.timers is None else 0,
    )
    earlier = {each.tid: each for each in threads}
    interval = Interval(closed, closed, now, now, now.kernel.at_s, earlier)
    yield from process_blockers(interval)
    for thread in threads:
        if _has_timer_of_its_own(process, thread):
            yield f"thread {thread.name} waits in {thread.call} with a timer unknown to its clock"


def _has_timer_of_its_own(process: Process, thread: Thread) -> bool:
    """Return whether a thread waits with a timeout that is not in the page of its clock."""
    is_timed = thread.ends_s is None or thread.ends_s < NEVER
    is_judged = thread.state not in DEAD and not thread.waits_for_gil
    return is_timed and is_judged and not waits_for_harness(process, thread)
