"""What controller and server say to each other, and what the engine asks of a launcher.

The control connection is a SOCK_SEQPACKET pair: one message, one packet, descriptors beside it.

Controller to server:

* ``fork``: the world's spec, its directories, and one socket per rank (in further ``streams``
  packets where they do not fit into one). With ``ranks``, these alone are forked; with ``ports``,
  the world's are held elsewhere.
* ``signal``: send a signal to some ranks. The server does it, not the controller: as their parent
  it alone knows that a process id still means the rank.
* ``pause``: stop a rank, once or in turns, and continue it by the clock; ``resume``: for good.
* ``disturb``: have a fault of the network happen on behalf of a rank; ``calm``: end all of these.
* ``probe``: find out whether hosts can be made from namespaces here.
* ``end``: end whatever is left of the world.
* ``quit``: end it, and the server too.

Server to controller: ``serving`` (once, when it has loaded what it should), ``forked`` (process
ids, ports; the process that disturbs the network, if there is one; the names of network namespaces
in which ranks are, with one socket per name that reads its tables, in further ``tables`` packets
where they do not fit into one), ``exited`` (one rank's status), ``changed`` (what was to be done to
the network has been), ``probed`` (why hosts cannot be made, if so), ``ended`` (everything is gone;
command lines of what had to be killed beside the ranks), ``failed`` (a request could not be
served).
"""

from __future__ import annotations

import array
import json
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NoReturn, Protocol, get_args

from pytest_multihost.launch.wire.framing import Channel, Frame
from pytest_multihost.model.event import Event
from pytest_multihost.model.spec import RankSpec, WorldSpec

MAX_DESCRIPTORS = 250
"""The kernel takes at most 253 descriptors in one message (SCM_MAX_FD)."""

_MAX_PACKET = 1 << 17
_INT = array.array("i").itemsize

RunRank = Callable[[RankSpec, Channel], NoReturn]
"""What a freshly forked rank does for the rest of its life."""


DumpKind = Literal[
    "threads",  # the stacks of all threads
    "main",  # that of the main thread alone
    "tasks",  # what asyncio's tasks wait for
]
"""What a rank can be asked for by a signal."""


CALM = "calm"
"""The token of the event that tells that all faults of the network have ended."""


def fault_token(index: int) -> str:
    """Return the token of the event that tells of a fault of the network, by its place."""
    return f"fault {index}"


def fault_index(token: str) -> int | None:
    """Return the place of the fault whose token it is, None if it is somebody else's token."""
    kind, _, number = token.partition(" ")
    return int(number) if kind == "fault" and number.isdecimal() else None


def dump_signal(kind: DumpKind) -> int:
    """Return the signal on which a rank writes what is asked for.

    A real-time signal: they queue, and unlike SIGUSR1 and SIGUSR2 no scheduler or trainer sends
    them (torchelastic and Slurm use those to announce termination).
    """
    return signal.SIGRTMIN + 9 + get_args(DumpKind).index(kind)


@dataclass(frozen=True, slots=True)
class Packet:
    """One message on the control connection."""

    header: Mapping[str, Any]
    descriptors: tuple[int, ...] = ()


def send_packet(
    control: socket.socket, header: Mapping[str, Any], descriptors: Sequence[int] = ()
) -> None:
    """Send one packet; the kernel duplicates the descriptors for the receiver."""
    socket.send_fds(control, [json.dumps(header).encode()], list(descriptors))


def receive_packet(control: socket.socket) -> Packet | None:
    """Return the next packet, or None when the other side is gone. Waits for it."""
    space = socket.CMSG_SPACE(MAX_DESCRIPTORS * _INT)
    try:
        data, ancillary, _, _ = control.recvmsg(_MAX_PACKET, space)
    except ConnectionResetError:
        return None
    if not data:
        return None
    descriptors = array.array("i")
    for level, kind, content in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors.frombytes(content[: len(content) - len(content) % _INT])
    return Packet(json.loads(data), tuple(descriptors))


@dataclass(frozen=True, slots=True)
class Ending:
    """What was found when a world was ended.

    Attributes:
        events: Exits that had not been seen before.
        leftovers: Command lines of processes that ranks had left behind.
    """

    events: tuple[Event, ...]
    leftovers: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """The part of a world that one process starts, where several start it together.

    Attributes:
        ranks: Which ranks.
        ports: What whoever starts the primary holds for the world; None there.
    """

    ranks: tuple[int, ...]
    ports: tuple[int, int] | None = None


class RunningWorld(Protocol):
    """The ranks of one world, as the engine sees them."""

    def wait(self, timeout_s: float) -> Sequence[Event]:
        """Return what happened, waiting at most `timeout_s` seconds for the first event.

        Raises:
            LaunchError: The server is gone.
        """

    def send(self, rank: int, frame: Frame) -> None:
        """Send a frame to a rank; a rank that is gone is no error here."""

    def request_dumps(self, ranks: Sequence[int], kind: DumpKind) -> None:
        """Have every rank of `ranks` write what is asked for to its file."""

    def pause(self, rank: int, wish: Mapping[str, Any]) -> None:
        """Have a rank stopped, once or in turns, and continued by the clock.

        Args:
            rank: Whom.
            wish: `stopped_s` and `running_s` of a turn, and when it is over: `until_s`.
        """

    def resume(self, rank: int) -> None:
        """End what `pause` began."""

    def disturb(self, rank: int, index: int) -> None:
        """Have a fault of the network happen; an event of kind "network" tells what came of it.

        Args:
            rank: Who has passed its point.
            index: Its place among the world's faults.
        """

    def calm(self) -> None:
        """End all faults of the network; an event with the token `CALM` tells when they have."""

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
