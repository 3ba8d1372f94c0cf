"""Messages between the processes of the harness: one frozen class for each.

Three kinds of connections carry them, all in the frames of `launch.frames`:

* controller and server: a SOCK_SEQPACKET pair, with file descriptors beside a message;
* controller and peer (a process that a launcher such as torchrun has started, with its own server):
  TCP, authenticated. The same requests as to a server, and some that a server on the same machine
  does not need. Processes that inspect a running job together use the same kind of connection;
* controller and rank: a socket pair. A rank sends the events of `model.event`.

A field holds a JSON value; bytes are sent as the frame's payload, with the message.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import field
from typing import Literal

from pytest_multihost.core.model.event import Event, Gate, Pause
from pytest_multihost.core.model.json_values import JsonObject, message
from pytest_multihost.core.model.process import KernelSnapshot
from pytest_multihost.core.model.spec import WorldSpec

DumpKind = Literal[
    "threads",  # the stacks of all threads
    "outside",  # the same, read by py-spy
    "aside",  # the same, without a signal to the main thread
    "main",  # the stack of the main thread only
    "tasks",  # the waits of asyncio's tasks
    "files",  # the file for which its main thread polls
    "locks",  # the waits of threads for locks, and the threads that hold these
    "children",  # the stacks of its child processes that were forked from it
    "child tasks",  # the waits of asyncio's tasks in these
]
"""The kinds of dumps. A rank writes each on a signal, except "outside" and "children"."""

CollectiveKey = tuple[str, str, int]
"""Operation of the harness, its name, and how often the rank had entered it before."""

# Controller to rank


@message
class Release:
    """The gate is open: the rank may continue."""

    gate: Gate


@message
class RankReady:
    """Another rank is ready, as its role says: one of those after which this rank starts."""

    rank: int


@message
class EndService:
    """All ranks except services have returned from the test: the rank is to end its program."""


@message
class FaultPerformed:
    """The server performed the world's fault `index`; `error` is empty if it succeeded."""

    index: int
    error: str


@message
class CollectiveComplete:
    """All ranks have entered; the payload holds each rank's contribution, with these sizes."""

    key: CollectiveKey
    sizes: tuple[int, ...]

    def contributions(self, payload: bytes) -> list[bytes]:
        """Return the contributions that the payload holds, in order of rank."""
        ends = list(itertools.accumulate(self.sizes, initial=0))
        return [payload[start:end] for start, end in itertools.pairwise(ends)]


@message
class CollectiveBroken:
    """Another rank will never enter the collective that this rank waits in."""

    key: CollectiveKey
    error: str


@message
class SentByService:
    """A message of a service, which only the service's part in the rank understands."""

    service: str
    message: JsonObject


ToRank = (
    Release
    | EndService
    | RankReady
    | FaultPerformed
    | CollectiveComplete
    | CollectiveBroken
    | SentByService
)

# Controller to server, and to peers


@message
class Fork:
    """Start ranks of a world; the message carries one socket for each.

    Attributes:
        directory: Where logs and stacks go. None for a peer that does not see the controller's
            files: it makes its own directories.
        scratch: The world's directory for everything else.
        ports: The world's ports, if another server holds them.
    """

    spec: WorldSpec
    directory: str | None
    scratch: str | None
    ranks: tuple[int, ...]
    ports: tuple[int, ...] | None = None


@message
class RequestDumps:
    """Have ranks write something to their files.

    The server sends the signal, not the controller: only their parent knows that a process id
    still belongs to the rank.
    """

    ranks: tuple[int, ...]
    what: DumpKind


@message
class PauseRank:
    """Stop a rank, once or repeatedly, and continue it at set times; None: continue it for good."""

    rank: int
    pause: Pause | None = None


@message
class PerformFault:
    """Perform the world's fault `index` by a service's part in the server; a rank has passed it."""

    service: str
    rank: int
    index: int


@message
class UndoFaults:
    """Undo all faults that a service has performed."""

    service: str


@message
class ProbeHosts:
    """Find out whether hosts of a kind can be made here; creates the directory.

    Attributes:
        probe: Import path, "package.module:function", of the function that finds out.
    """

    probe: str
    scratch: str


@message
class CloneServer:
    """Fork a second server from this one; the message carries its control connection.

    Attributes:
        controller: The process at the other end of that connection: the clone ends when it does.
    """

    controller: int


@message
class EndWorld:
    """End the remaining ranks: SIGTERM, and SIGKILL to those still alive after `grace_s`."""

    grace_s: float


@message
class Quit:
    """End the world and the server process; a peer ends with this exit status."""

    status: int = 0


# Controller to peer alone


@message
class Welcome:
    """The peer is accepted; it answers with `PeerHello`."""


@message
class Refused:
    """The peer knows the secret, but is rejected for another reason."""

    why: str


@message
class ReadProbe:
    """Send the content of a file, to find out whether both see the same files."""

    path: str


@message
class Ping:
    """Send the time on the peer's clock."""


@message
class SendToRank:
    """Forward a message and its payload to a rank."""

    rank: int
    message: ToRank


@message
class TakeSnapshot:
    """Take a snapshot of the ranks; `is_deep`: with all threads and descriptors."""

    is_deep: bool


@message
class Ask:
    """A question that only the program on the peer understands."""

    question: str
    details: JsonObject | None = None


# Server to controller, and peer to controller


@message
class Serving:
    """The server has loaded everything and is ready."""


@message
class Unsound:
    """The server cannot fork ranks safely: they would hang."""

    problems: str


@message
class Failed:
    """A request failed, or the server ends: the observation, and the next step."""

    error: str
    remedy: str = ""


@message
class WorldForked:
    """The ranks exist; the message carries descriptors of their namespaces' socket tables.

    Attributes:
        pids: Their process ids, in the order in which the ranks were named.
        companions: Processes of services, children of the server.
        exchanges: Those through which ranks wait for each other; see `ServerPart.exchanges`.
        namespaces: The kernel's names of the ranks' network namespaces, as in
            "net:[4026532840]".
    """

    pids: tuple[int, ...]
    ports: tuple[int, ...]
    at_s: float
    companions: tuple[int, ...] = ()
    exchanges: tuple[int, ...] = ()
    namespaces: tuple[str, ...] = ()


@message
class ServerCloned:
    """The clone exists; it reports by itself when it serves."""

    pid: int


@message
class RankEvent:
    """An event of a rank; its payload is sent with the message."""

    event: Event


@message
class HostsProbed:
    """The event, the observation and the remedy if hosts cannot be made; empty if they can."""

    happened: str = ""
    seen: str = ""
    remedy: str = ""


@message
class WorldEnded:
    """All processes of the world have ended; exits not reported before came as events.

    From a peer whose files the controller does not see, these are in the payload, a zip archive.

    Attributes:
        leftovers: Command lines of other processes that had to be killed.
    """

    leftovers: tuple[str, ...]


# Peer to controller alone


CollectedTest = tuple[str, int, str]
"""A world's test by its node id, the number of ranks, and the backend."""


@message
class PeerHello:
    """A peer's description of itself.

    Attributes:
        kernel: Identifies its kernel, clock and process ids.
        address: Its own address on the connection, on `interface`.
        root: Its rootdir of pytest; empty if it does not run pytest.
        versions: Versions of its software by name, as far as they matter.
    """

    host: str
    pid: int | None = None
    kernel: tuple[str, str, str] = ("", "", "")
    address: str = ""
    interface: str = ""
    tests: tuple[CollectedTest, ...] = ()
    problems: tuple[str, ...] = ()
    root: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)


@message
class Pong:
    """The time on the peer's clock."""

    now_s: float


@message
class ProbeRead:
    """The file's content; None if it cannot be read."""

    text: str | None


@message
class DumpsWritten:
    """The ranks' dump files are in the payload, a zip archive."""


@message
class SnapshotTaken:
    """The snapshot; the ranks' slot pages are in the payload, a zip archive."""

    snapshot: KernelSnapshot


@message
class Answered:
    """The answer to a question of the program's own."""

    answer: JsonObject


@message
class Signalled:
    """The peer has received a signal that ends a run; the controller is to end it."""

    signal: str


@message
class RanksLost:
    """The peer is alive, but its server and ranks are gone."""

    error: str


FaultRequest = PauseRank | PerformFault | UndoFaults
"""Requests for parts of faults that a rank cannot perform itself."""

_ToBoth = Fork | RequestDumps | PauseRank | EndWorld | Quit

ToServer = _ToBoth | CloneServer | PerformFault | UndoFaults | ProbeHosts

ToPeer = _ToBoth | Welcome | Refused | ReadProbe | Ping | SendToRank | TakeSnapshot | Ask

_FromBoth = Failed | WorldForked | RankEvent | WorldEnded

FromServer = _FromBoth | Serving | ServerCloned | Unsound | HostsProbed

FromPeer = (
    _FromBoth
    | PeerHello
    | ProbeRead
    | Pong
    | DumpsWritten
    | SnapshotTaken
    | Answered
    | RanksLost
    | Signalled
)
