"""End processes reliably, so that none outlives the controller.

A rank leads its own session, so one signal to its group reaches the processes it forked. A process
that left the group, such as a grandchild with its own session, is adopted by the server, which is a
subreaper (prctl(2), PR_SET_CHILD_SUBREAPER). Deaths are detected through pidfds, never by the end
of a stream: children inherit descriptors, which outlive the rank.

When a server is killed, nothing adopts the processes that its ranks have left behind. So every rank
is marked, and its descendants inherit the mark, by which they are found: after a server was killed,
and before a new server begins, in case earlier servers were killed with their controllers.

Named semaphores and shared memory outlive their processes. A tracker removes them when its clients
have ended: multiprocessing's resource tracker, or torch's shared memory manager. So trackers are
killed last, and only if they do not end by themselves.
"""

from __future__ import annotations

import contextlib
import math
import os
import resource
import select
import signal
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path

import psutil

from pytest_multihost.core.launch import libc
from pytest_multihost.core.procfs import command_of

FAREWELL_S = 15.0
"""How long the server may take to end its ranks and itself."""

ORPHANS_S = 5.0
"""Timeout for killing orphans: one in uninterruptible sleep cannot be killed."""

_TRACKERS_S = 4.0
"""How long trackers may take to remove the named resources of killed processes.

torch's manager begins 2 s after its last client has ended (SHUTDOWN_TIMEOUT in its manager.cpp).
"""

_RESOURCE_TRACKER = b"\0from multiprocessing.resource_tracker import main"

_LOCKS_LIMIT = 10
"""RLIMIT_LOCKS of getrlimit(2), which has had no effect since Linux 2.4 and holds the mark.

Every fork and exec inherits limits, even in a daemon that changes its session, descriptors,
environment and parent; and other processes can read them. Nothing else has both properties.
"""

_MARK = 0x6D68 << 40
"""The mark, with the server's process id in the lower bits: the soft limit of all descendants."""


def mark_descendants(server: int, pid: int = 0) -> None:
    """Mark a process and all its future descendants, which are to end when `server` is dead.

    Args:
        pid: The process; 0: this one.
    """
    with contextlib.suppress(OSError, ValueError):  # a lower hard limit; it has ended
        _, hard = resource.prlimit(pid, _LOCKS_LIMIT)
        resource.prlimit(pid, _LOCKS_LIMIT, (_MARK | server, hard))


def _is_tracker(pid: int) -> bool:
    command = command_of(pid)
    program = Path(os.fsdecode(command.partition(b"\0")[0])).name
    return program == "torch_shm_manager" or _RESOURCE_TRACKER in command


def signal_group(leader: int, number: int) -> None:
    """Signal the process group of `leader`, or only `leader` before it has made its group."""
    try:
        os.killpg(leader, number)
    except ProcessLookupError:
        with contextlib.suppress(ProcessLookupError):
            os.kill(leader, number)


def end_groups(leaders: Mapping[int, int], *, grace_s: float) -> None:
    """End processes and their groups: TERM, CONT, at most `grace_s` seconds, KILL.

    CONT is needed because TERM would stay pending in a stopped process. Processes are not reaped.
    Trackers, which ignore TERM, are left to `kill_orphans`.

    Args:
        leaders: Process ids of group leaders, unreaped children of this process, by pidfd.
        grace_s: How long they may take to end by themselves after TERM.
    """
    for number in (signal.SIGTERM, signal.SIGCONT):
        for leader in leaders.values():
            signal_group(leader, number)
    wait_until_dead(leaders, grace_s)
    groups = _groups_with_trackers() if leaders else {}  # this reads all of /proc
    for leader in leaders.values():
        for pid in groups.get(leader, ()):
            if not _is_tracker(pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        if leader not in groups:
            signal_group(leader, signal.SIGKILL)


def _groups_with_trackers() -> dict[int, list[int]]:
    """Return the members of each process group that has a tracker, by the group's leader."""
    groups: dict[int, list[int]] = {}
    for pid in psutil.pids():
        with contextlib.suppress(OSError):
            groups.setdefault(os.getpgid(pid), []).append(pid)
    return {leader: pids for leader, pids in groups.items() if any(map(_is_tracker, pids))}


def wait_until_dead(pidfds: Iterable[int], timeout_s: float) -> list[int]:
    """Return the members of `pidfds` whose processes have ended within `timeout_s` seconds."""
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
    """Kill and reap every descendant of this process, except those in `spare` and their children.

    Returns:
        The command lines of processes that were still alive, for the report.
    """
    ended: list[str] = []
    now = began = time.monotonic()
    while now < began + ORPHANS_S:
        # Usually there are no children. This call finds that out in microseconds; reading /proc
        # would cost milliseconds in every test.
        try:
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            break
        orphans = list(_descendants(psutil.Process(), spare))
        if not orphans:
            break
        for process in orphans:
            with contextlib.suppress(psutil.Error, ChildProcessError):
                if process.status() == psutil.STATUS_ZOMBIE:
                    os.waitpid(process.pid, os.WNOHANG)
                elif now >= began + _TRACKERS_S or not _is_tracker(process.pid):
                    # A process without a command line has released its memory: it is ending.
                    if command := " ".join(process.cmdline())[:200]:
                        ended.append(command)
                    process.kill()
        time.sleep(0.002)
        now = time.monotonic()
    return ended


def _descendants(process: psutil.Process, spare: Collection[int]) -> Iterator[psutil.Process]:
    """Yield the descendants of a process, except those in `spare` and their descendants."""
    children: dict[int, list[psutil.Process]] = {}
    for each in process.children(recursive=True):
        with contextlib.suppress(psutil.Error):
            children.setdefault(each.ppid(), []).append(each)
    waiting = [process.pid]
    while waiting:
        for each in children.get(waiting.pop(), ()):
            if each.pid not in spare:
                waiting.append(each.pid)
                yield each


def creation_times(pids: Iterable[int]) -> dict[int, float]:
    """Return when processes were created, in seconds since the epoch; skip ended processes."""
    found = {}
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            found[pid] = psutil.Process(pid).create_time()
    return found


def remove_shared_memory(created: Mapping[int, float]) -> None:
    """Remove System V shared memory that killed processes have made and no process uses.

    Semaphores and message queues stay, because the kernel records the creator's process id only for
    shared memory (sysvipc(7)).

    Args:
        created: When each process was created. An older segment belongs to an earlier process with
            the same id.
    """
    with contextlib.suppress(OSError):  # a kernel without System V IPC
        header, *lines = Path("/proc/sysvipc/shm").read_text().splitlines()
        for line in lines:
            row = dict(zip(header.split(), map(int, line.split()), strict=True))
            began = created.get(row["cpid"], math.inf)
            # psutil derives times from the boot time, which the kernel gives in whole seconds.
            if row["nattch"] == 0 and row["ctime"] >= began - 2:
                libc.remove_shared_memory(row["shmid"])


def kill_strays() -> None:
    """Kill the descendants of ranks whose servers are dead."""
    now = began = time.monotonic()
    while now < began + ORPHANS_S and (found := _strays()):
        for pid in found:
            may_end = now < began + _TRACKERS_S and _is_tracker(pid)  # CONT: it may be stopped
            _signal_stray(pid, signal.SIGCONT if may_end else signal.SIGKILL)
        time.sleep(0.002)
        now = time.monotonic()


def _strays() -> list[int]:
    """Return marked processes of this user whose server is dead.

    Processes of other pid namespaces are skipped: there the id in the mark means another process.
    So are those of other users, who can mark their processes, and processes that have taken the
    rights of another user.
    """
    found = []
    for pid in map(int, filter(str.isdecimal, os.listdir("/proc"))):
        with contextlib.suppress(OSError, psutil.Error):
            if _is_stray(pid):
                found.append(pid)
    return found


def _is_stray(pid: int) -> bool:
    mark, _ = resource.prlimit(pid, _LOCKS_LIMIT)
    return (
        mark >> 40 == _MARK >> 40
        and not psutil.pid_exists(mark - _MARK)
        and {*psutil.Process(pid).uids()} == {os.geteuid()}
        and os.stat(f"/proc/{pid}/ns/pid").st_ino == os.stat("/proc/self/ns/pid").st_ino  # noqa: PTH116
        and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    )


def _signal_stray(pid: int, number: int) -> None:
    """Signal a stray, but no other process that has got its id meanwhile."""
    with contextlib.suppress(OSError, psutil.Error):
        descriptor = os.pidfd_open(pid)
        try:
            if _is_stray(pid):  # the descriptor keeps the id from meaning another process
                signal.pidfd_send_signal(descriptor, number)
        finally:
            os.close(descriptor)


def wait_for_exit(server: int) -> None:
    """Wait for the end of a server, and kill it after a timeout.

    Raises:
        ProcessLookupError: The server is already gone.
    """
    descriptor = os.pidfd_open(server)
    try:
        if not wait_until_dead([descriptor], FAREWELL_S):
            os.kill(server, signal.SIGKILL)
    finally:
        os.close(descriptor)
