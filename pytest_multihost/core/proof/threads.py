"""The activity of a thread."""

from __future__ import annotations

from pytest_multihost.core.model.process import NEVER, KernelSnapshot, Thread
from pytest_multihost.core.model.result import SLEEP, Activity, Label
from pytest_multihost.core.proof.system_calls import CHILDREN, FILES, POLLS, SLEEPS, STREAMS

_BUSY = 0.5
"""Share of a processor above which a thread that waits at this instant counts as running."""

DEAD = frozenset({"", "X", "Z"})
"""States of a thread that is gone, ending or not waited for by its parent (proc(5), stat)."""


def label(
    before: Thread | None, now: Thread | None, *, at_s: float, elapsed_s: float = 0.0
) -> tuple[Label, Activity]:
    """Return a thread's state, in one word and in detail.

    Args:
        before: The thread in the previous snapshot, if it was there.
        now: The thread; None if it is gone.
        at_s: When `now` was read, on the monotonic clock.
        elapsed_s: How much earlier `before` was read.
    """
    if now is None or now.state in DEAD:
        return "EXITED", Activity("has ended")
    if now.state in {"T", "t"}:
        return "STOPPED", Activity("stopped" if now.state == "T" else "held by a tracer")
    if now.state == "D":
        return "DISK", Activity(now.call or now.wchan)
    used_ns = now.cpu_ns - before.cpu_ns if before and before.tid == now.tid else 0
    is_busy = elapsed_s > 0 and used_ns > _BUSY * elapsed_s * 1e9
    if is_busy or now.state == "R" or now.call == "running":
        return "RUNNING", Activity("uses a processor")
    activity = activity_of(now, at_s)
    if is_sleep(now):
        return "SLEEPING", activity
    if now.call in CHILDREN:
        return "CHILD", activity
    return "IO" if is_file_access(now) else "BLOCKED", activity


def is_sleep(thread: Thread) -> bool:
    """Return whether a thread waits only for a timer."""
    is_empty_poll = thread.call in POLLS and thread.fds == () and thread.ends_s != NEVER
    return thread.call in SLEEPS or is_empty_poll


def is_file_access(thread: Thread) -> bool:
    """Return whether a thread reads or writes a file, pipe or terminal; sockets do not count."""
    if thread.call in STREAMS:
        return not thread.target.startswith(("socket:", "anon_inode:"))
    return thread.call in FILES


def activity_of(thread: Thread, at_s: float) -> Activity:
    """Return the wait of a thread, and its end relative to `at_s`."""
    return Activity(
        name=SLEEP if is_sleep(thread) else thread.call or thread.wchan or "waits",
        target=thread.target,
        ends_in_s=None if thread.ends_s in {None, NEVER} else max(thread.ends_s - at_s, 0.0),
        has_unknown_timeout=thread.ends_s is None,
    )


def main_labels(
    before: KernelSnapshot | None, now: KernelSnapshot
) -> dict[int, tuple[Label, Activity]]:
    """Return the label of each rank's main thread."""
    earlier = before.ranks if before is not None else {}
    elapsed_s = now.at_s - before.at_s if before is not None else 0.0
    found = {}
    for rank, process in now.ranks.items():
        last = earlier[rank].main if rank in earlier else None
        found[rank] = label(last, process.main, at_s=now.at_s, elapsed_s=elapsed_s)
    return found
