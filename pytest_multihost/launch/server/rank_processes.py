"""The rank processes of one world, in the server that has forked them.

The server sends all signals, not the controller: a process id is valid only until the parent has
reaped the process, then the kernel may reuse it. The server is the parent, so an id that it has not
reaped yet still refers to the rank.

Pauses: all times are absolute, so a late turn does not delay the next ones.
"""

from __future__ import annotations

import contextlib
import math
import os
import selectors
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

# By name: a test may replace it in its module, and the rank must end all the same.
from os import _exit as leave

from pytest_multihost.launch.interface import RunRank, dump_signal
from pytest_multihost.launch.libc import die_with_parent
from pytest_multihost.launch.reaper import (
    SERVER_VARIABLE,
    end_groups,
    kill_orphans,
    signal_group,
    wait_until_dead,
)
from pytest_multihost.launch.wire import Channel
from pytest_multihost.model.event import BROKEN, Event, Exited, Pause
from pytest_multihost.model.messages import RequestDumps
from pytest_multihost.model.spec import RankSpec

KILL_S = 5.0
"""How long a killed rank may take to die before it is reported as unkillable."""


Signals = list[tuple[int, int]]
"""Ranks, each with the signal to send to it."""


@dataclass(slots=True)
class _Pause:
    """One rank that is stopped and continued.

    Attributes:
        stopped_s: How long it is stopped in each turn.
        running_s: How long it runs in each turn; 0 if there is one turn only.
        until_s: When it is continued for good.
        due_s: When the next signal is to be sent.
        is_stopped: Whether the last one was SIGSTOP.
    """

    stopped_s: float
    running_s: float
    until_s: float
    due_s: float
    is_stopped: bool = False


@dataclass(slots=True)
class PauseSchedule:
    """The ranks of one world that are stopped and continued."""

    _planned: dict[int, _Pause] = field(default_factory=dict)

    def begin(self, rank: int, pause: Pause, now_s: float) -> Signals:
        """Stop a rank now, and later continue it; return which signals to send now."""
        self._planned[rank] = _Pause(
            stopped_s=_or_for_ever(pause.stopped_s),
            running_s=_or_for_ever(pause.running_s),
            until_s=_or_for_ever(pause.until_s),
            due_s=now_s,
        )
        return self.act(now_s)

    def end(self, rank: int) -> Signals:
        """Continue a rank for good; return which signals to send now."""
        was = self._planned.pop(rank, None)
        return [(rank, signal.SIGCONT)] if was is not None else []

    def forget(self) -> None:
        """Cancel all pauses: the world is being ended."""
        self._planned.clear()

    def wait_s(self, now_s: float) -> float | None:
        """Return the seconds until the next signal is due, None if none is."""
        due_s = min(
            (min(each.due_s, each.until_s) for each in self._planned.values()), default=None
        )
        return None if due_s is None or math.isinf(due_s) else max(0.0, due_s - now_s)

    def act(self, now_s: float) -> Signals:
        """Return which signals to send now."""
        sent: Signals = []
        for rank, pause in list(self._planned.items()):
            if now_s >= pause.until_s:
                sent += self.end(rank)
            elif now_s >= pause.due_s:
                pause.is_stopped = not pause.is_stopped
                sent.append((rank, signal.SIGSTOP if pause.is_stopped else signal.SIGCONT))
                pause.due_s += pause.stopped_s if pause.is_stopped else pause.running_s
        return sent


def _or_for_ever(seconds: float | None) -> float:
    return math.inf if seconds is None else seconds


@dataclass(slots=True)
class RankProcesses:
    """Ranks that have been forked and not been reaped yet, by pidfd.

    A pidfd (pidfd_open(2)) becomes readable when its process ends. A rank's stream may not end with
    it: a child that the rank has forked holds a copy.

    Attributes:
        selector: Reports their ends.
        spared: Children of this process that are not ranks and outlive the world.
    """

    selector: selectors.BaseSelector
    spared: frozenset[int]
    _alive: dict[int, tuple[int, int]] = field(default_factory=dict)
    _pauses: PauseSchedule = field(default_factory=PauseSchedule)

    @property
    def pidfds(self) -> Sequence[int]:
        """The descriptors that a rank must not keep."""
        return tuple(self._alive)

    def has(self, pidfd: int) -> bool:
        """Whether a descriptor is that of a rank."""
        return pidfd in self._alive

    def add(self, rank: int, pid: int) -> None:
        """Note a rank that was just forked."""
        pidfd = os.pidfd_open(pid)
        self._alive[pidfd] = (rank, pid)
        self.selector.register(pidfd, selectors.EVENT_READ)

    def wait_s(self, now_s: float) -> float | None:
        """Return in how many seconds a pause begins or ends, None if none does."""
        return self._pauses.wait_s(now_s)

    def act(self, now_s: float) -> None:
        """Stop and continue the ranks whose signals are due."""
        self._signal(self._pauses.act(now_s))

    def pause(self, rank: int, pause: Pause | None) -> None:
        """Stop a rank, and later continue it; None: continue it for good."""
        now_s = time.monotonic()
        pauses = self._pauses
        self._signal(pauses.begin(rank, pause, now_s) if pause else pauses.end(rank))

    def request_dumps(self, request: RequestDumps) -> None:
        """Have ranks write a dump."""
        pids = dict(self._alive.values())
        for rank in request.ranks:
            self.pause(rank, None)
            if rank in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pids[rank], dump_signal(request.what))
                    # A stopped rank would keep the signal pending and show no stacks.
                    os.kill(pids[rank], signal.SIGCONT)

    def _signal(self, signals: Signals) -> None:
        """Stop or continue ranks, and their children with them."""
        pids = dict(self._alive.values())
        for rank, number in signals:
            if rank in pids:
                signal_group(pids[rank], number)

    def reap(self, pidfd: int) -> Event:
        """Reap a rank that has ended, and return its exit event."""
        rank, pid = self._forget(pidfd)
        _, status, usage = os.wait4(pid, 0)
        body = Exited(
            code=os.WEXITSTATUS(status) if os.WIFEXITED(status) else None,
            signal=os.WTERMSIG(status) if os.WIFSIGNALED(status) else None,
            cpu_s=usage.ru_utime + usage.ru_stime,
            peak_rss_bytes=usage.ru_maxrss * 1024,
        )
        return Event(time.monotonic(), rank, body)

    def end(self, *, grace_s: float) -> tuple[list[Event], list[str]]:
        """End all ranks, and all processes that they have left behind.

        Returns:
            The exits, and command lines of other processes that had to be killed.
        """
        self._pauses.forget()
        leaders = {pidfd: pid for pidfd, (_, pid) in self._alive.items()}
        end_groups(leaders, grace_s=grace_s)
        exits = [self.reap(pidfd) for pidfd in wait_until_dead(leaders, KILL_S)]
        leftovers = list(self._give_up(list(self._alive)))
        return exits, leftovers + kill_orphans(spare=self.spared)

    def _give_up(self, pidfds: Iterable[int]) -> Iterable[str]:
        """Forget ranks that even SIGKILL does not end: they hang in the kernel."""
        for pidfd in pidfds:
            rank, pid = self._forget(pidfd)
            yield f"rank {rank}, process {pid}: cannot be killed, it waits inside the kernel"

    def _forget(self, pidfd: int) -> tuple[int, int]:
        self.selector.unregister(pidfd)
        os.close(pidfd)
        return self._alive.pop(pidfd)


def reserve_port(address: str = "127.0.0.1") -> socket.socket:
    """Return a bound, unconnected socket that reserves a port at `address`.

    Finding a free port and closing it again is a race. This socket stays open for the world's
    lifetime, so the kernel assigns its port to no other process. A rank can still bind the port
    with SO_REUSEADDR, as libuv (torch) and gRPC (jax) do, because this socket never listens.
    """
    holder = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.bind((address, 0))
    return holder


def fork_rank(
    spec: RankSpec,
    stream: socket.socket,
    *,
    close: Iterable[int],
    run_rank: RunRank,
    enter: Callable[[], None] | None = None,
) -> int:
    """Fork a rank and return its process id.

    Args:
        spec: Its place in the world.
        stream: Its end of the connection to the controller.
        close: Descriptors of the server, and of other ranks, that it must not keep.
        run_rank: The rank's main function. Must not return; if it does or raises, the rank still
            never continues in the server's code.
        enter: Moves the rank onto its host, where that is not the server's.
    """
    server = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setsid()  # so that one signal to its process group reaches its children
        if enter is not None:
            enter()
        die_with_parent(server)  # after changes of credentials, which would undo it
        os.environ[SERVER_VARIABLE] = str(server)
        for descriptor in close:
            os.close(descriptor)
        run_rank(spec, Channel(stream))
    except BaseException:  # noqa: BLE001 - nothing may climb into the server's stack
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        # Not sys.exit: that would unwind into the server's loop, and run exit handlers and flush
        # buffers inherited from the server a second time.
        leave(BROKEN)
