"""The interfaces of launchers and of worlds, and a world that several servers have started."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, Protocol, TypeVar

from pytest_multihost.core.launch.remote_ranks import RemoteRanks
from pytest_multihost.core.launch.wire import Channel, Frame
from pytest_multihost.core.model.errors import LaunchError
from pytest_multihost.core.model.event import Event
from pytest_multihost.core.model.messages import DumpKind, FaultRequest, PauseRank
from pytest_multihost.core.model.spec import RankSpec, WorldSpec

ANSWER_S = 60.0
"""How long the server may take to answer. Forking 64 ranks of a large image takes a second."""

RunRank = Callable[[RankSpec, Channel], NoReturn]
"""The main function of a freshly forked rank; never returns."""


@dataclass(frozen=True, slots=True)
class Ending:
    """What ending a world has found.

    Attributes:
        events: Exits that had not been reported before.
        leftovers: Command lines of processes that ranks have left behind.
    """

    events: tuple[Event, ...] = ()
    leftovers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldProcesses:
    """The harness's own processes around the ranks of one world, for the watchdog.

    Attributes:
        servers: The processes that have forked the ranks, and hold the descriptors they inherit.
        reaper: The server that inherits the ranks' orphans; None where there are several.
        companions: Children of the server beside the ranks.
        socket_tables: Sockets that read the socket tables of the ranks' network namespaces, by the
            kernel's names of these.
        remote: Ranks on other machines, if there are any.
    """

    servers: frozenset[int] = frozenset()
    reaper: int | None = None
    companions: frozenset[int] = frozenset()
    socket_tables: Mapping[str, socket.socket] = field(default_factory=dict)
    remote: RemoteRanks | None = None


class RankControl(Protocol):
    """Ranks of a world, all or those of one server: their events, and requests to them."""

    @property
    def processes(self) -> WorldProcesses:
        """The harness's own processes around its ranks, for the watchdog."""

    @property
    def moved_bytes(self) -> int:
        """How much has been sent to and received from the ranks, also of incomplete frames."""

    def wait(self, timeout_s: float) -> Sequence[Event]:
        """Return what happened, waiting at most `timeout_s` seconds for the first event.

        Raises:
            LaunchError: The server is gone.
        """

    def send(self, rank: int, frame: Frame[Any]) -> None:
        """Send a frame to a rank; a rank that is gone is no error here."""

    def request_dumps(self, ranks: Sequence[int], kind: DumpKind) -> None:
        """Have every rank of `ranks` write a dump to its file."""

    def request(self, message: FaultRequest) -> None:
        """Have the server perform a part of a fault that the rank cannot perform itself.

        A `FaultAnswered` reports the outcome of `PerformFault`, and completion of `UndoFaults`.
        """


class RunningWorld(RankControl, Protocol):
    """All ranks of one world, as the engine sees them."""

    def end(self, *, grace_s: float) -> Ending:
        """End all remaining processes, in any state, and return what was found."""


class Launcher(Protocol):
    """Starts worlds."""

    @property
    def name(self) -> str:
        """The way of launching, as the verdict calls it."""

    def start(self, spec: WorldSpec, *, directory: Path, scratch: Path) -> RunningWorld:
        """Start the ranks of a world.

        Raises:
            LaunchError: The ranks could not be started; none is left running.
        """


# Why processes cannot be started: what happened, why, what to do.
#
# Errors of the operating system, and what this machine lacks.


_FEWER = "or use fewer ranks (and fewer of pytest-xdist's workers)"
_REMEDIES = {
    errno.EAGAIN: f"Raise the limit on processes (ulimit -u, docker run --pids-limit), {_FEWER}.",
    errno.EMFILE: f"Raise the limit on open files of a process (ulimit -n), {_FEWER}.",
    errno.ENFILE: f"Raise the machine's limit on open files (sysctl fs.file-max), {_FEWER}.",
    errno.ENOMEM: f"Free memory, or raise its limit (docker run --memory), {_FEWER}.",
    errno.ENOSPC: "Free some space: see df, and df -i.",
}


def remedy_against(error: BaseException) -> str:
    """Return what to do against an error; empty if it is not the system's, or nothing is known."""
    return _REMEDIES.get(error.errno or 0, "") if isinstance(error, OSError) else ""


def refused(happened: str, error: OSError) -> LaunchError:
    """Return an error of the operating system as one of launching."""
    return LaunchError(happened, seen=str(error), remedy=remedy_against(error))


@contextlib.contextmanager
def refusals(happened: str) -> Iterator[None]:
    """Turn errors of the operating system into errors of launching.

    Raises:
        LaunchError: There was one.
    """
    try:
        yield
    except OSError as error:
        raise refused(happened, error) from error


# A world whose ranks were started by several servers; the engine sees one world.
#
# The servers are in the processes that a launcher such as torchrun has started.


T = TypeVar("T")


class WorldPart(RankControl, Protocol):
    """The ranks of a world that one server has started.

    Every request raises LaunchError when the server turns out to be gone.
    """

    @property
    def ranks(self) -> Sequence[int]:
        """Which ranks these are."""

    @property
    def has_events(self) -> bool:
        """Whether `wait` has something to return although nothing can be read."""

    @property
    def poll_events(self) -> int:
        """The poll events to wait for on its descriptor."""

    def fileno(self) -> int:
        """Return the descriptor to poll."""

    def collect_dumps(self) -> None:
        """Wait, where needed, until the ranks' dumps are in the world's directory."""

    def begin_end(self, *, grace_s: float) -> None:
        """Have the server start ending the ranks."""

    def finish_end(self) -> Ending:
        """Wait for the end and return what was found."""

    def close(self) -> None:
        """Close the streams."""


@dataclass(slots=True)
class CompositeWorld:
    """The parts of one world, which is lost when the server of one part ends.

    Attributes:
        parts: The parts; together they hold each rank once.
        remote: The ranks of those parts that are on other machines, if there are any.
    """

    parts: Sequence[WorldPart]
    remote: RemoteRanks | None = None
    _lost: set[int] = field(default_factory=set, init=False)

    @property
    def processes(self) -> WorldProcesses:
        """The harness's own processes around the ranks."""
        found = [part.processes for part in self.parts]
        return WorldProcesses(
            servers=frozenset().union(*(each.servers for each in found)),
            companions=frozenset().union(*(each.companions for each in found)),
            socket_tables={k: v for each in found for k, v in each.socket_tables.items()},
            remote=self.remote,
        )

    @property
    def moved_bytes(self) -> int:
        """How much has been sent to and received from the ranks."""
        return sum(part.moved_bytes for part in self.parts)

    def wait(self, timeout_s: float) -> Sequence[Event]:
        """Return what happened, waiting at most `timeout_s` seconds for the first event.

        Raises:
            LaunchError: A server is gone, and the world with it.
        """
        living = self._living()
        ready = [part for part in living if part.has_events]
        poll, by_descriptor = select.poll(), {part.fileno(): part for part in living}
        for descriptor, part in by_descriptor.items():
            poll.register(descriptor, part.poll_events)
        polled = poll.poll(0.0 if ready else max(0.0, timeout_s) * 1000)
        ready += [by_descriptor[descriptor] for descriptor, _ in polled]
        answers = [self._call(part, partial(part.wait, 0.0)) for part in living if part in ready]
        return _in_order(event for events in answers for event in events)

    def _living(self, ranks: Iterable[int] | None = None) -> list[WorldPart]:
        """Return the parts whose server is alive; if `ranks` is given, those with any of them."""
        wanted = None if ranks is None else set(ranks)
        return [
            part
            for index, part in enumerate(self.parts)
            if index not in self._lost and (wanted is None or not wanted.isdisjoint(part.ranks))
        ]

    def _call(self, part: WorldPart, request: Callable[[], T]) -> T:
        """Return the answer to a request.

        Raises:
            LaunchError: The server is gone, or its ranks are.
        """
        try:
            return request()
        except LaunchError:
            self._lost.add(self.parts.index(part))
            part.close()
            raise

    def send(self, rank: int, frame: Frame[Any]) -> None:
        """Send a frame to a rank; a rank that is gone is no error here."""
        for part in self._living([rank]):
            part.send(rank, frame)

    def request_dumps(self, ranks: Sequence[int], kind: DumpKind) -> None:
        """Have every rank of `ranks` write a dump to its file.

        All requests are sent before the first wait.
        """
        for part in self._living(ranks):
            theirs = [rank for rank in ranks if rank in part.ranks]
            self._call(part, partial(part.request_dumps, theirs, kind))
        for part in self._living(ranks):
            self._call(part, part.collect_dumps)

    def request(self, message: FaultRequest) -> None:
        """Have a rank paused.

        Raises:
            LaunchError: It is another request: services have their parts in one server.
        """
        if not isinstance(message, PauseRank):
            raise LaunchError("faults that a service performs need a world with one server")
        for part in self._living([message.rank]):
            self._call(part, partial(part.request, message))

    def end(self, *, grace_s: float) -> Ending:
        """End all remaining processes, in any state, and return what was found.

        A server that is gone has taken its ranks with it: nothing is found of them.
        """
        endings: list[Ending] = []
        for part in self._living():
            with contextlib.suppress(LaunchError):
                self._call(part, partial(part.begin_end, grace_s=grace_s))
        for part in self._living():
            with contextlib.suppress(LaunchError):
                endings.append(self._call(part, part.finish_end))
        for part in self._living():
            part.close()
        return Ending(
            tuple(_in_order(event for each in endings for event in each.events)),
            tuple(leftover for each in endings for leftover in each.leftovers),
        )


def _in_order(events: Iterable[Event]) -> list[Event]:
    """Return events in order of time."""
    return sorted(events, key=lambda event: event.at_s)


# Share one machine between several controllers, as pytest-xdist starts them.
#
# Ten workers that each start a world of eight would start eighty processes at once, and start-up
# deadlines would expire through no fault of the tests. So the ranks of all controllers of one run
# share a semaphore: a fixed number of permits, each a file that is locked with flock(2). The kernel
# releases a lock when its process ends, in any way.


def permit_count() -> int:
    """Return how many ranks may run at once: they wait more than they compute."""
    return max(8, 2 * (os.cpu_count() or 1))


@contextlib.contextmanager
def hold_permits(directory: Path, wanted: int, *, count: int | None = None) -> Iterator[None]:
    """Hold permits for a world's ranks, waiting until they are free.

    A world larger than their number takes all of them. A waiting controller holds the gate lock,
    so that several worlds cannot each hold some permits and wait for the rest.

    Args:
        directory: Where the lock files are; one per run of pytest.
        wanted: Number of ranks.
        count: Number of permits; by default `permit_count()`.
    """
    import fcntl  # not on every system that can import this package

    count = permit_count() if count is None else count
    missing = min(wanted, count)
    busy = []
    directory.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as held:
        with (directory / "gate").open("a") as gate:
            fcntl.flock(gate, fcntl.LOCK_EX)
            for index in range(count):
                if not missing:
                    break
                permit = held.enter_context((directory / str(index)).open("a"))
                try:
                    fcntl.flock(permit, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    missing -= 1
                except BlockingIOError:
                    busy.append(permit)
            for permit in busy[:missing]:
                fcntl.flock(permit, fcntl.LOCK_EX)
        yield
