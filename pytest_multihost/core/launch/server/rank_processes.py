"""The rank processes of one world, in the server that has forked them.

The server sends all signals, not the controller, because the kernel may reuse a process id once the
parent has reaped the process. The server is the parent, so an id that it has not reaped yet still
refers to the rank.

All times of pauses are absolute, so a late turn does not delay the next ones.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from pytest_multihost.core import files
from pytest_multihost.core.launch.control_groups import OWN_GROUPS
from pytest_multihost.core.launch.reaper import (
    creation_times,
    end_groups,
    kill_orphans,
    remove_shared_memory,
    signal_group,
    wait_until_dead,
)
from pytest_multihost.core.model.event import Event, Exited, Pause
from pytest_multihost.core.model.messages import RequestDumps
from pytest_multihost.core.procfs import descendants_of
from pytest_multihost.core.slots.stacks import (
    can_handle,
    dump_signal,
    harness_thread,
    py_spy_command,
    signal_thread,
)

KILL_S = 5.0
"""How long a killed rank may take to die before it is reported as unkillable."""


_CHILDREN_S = 1.0
"""How long all children of ranks may take to write their stacks."""

_CHILD_S = 0.2
"""The same for one of them."""

_POLL_S = 0.003

_SHARED = "/dev/shm"  # noqa: S108 - only its free space is asked for
"""Where shared memory lies: a write to it that finds no space ends a process with SIGBUS."""

Signals = list[tuple[int, int]]
"""Ranks, each with the signal to send to it."""


def _turns(pause: Pause, now_s: float) -> Iterator[tuple[float, int]]:
    """Yield times and signals that stop and continue a rank in turns until the pause is over."""
    stopped_s, running_s, until_s = (
        math.inf if each is None else each
        for each in (pause.stopped_s, pause.running_s, pause.until_s)
    )
    while now_s < until_s:
        yield now_s, signal.SIGSTOP
        yield min(now_s + stopped_s, until_s), signal.SIGCONT
        now_s += stopped_s + running_s


@dataclass(slots=True)
class PauseSchedule:
    """The pauses of the ranks of one world, each with its remaining turns."""

    _turns: dict[int, Iterator[tuple[float, int]]] = field(default_factory=dict)
    _next: dict[int, tuple[float, int]] = field(default_factory=dict)

    def begin(self, rank: int, pause: Pause, now_s: float) -> Signals:
        """Stop a rank now, and later continue it; return the signals to send now."""
        self._turns[rank] = _turns(pause, now_s)
        self._advance(rank)
        return self.act(now_s)

    def end(self, rank: int) -> Signals:
        """End the pause of a rank; return the signals to send now."""
        return [(rank, signal.SIGCONT)] if self._next.pop(rank, None) else []

    def clear(self) -> None:
        """Cancel all pauses: the world is being ended."""
        self._next.clear()

    def wait_s(self, now_s: float) -> float | None:
        """Return the seconds until the next signal is due; None if no pause is running."""
        due_s = min((due_s for due_s, _ in self._next.values()), default=math.inf)
        return None if math.isinf(due_s) else max(0.0, due_s - now_s)

    def act(self, now_s: float) -> Signals:
        """Return the signals to send now."""
        due = [(rank, number) for rank, (due_s, number) in self._next.items() if due_s <= now_s]
        for rank, _ in due:
            self._advance(rank)
        return due

    def _advance(self, rank: int) -> None:
        following = next(self._turns[rank], None)
        if following is None:
            del self._next[rank]
        else:
            self._next[rank] = following


@dataclass(slots=True)
class RankProcesses:
    """Ranks that have been forked and not been reaped yet, by pidfd.

    A pidfd (pidfd_open(2)) becomes readable when its process ends. A rank's stream may stay open
    after that, because a child that the rank has forked holds a copy.

    Attributes:
        spared: Children of this process that are not ranks and outlive the world.
    """

    selector: selectors.BaseSelector
    spared: frozenset[int]
    _alive: dict[int, tuple[int, int]] = field(default_factory=dict)
    _pauses: PauseSchedule = field(default_factory=PauseSchedule)
    _readers: list[subprocess.Popen[bytes]] = field(default_factory=list)
    _directory: Path = Path()
    _oom_kills: int = 0

    @property
    def pidfds(self) -> Collection[int]:
        """The descriptors of the ranks, which a rank must not keep."""
        return self._alive.keys()

    def begin(self) -> None:
        """Note the state of the machine before the ranks of a world are forked."""
        self._oom_kills = OWN_GROUPS.oom_kills()

    def add(self, rank: int, pid: int, directory: Path) -> None:
        """Add a newly forked rank, and the directory for its stacks."""
        self._directory = directory
        pidfd = os.pidfd_open(pid)
        self._alive[pidfd] = (rank, pid)
        self.selector.register(pidfd, selectors.EVENT_READ)

    def wait_s(self, now_s: float) -> float | None:
        """Return in how many seconds `act` is due; None if no pause is running."""
        return self._pauses.wait_s(now_s)

    def act(self, now_s: float) -> None:
        """Stop and continue the ranks whose signals are due."""
        self._signal(self._pauses.act(now_s))

    def pause(self, rank: int, pause: Pause | None) -> None:
        """Begin a pause of a rank; None: end its pause."""
        now_s = time.monotonic()
        pauses = self._pauses
        self._signal(pauses.begin(rank, pause, now_s) if pause else pauses.end(rank))

    def request_dumps(self, request: RequestDumps) -> None:
        """Have ranks write a dump; have py-spy read the stacks of ranks that cannot."""
        pids, number = dict(self._alive.values()), dump_signal(request.what)
        until_s = time.monotonic() + _CHILDREN_S
        for rank in request.ranks:
            self.pause(rank, None)
            if rank not in pids:
                continue
            if request.what == "children":
                self._dump_children(rank, pids[rank], until_s)
                continue
            if request.what == "child tasks":
                _signal_children(pids[rank], number)
                continue
            with contextlib.suppress(OSError):
                if request.what == "aside":
                    self._dump_aside(rank, pids[rank], number)
                elif request.what != "outside" and can_handle(pids[rank], number):
                    os.kill(pids[rank], number)
                elif request.what in {"threads", "outside"}:
                    self._read_stacks(rank, pids[rank])
                # A stopped rank would keep the signal pending and show no stacks.
                os.kill(pids[rank], signal.SIGCONT)

    def _dump_aside(self, rank: int, pid: int, number: int) -> None:
        """Have a rank write its stacks without a signal to its main thread, or py-spy read them."""
        own = harness_thread(pid, rank) if can_handle(pid, number) else 0
        if own:
            signal_thread(pid, own, number)
        else:
            self._read_stacks(rank, pid)

    def _read_stacks(self, rank: int, pid: int) -> None:
        """Have py-spy write a rank's stacks, or an error, to the rank's file."""
        command = py_spy_command()
        with files.appending(self._directory / f"rank-{rank}.stacks") as out:
            if command:
                command = (*command, str(pid))
                null = subprocess.DEVNULL
                reader = subprocess.Popen(command, stdin=null, stdout=out, stderr=out, env={})
                self._readers.append(reader)
            else:
                out.write(b"py-spy is not installed (pip install pytest-multihost-hangs[stacks])\n")

    def _dump_children(self, rank: int, pid: int, until_s: float) -> None:
        """Have children of a rank write their stacks, one after the other, and copy these.

        A forked child has the rank's handler, and with it the rank's file for stacks; a child that
        is a new interpreter has its own handler for the same file. Each line of the copy is JSON:
        process id, name, and faulthandler's text.
        """
        stacks, lines = self._directory / f"rank-{rank}.stacks", []
        number = dump_signal("threads")
        for child in descendants_of(pid):
            with contextlib.suppress(OSError):
                if time.monotonic() < until_s and can_handle(child, number):
                    size = stacks.stat().st_size
                    name = Path(f"/proc/{child}/comm").read_text(errors="replace").strip()
                    os.kill(child, number)
                    lines.append(json.dumps([child, name, _text_after(stacks, size)]))
        with (self._directory / f"rank-{rank}.children").open("a") as file:
            file.write("".join(f"{each}\n" for each in lines) or "[]\n")

    def _signal(self, signals: Signals) -> None:
        """Stop or continue ranks and their children."""
        pids = dict(self._alive.values())
        for rank, number in signals:
            if rank in pids:
                signal_group(pids[rank], number)

    def reap(self, pidfd: int) -> Event:
        """Reap a rank that has ended, and return its exit event."""
        rank, pid = self._forget(pidfd)
        _, status, usage = os.wait4(pid, 0)
        number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
        body = Exited(
            code=os.WEXITSTATUS(status) if os.WIFEXITED(status) else None,
            signal=number,
            cpu_s=usage.ru_utime + usage.ru_stime,
            peak_rss_bytes=usage.ru_maxrss * 1024,
            full=_SHARED if number == signal.SIGBUS and _is_full(_SHARED) else "",
            lacked_memory=number == signal.SIGKILL and OWN_GROUPS.oom_kills() > self._oom_kills,
        )
        return Event(time.monotonic(), rank, body)

    def end(self, *, grace_s: float) -> tuple[list[Event], list[str]]:
        """End all ranks, and all processes that they have left behind.

        Returns:
            The exits, and the command lines of other processes that had to be killed.
        """
        self._pauses.clear()
        for reader in self._readers:
            reader.kill()
            reader.wait()
        self._readers.clear()
        leaders = {pidfd: pid for pidfd, (_, pid) in self._alive.items()}
        created = creation_times(leaders.values())
        end_groups(leaders, grace_s=grace_s)
        exits = [self.reap(pidfd) for pidfd in wait_until_dead(leaders, KILL_S)]
        leftovers = [
            f"rank {rank}, process {pid}: cannot be killed, it waits inside the kernel"
            for rank, pid in [self._forget(pidfd) for pidfd in list(self._alive)]
        ]
        leftovers += kill_orphans(spare=self.spared)
        remove_shared_memory(created)
        return exits, leftovers

    def _forget(self, pidfd: int) -> tuple[int, int]:
        self.selector.unregister(pidfd)
        os.close(pidfd)
        return self._alive.pop(pidfd)


def _is_full(folder: str) -> bool:
    """Return whether a file system has no space left; one without a bound has always some."""
    try:
        found = os.statvfs(folder)
    except OSError:
        return False
    return found.f_blocks > 0 and found.f_bavail == 0


def _signal_children(pid: int, number: int) -> None:
    """Send a signal to those descendants of a process that handle it."""
    for child in descendants_of(pid):
        with contextlib.suppress(OSError):
            if can_handle(child, number):
                os.kill(child, number)


def _text_after(file: Path, size: int) -> str:
    """Return the text appended to a file from now on, once it has stopped growing."""
    until_s, last = time.monotonic() + _CHILD_S, size
    while time.monotonic() < until_s:
        time.sleep(_POLL_S)
        now = file.stat().st_size
        if now == last > size:
            break
        last = now
    with file.open("rb") as written:
        written.seek(size)
        return written.read().decode("utf-8", "backslashreplace")
