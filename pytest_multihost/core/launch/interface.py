"""The interfaces of launchers, of worlds and of their ranks."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, Protocol

from pytest_multihost.core.launch.frames import WireFrame
from pytest_multihost.core.launch.remote_ranks import RemoteRanks
from pytest_multihost.core.launch.wire import Channel
from pytest_multihost.core.model.event import Event
from pytest_multihost.core.model.messages import DumpKind, FaultRequest
from pytest_multihost.core.model.spec import RankSpec, WorldSpec

ANSWER_S = 60.0
"""How long the server may take to answer. Forking 64 ranks of a large image takes a second."""

RunRank = Callable[[RankSpec, Channel], NoReturn]
"""The main function of a freshly forked rank; never returns."""


@dataclass(frozen=True, slots=True)
class Ending:
    """The outcome of ending a world.

    Attributes:
        events: Events that had not been reported before, such as exits.
        leftovers: Command lines of processes that ranks have left behind.
    """

    events: tuple[Event, ...] = ()
    leftovers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldProcesses:
    """The harness's own processes around the ranks of one world, for the watchdog.

    Attributes:
        servers: The processes that have forked the ranks, and hold the descriptors they inherit.
        reaper: The server that adopts the ranks' orphans; None if there are several servers.
        companions: Children of the server that are not ranks.
        exchanges: Those through which ranks wait for each other.
        idle: Servers, of this controller, that have nothing to do with this world.
        socket_tables: Sockets that read the socket tables of the ranks' network namespaces, by the
            namespaces' names in the kernel.
        remote: Ranks on other machines, if there are any.
    """

    servers: frozenset[int] = frozenset()
    reaper: int | None = None
    companions: frozenset[int] = frozenset()
    exchanges: frozenset[int] = frozenset()
    idle: frozenset[int] = frozenset()
    socket_tables: Mapping[str, socket.socket] = field(default_factory=dict)
    remote: RemoteRanks | None = None


class RankControl(Protocol):
    """All ranks of a world or those of one server: their events, and requests to them."""

    @property
    def processes(self) -> WorldProcesses:
        """The harness's own processes around its ranks, for the watchdog."""

    @property
    def moved_bytes(self) -> int:
        """Bytes sent to and received from the ranks, including incomplete frames."""

    def wait(self, timeout_s: float) -> Sequence[Event]:
        """Return new events, waiting at most `timeout_s` seconds for the first one.

        Raises:
            LaunchError: The server is gone.
        """

    def confirm(self) -> None:
        """Wait until all that the ranks had sent by now has arrived here.

        Raises:
            LaunchError: A server is gone, or does not answer.
        """

    def send(self, rank: int, frame: WireFrame[Any]) -> None:
        """Send a frame to a rank; a rank that is gone is not an error here."""

    def request_dumps(self, ranks: Sequence[int], kind: DumpKind) -> None:
        """Have every rank of `ranks` write a dump to its file."""

    def request(self, message: FaultRequest) -> None:
        """Have the server perform a part of a fault that the rank cannot perform itself.

        A `FaultAnswered` reports the outcome of `PerformFault`, and the end of `UndoFaults`.
        """


class RunningWorld(RankControl, Protocol):
    """All ranks of one world, as the engine sees them."""

    def end(self, *, grace_s: float) -> Ending:
        """End all remaining processes, in any state; return the last events and leftovers."""


class Launcher(Protocol):
    """Starts worlds."""

    @property
    def name(self) -> str:
        """The launch mode in use, as in the verdict."""

    def start(self, spec: WorldSpec, *, directory: Path, scratch: Path) -> RunningWorld:
        """Start the ranks of a world.

        Raises:
            LaunchError: The ranks could not be started; none is left running.
        """
