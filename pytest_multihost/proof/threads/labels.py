"""What a thread is doing, as a label and in detail, from the kernel's view of it."""

from __future__ import annotations

from pytest_multihost.model.process import NEVER, KernelSnapshot, Thread
from pytest_multihost.model.snapshot import Activity, Label
from pytest_multihost.proof.threads import system_calls as calls

_BUSY = 0.5
"""Share of a processor from which on a thread that waits at this instant counts as running."""

_DEAD = frozenset({"", "X", "Z"})
_STOPPED = frozenset({"T", "t"})


def label(
    before: Thread | None, now: Thread | None, *, at_s: float, elapsed_s: float = 0.0
) -> tuple[Label, Activity]:
    """Return what a thread does, in one word and in detail.

    Args:
        before: The thread in the snapshot before, if it was there.
        now: The thread; None when it is gone.
        at_s: When `now` was read, on the monotonic clock.
        elapsed_s: How much earlier `before` was.
    """
    if now is None or now.state in _DEAD:
        return "EXITED", Activity("has ended")
    if now.state in _STOPPED:
        return "STOPPED", Activity("stopped" if now.state == "T" else "held by a tracer")
    if now.state == "D":
        return "DISK", Activity(now.call or now.wchan)
    if is_running(before, now, elapsed_s):
        return "RUNNING", Activity("runs")
    return _wait_label(now), activity_of(now, at_s)


def is_running(before: Thread | None, now: Thread, elapsed_s: float) -> bool:
    """Return whether a thread uses the processor: at this instant, or most of the time before."""
    if now.state == "R" or now.call == "running":
        return True
    used_ns = now.cpu_ns - before.cpu_ns if before and before.tid == now.tid else 0
    return elapsed_s > 0 and used_ns > _BUSY * elapsed_s * 1e9


def is_sleep(thread: Thread) -> bool:
    """Return whether a thread waits for nothing but time."""
    is_empty_poll = thread.call in calls.POLLS and thread.fds == () and thread.ends_s != NEVER
    return thread.call in calls.SLEEPS or is_empty_poll


def is_file_access(thread: Thread) -> bool:
    """Return whether a thread reads or writes a file, pipe or terminal; sockets do not count."""
    if thread.call in calls.STREAMS:
        return not thread.target.startswith(("socket:", "anon_inode:"))
    return thread.call in calls.FILES


def _wait_label(thread: Thread) -> Label:
    if is_sleep(thread):
        return "SLEEPING"
    if thread.call in calls.CHILDREN:
        return "CHILD"
    return "IO" if is_file_access(thread) else "BLOCKED"


def activity_of(thread: Thread, at_s: float) -> Activity:
    """Return what a thread waits in, and until when, as seen from `at_s`."""
    return Activity(
        name="sleep" if is_sleep(thread) else thread.call or thread.wchan or "waits",
        target=thread.target,
        ends_in_s=None if thread.ends_s in {None, NEVER} else max(thread.ends_s - at_s, 0.0),
        has_unknown_timeout=thread.ends_s is None,
    )


def main_labels(
    before: KernelSnapshot | None, now: KernelSnapshot
) -> dict[int, tuple[Label, Activity]]:
    """Return what the main thread of each rank does."""
    earlier = before.ranks if before is not None else {}
    elapsed_s = now.at_s - before.at_s if before is not None else 0.0
    found = {}
    for rank, process in now.ranks.items():
        last = earlier[rank].main if rank in earlier else None
        found[rank] = label(last, process.main, at_s=now.at_s, elapsed_s=elapsed_s)
    return found


def lock_holders(now: KernelSnapshot) -> dict[int, tuple[int, ...]]:
    """Return, for each rank, which ranks hold a file lock that one of its threads waits for."""
    owners = {process.pid: process.rank for process in now.processes}
    found: dict[int, set[int]] = {rank: set() for rank in now.ranks}
    for process in now.processes:
        held = {owners.get(pid) for each in process.threads for pid in each.holders or ()}
        if process.rank is not None:
            found[process.rank] |= {rank for rank in held if rank is not None}
    return {rank: tuple(sorted(ranks)) for rank, ranks in found.items()}
