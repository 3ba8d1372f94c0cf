"""End processes reliably, so that none outlives the controller.

A rank leads its own session, so one signal to its group reaches the processes it forked. A process
that left the group, such as a grandchild with its own session, is adopted by the server, which is a
subreaper (prctl(2), PR_SET_CHILD_SUBREAPER). Deaths are detected through pidfds, never by the end
of a stream: children inherit descriptors, which outlive the rank.

When a server is killed, nothing adopts what its ranks have left behind. So every rank is marked,
and by the mark its descendants are found: those of a server that has just been killed, and, before
a new server begins, those of servers whose controllers were killed with them.
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
import time
from collections.abc import Collection, Iterable, Mapping

import psutil

FAREWELL_S = 15.0
"""How long the server may take to end its ranks and itself."""

ORPHANS_S = 5.0
"""Timeout for killing orphans: one in uninterruptible sleep cannot be killed."""

_LOCKS_LIMIT = 10
"""RLIMIT_LOCKS of getrlimit(2), which has had no effect since Linux 2.4 and holds the mark.

Limits are the one thing that is inherited by every fork and exec, whatever else a daemon sheds -
session, descriptors, environment, parent - and that other processes can read.
"""

_MARK = 0x6D68 << 40
"""With a server's process id in the lower bits: the soft limit of what its ranks have started."""


def mark_descendants(server: int) -> None:
    """Mark this process, a rank of `server`, and all its future descendants."""
    _, hard = resource.getrlimit(_LOCKS_LIMIT)
    with contextlib.suppress(OSError, ValueError):  # a lower hard limit
        resource.setrlimit(_LOCKS_LIMIT, (_MARK | server, hard))


def signal_group(leader: int, number: int) -> None:
    """Signal the process group of `leader`, or `leader` alone before it has made its group."""
    try:
        os.killpg(leader, number)
    except ProcessLookupError:
        with contextlib.suppress(ProcessLookupError):
            os.kill(leader, number)


def end_groups(leaders: Mapping[int, int], *, grace_s: float) -> None:
    """End processes and their groups: TERM, CONT, at most `grace_s` seconds, KILL.

    CONT because TERM would stay pending for a stopped process. Does not reap.

    Args:
        leaders: Process ids of group leaders, unreaped children of this process, by pidfd.
        grace_s: How long they may take to end by themselves after TERM.
    """
    for number in (signal.SIGTERM, signal.SIGCONT):
        for leader in leaders.values():
            signal_group(leader, number)
    wait_until_dead(leaders, grace_s)
    for leader in leaders.values():
        signal_group(leader, signal.SIGKILL)


def wait_until_dead(pidfds: Iterable[int], timeout_s: float) -> list[int]:
    """Return those of `pidfds` whose process has ended within `timeout_s` seconds."""
    deadline = time.monotonic() + timeout_s
    poll, waiting, dead = select.poll(), set(pidfds), []
    for descriptor in waiting:
        poll.register(descriptor, select.POLLIN)
    while waiting:
        ready = poll.poll(max(0.0, deadline - time.monotonic()) * 1000)
        if not ready:
            break
        for descriptor, _ in ready:
            poll.unregister(descriptor)
            waiting.remove(descriptor)
            dead.append(descriptor)
    return dead


def kill_orphans(*, spare: Collection[int]) -> list[str]:
    """Kill and reap every descendant of this process except those in `spare`.

    Returns:
        The command lines of those that were still alive, for the reader of the report.
    """
    ended: list[str] = []
    deadline = time.monotonic() + ORPHANS_S
    while time.monotonic() < deadline:
        # Usually there are no children, which this says in microseconds; reading /proc for them
        # would cost milliseconds in every test.
        try:
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            break
        descendants = psutil.Process().children(recursive=True)
        orphans = [process for process in descendants if process.pid not in spare]
        if not orphans:
            break
        for process in orphans:
            with contextlib.suppress(psutil.Error, ChildProcessError):
                if process.status() == psutil.STATUS_ZOMBIE:
                    os.waitpid(process.pid, os.WNOHANG)
                else:
                    ended.append(" ".join(process.cmdline())[:200] or process.name())
                    process.kill()
        time.sleep(0.002)
    return ended


def kill_strays() -> None:
    """Kill what descends from the ranks of servers that are dead."""
    deadline = time.monotonic() + ORPHANS_S
    while time.monotonic() < deadline and (found := _strays()):
        for pid in found:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.002)


def _strays() -> list[int]:
    """Return marked processes whose server is dead.

    Only in this process's own namespace of process ids: in another one, the id in the mark means
    another process.
    """
    found = []
    for pid in map(int, filter(str.isdecimal, os.listdir("/proc"))):
        with contextlib.suppress(OSError, psutil.Error):
            mark, _ = resource.prlimit(pid, _LOCKS_LIMIT)
            if (
                mark >> 40 == _MARK >> 40
                and not psutil.pid_exists(mark - _MARK)
                and os.stat(f"/proc/{pid}/ns/pid").st_ino == os.stat("/proc/self/ns/pid").st_ino  # noqa: PTH116
                and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
            ):
                found.append(pid)
    return found


def wait_for_exit(server: int) -> None:
    """Wait for the end of a server, and kill it after a timeout.

    Raises:
        ProcessLookupError: It is gone already.
    """
    descriptor = os.pidfd_open(server)
    try:
        if not wait_until_dead([descriptor], FAREWELL_S):
            os.kill(server, signal.SIGKILL)
    finally:
        os.close(descriptor)
