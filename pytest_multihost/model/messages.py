"""What the processes of the harness say to each other: one frozen class for each message.

Four kinds of connections carry them, all in the frames of `launch.wire`:

* controller and server: a SOCK_SEQPACKET pair, with file descriptors beside a message;
* controller and peer (a process that a launcher such as torchrun has started, with a server of its
  own): TCP, authenticated. The same requests as to a server, and those that a server on the same
  machine makes unnecessary;
* controller and rank: a socket pair. A rank sends the events of `model.event`;
* two processes that do not know each other yet: the handshake.

A field holds what JSON can hold: bytes travel as a frame's payload, beside the message.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from pytest_multihost.model.event import Event, Gate, Pause
from pytest_multihost.model.process import KernelSnapshot
from pytest_multihost.model.spec import WorldSpec

DumpKind = Literal[
    "threads",  # the stacks of all threads
    "main",  # that of the main thread alone
    "tasks",  # what asyncio's tasks wait for
]
"""What a rank can be asked for by a signal."""

CollectiveKey = tuple[str, str, int]
"""Operation of the harness, its name, and how often the rank had entered it before."""

# Controller to rank


@dataclass(frozen=True, slots=True)
class Release:
    """The gate is open: go on."""

    kind: ClassVar = "release"
    gate: Gate


@dataclass(frozen=True, slots=True)
class FaultPerformed:
    """The world's fault `index` was performed from outside; `error` is empty if that went well."""

    kind: ClassVar = "performed"
    index: int
    error: str


@dataclass(frozen=True, slots=True)
class CollectiveComplete:
    """All ranks have entered; the payload holds what each has contributed, with these sizes."""

    kind: ClassVar = "complete"
    key: CollectiveKey
    sizes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CollectiveBroken:
    """Some rank will never enter what this rank waits in."""

    kind: ClassVar = "broken"
    key: CollectiveKey
    error: str


ToRank = Release | FaultPerformed | CollectiveComplete | CollectiveBroken

# Controller to server, and to peers


@dataclass(frozen=True, slots=True, kw_only=True)
class Fork:
    """Start ranks of a world; one socket for each lies beside.

    Attributes:
        directory: Where logs and stacks go. None, to a peer: it does not see our files and has to
            make directories of its own.
        scratch: The world's directory for everything else.
        ports: The world's ports, where another server holds them.
    """

    kind: ClassVar = "fork"
    spec: WorldSpec
    directory: str | None
    scratch: str | None
    ranks: tuple[int, ...]
    ports: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class MoreDescriptors:
    """Descriptors that did not fit beside the message before; in both directions."""

    kind: ClassVar = "more_descriptors"


@dataclass(frozen=True, slots=True)
class RequestDumps:
    """Have ranks write something to their files.

    The server sends the signal, not the controller: as their parent it alone knows that a process
    id still means the rank.
    """

    kind: ClassVar = "request_dumps"
    ranks: tuple[int, ...]
    what: DumpKind


@dataclass(frozen=True, slots=True)
class PauseRank:
    """Stop a rank, once or in turns, and continue it by the clock."""

    kind: ClassVar = "pause"
    rank: int
    pause: Pause


@dataclass(frozen=True, slots=True)
class ResumeRank:
    """Continue a paused rank for good."""

    kind: ClassVar = "resume"
    rank: int


@dataclass(frozen=True, slots=True)
class Disturb:
    """Have a fault of the network happen, on behalf of a rank that has passed its point."""

    kind: ClassVar = "disturb"
    rank: int
    index: int


@dataclass(frozen=True, slots=True)
class Calm:
    """End all faults of the network."""

    kind: ClassVar = "calm"


@dataclass(frozen=True, slots=True)
class ProbeHosts:
    """Find out whether hosts can be made from namespaces here, in a directory that is made."""

    kind: ClassVar = "probe_hosts"
    scratch: str


@dataclass(frozen=True, slots=True)
class EndWorld:
    """End what is left of the world; a rank may take `grace_s` to end by itself after SIGTERM."""

    kind: ClassVar = "end_world"
    grace_s: float


@dataclass(frozen=True, slots=True)
class Quit:
    """End the world and the process that serves; a peer ends with this exit status."""

    kind: ClassVar = "quit"
    status: int = 0


# Controller to peer alone


@dataclass(frozen=True, slots=True)
class Welcome:
    """You are in; tell what you are."""

    kind: ClassVar = "welcome"


@dataclass(frozen=True, slots=True)
class Refused:
    """You know the secret and are not wanted all the same."""

    kind: ClassVar = "refused"
    why: str


@dataclass(frozen=True, slots=True)
class ReadProbe:
    """Tell what is in a file, to find out whether both see the same files."""

    kind: ClassVar = "read_probe"
    path: str


@dataclass(frozen=True, slots=True)
class Ping:
    """Tell the time on your clock."""

    kind: ClassVar = "ping"


@dataclass(frozen=True, slots=True)
class SendToRank:
    """Pass on a message and the payload beside it."""

    kind: ClassVar = "send_to_rank"
    rank: int
    message: ToRank


@dataclass(frozen=True, slots=True)
class TakeSnapshot:
    """Tell what is seen of the ranks from outside; `is_deep`: of all threads and descriptors."""

    kind: ClassVar = "take_snapshot"
    is_deep: bool


# Server to controller, and peer to controller


@dataclass(frozen=True, slots=True)
class Serving:
    """The server has loaded what it should."""

    kind: ClassVar = "serving"


@dataclass(frozen=True, slots=True)
class Unsound:
    """The server must not fork ranks: they would hang."""

    kind: ClassVar = "unsound"
    problems: str


@dataclass(frozen=True, slots=True)
class Failed:
    """A request could not be served, or the server ends."""

    kind: ClassVar = "failed"
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldForked:
    """The ranks exist; what reads the socket tables of their network namespaces lies beside.

    Attributes:
        pids: Their process ids, in the order in which the ranks were named.
        netfault_daemon: The process that disturbs the network, if there is one.
        namespaces: The kernel's names of network namespaces in which ranks are, as in
            "net:[4026532840]".
    """

    kind: ClassVar = "world_forked"
    pids: tuple[int, ...]
    ports: tuple[int, int]
    at_s: float
    netfault_daemon: int | None = None
    namespaces: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RankEvent:
    """Something has happened in, or to, a rank. The event's payload travels beside."""

    kind: ClassVar = "rank_event"
    event: Event


@dataclass(frozen=True, slots=True)
class HostsProbed:
    """Why hosts cannot be made: what happened, what was seen, what helps. Empty if they can."""

    kind: ClassVar = "hosts_probed"
    happened: str = ""
    seen: str = ""
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class WorldEnded:
    """Everything is gone; exits that had not been seen before came as events.

    Attributes:
        leftovers: Command lines of what had to be killed beside the ranks.
        sizes: From a peer whose files we do not see: sizes of those in the payload, by name.
    """

    kind: ClassVar = "world_ended"
    leftovers: tuple[str, ...]
    sizes: Mapping[str, int] = field(default_factory=dict)


# Peer to controller alone


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerHello:
    """What a peer is.

    Attributes:
        host: Name of its machine.
        kernel: Which kernel it has, and which clock and process ids.
        address: Its own address of the connection, which is that of `interface`.
        tests: For each world its test's node id, number of ranks and backend, in order.
        problems: What keeps it from taking part.
    """

    kind: ClassVar = "peer_hello"
    host: str
    pid: int | None = None
    kernel: tuple[str, str, str] = ("", "", "")
    address: str = ""
    interface: str = ""
    tests: tuple[tuple[str, int, str], ...] = ()
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Pong:
    """The time on the peer's clock."""

    kind: ClassVar = "pong"
    now_s: float


@dataclass(frozen=True, slots=True)
class ProbeRead:
    """What is in the file; None where it cannot be read."""

    kind: ClassVar = "probe_read"
    text: str | None


@dataclass(frozen=True, slots=True)
class DumpsWritten:
    """The files that ranks were asked for are in the payload; their sizes by name."""

    kind: ClassVar = "dumps_written"
    sizes: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class SnapshotTaken:
    """What is seen of the ranks; their slot pages are in the payload, their sizes by name."""

    kind: ClassVar = "snapshot_taken"
    snapshot: KernelSnapshot
    sizes: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class RanksLost:
    """The peer is there, and its server is gone with the ranks."""

    kind: ClassVar = "ranks_lost"
    error: str


# The handshake. Whatever another version leaves out has a default, so that its number is read.


@dataclass(frozen=True, slots=True)
class Challenge:
    """What the controller sends to whoever connects: a number that is used once."""

    kind: ClassVar = "challenge"
    version: int
    challenge: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """What the other side answers: a number of its own, and that it knows the secret.

    With its rank and the number of processes of the run, as its launcher has told it. What the
    proof is made from, `launch.attach.handshake` tells.
    """

    kind: ClassVar = "proof"
    version: int
    answer: str = ""
    rank: int = -1
    size: int = -1
    proof: str = ""


_ToBoth = Fork | RequestDumps | PauseRank | ResumeRank | EndWorld | Quit

ToServer = _ToBoth | MoreDescriptors | Disturb | Calm | ProbeHosts

ToPeer = _ToBoth | Welcome | Refused | ReadProbe | Ping | SendToRank | TakeSnapshot

_FromBoth = Failed | WorldForked | RankEvent | WorldEnded

FromServer = _FromBoth | Serving | Unsound | MoreDescriptors | HostsProbed

FromPeer = _FromBoth | PeerHello | ProbeRead | Pong | DumpsWritten | SnapshotTaken | RanksLost
