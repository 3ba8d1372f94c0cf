"""What the engine, and whoever watches a world, ask of a launcher and of the world it starts."""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, Protocol, get_args

from pytest_multihost.launch.wire import Channel, Frame
from pytest_multihost.model.event import Event, Pause
from pytest_multihost.model.messages import DumpKind, SnapshotTaken
from pytest_multihost.model.spec import RankSpec, WorldSpec

ANSWER_S = 60.0
"""How long the server may take to answer. Forking 64 ranks of a large image takes a second."""

RunRank = Callable[[RankSpec, Channel], NoReturn]
"""What a freshly forked rank does for the rest of its life."""


def dump_signal(kind: DumpKind) -> int:
    """Return the signal on which a rank writes what is asked for.

    A real-time signal: they queue, and unlike SIGUSR1 and SIGUSR2 no scheduler or trainer sends
    them (torchelastic and Slurm use those to announce termination).
    """
    return signal.SIGRTMIN + 9 + get_args(DumpKind).index(kind)


@dataclass(frozen=True, slots=True)
class Ending:
    """What was found when a world was ended.

    Attributes:
        events: Exits that had not been seen before.
        leftovers: Command lines of processes that ranks had left behind.
    """

    events: tuple[Event, ...] = ()
    leftovers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """The part of a world that one server starts, where several start it together.

    Attributes:
        ranks: Which ranks.
        ports: What the server that starts the primary holds for the world; None there.
    """

    ranks: tuple[int, ...]
    ports: tuple[int, int] | None = None


class NetworkFaults(Protocol):
    """Faults of the network between the hosts of one world."""

    def disturb(self, rank: int, index: int) -> None:
        """Have a fault happen; an event of kind "network" tells what came of it.

        Args:
            rank: The rank that has passed the fault's point.
            index: Its place among the world's faults.
        """

    def calm(self) -> None:
        """End all of them; an event of kind "network" without an index tells when they have."""


class RemotePart(Protocol):
    """Ranks of a world on another machine: the peer that has started them sees them for us."""

    @property
    def ranks(self) -> Sequence[int]:
        """Which ranks."""

    @property
    def host(self) -> str:
        """The machine's name."""

    @property
    def machine(self) -> str:
        """What tells its kernel from all others."""

    @property
    def clock(self) -> tuple[float, float]:
        """Seconds to add to times on its clock to make them ours, and how wrong that may be."""

    def begin_snapshot(self, *, is_deep: bool) -> None:
        """Have the peer take a snapshot."""

    def finish_snapshot(self) -> tuple[SnapshotTaken, Mapping[str, bytes]]:
        """Return the snapshot, and the ranks' slot pages by file name.

        Raises:
            LaunchError: The peer is gone, or does not answer.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldProcesses:
    """What of the harness is around the ranks of one world, for whoever watches it.

    Attributes:
        servers: The processes that have forked the ranks: these hold what the ranks inherit.
        reaper: The server that inherits the ranks' orphans; None where there are several.
        companions: Children of the server beside the ranks.
        socket_tables: What reads the socket tables of network namespaces in which ranks are, by the
            kernel's names of these.
        remote: Ranks that are not to be seen from here.
    """

    servers: frozenset[int] = frozenset()
    reaper: int | None = None
    companions: frozenset[int] = frozenset()
    socket_tables: Mapping[str, socket.socket] = field(default_factory=dict)
    remote: tuple[RemotePart, ...] = ()


class RankControl(Protocol):
    """Ranks of a world, all or those of one server: their events, and requests to them."""

    @property
    def processes(self) -> WorldProcesses:
        """What of the harness is around its ranks, for whoever watches them."""

    def wait(self, timeout_s: float) -> Sequence[Event]:
        """Return what happened, waiting at most `timeout_s` seconds for the first event.

        Raises:
            LaunchError: The server is gone.
        """

    def send(self, rank: int, frame: Frame[Any]) -> None:
        """Send a frame to a rank; a rank that is gone is no error here."""

    def request_dumps(self, ranks: Sequence[int], kind: DumpKind) -> None:
        """Have every rank of `ranks` write what is asked for to its file."""

    def pause(self, rank: int, pause: Pause) -> None:
        """Have a rank stopped, once or in turns, and continued by the clock."""

    def resume(self, rank: int) -> None:
        """End what `pause` began."""


class RunningWorld(RankControl, Protocol):
    """All ranks of one world, as the engine sees them."""

    @property
    def network_faults(self) -> NetworkFaults | None:
        """What disturbs the network between its hosts; None where these are not ours to disturb."""

    def end(self, *, grace_s: float) -> Ending:
        """End what is left, whatever state it is in, and return what was found."""


class Launcher(Protocol):
    """Starts worlds."""

    @property
    def name(self) -> str:
        """The way of launching, as the verdict calls it."""

    def start(self, spec: WorldSpec, *, directory: Path, scratch: Path) -> RunningWorld:
        """Start the ranks of a world.

        Raises:
            LaunchError: They could not be started; none is left.
        """
