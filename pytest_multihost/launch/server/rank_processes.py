"""The processes of one world's ranks, in the server that has forked them.

Why all signals are sent here and not by the controller: a process id names a process only until its
parent has waited for it, then the kernel may give it to another one. The server is the parent, so
an id that it has not reaped yet still means the rank.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from pytest_multihost.launch.interface import dump_signal
from pytest_multihost.launch.reaper import (
    end_groups,
    kill_orphans,
    signal_group,
    wait_until_dead,
)
from pytest_multihost.launch.server.pause_schedule import PauseSchedule, Signals
from pytest_multihost.model.event import Event, Exited, Pause
from pytest_multihost.model.messages import RequestDumps

KILL_S = 5.0
"""How long a killed rank may take to die before it is reported as one that cannot be ended."""


@dataclass(slots=True)
class RankProcesses:
    """Ranks that have been forked and not been reaped yet, by pidfd.

    A pidfd (pidfd_open(2)) becomes readable when its process ends. The end of a rank's stream would
    not tell: a child that it has forked holds a copy of that.

    Attributes:
        selector: Tells of their ends.
        spared: Children of this process that are no rank's and outlive the world.
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
        """Stop and continue the ranks whose time it is."""
        self._signal(self._pauses.act(now_s))

    def pause(self, rank: int, pause: Pause) -> None:
        """Stop a rank, and later continue it."""
        self._signal(self._pauses.begin(rank, pause, time.monotonic()))

    def resume(self, rank: int) -> None:
        """Continue a paused rank for good."""
        self._signal(self._pauses.end(rank))

    def request_dumps(self, request: RequestDumps) -> None:
        """Have ranks write what is asked for."""
        pids = dict(self._alive.values())
        for rank in request.ranks:
            self.resume(rank)
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
        """Wait for a rank that has ended, and return how."""
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
        """End all, with everything that they have left behind.

        Returns:
            The exits, and command lines of what had to be killed beside the ranks.
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
