"""Start the ranks of one world through all processes of an attached run."""

from __future__ import annotations

import contextlib
import time
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pytest_multihost.launch.attach.peer import Peer
from pytest_multihost.launch.composite_world import CompositeWorld
from pytest_multihost.launch.interface import ANSWER_S, Ending, WorldProcesses
from pytest_multihost.launch.server import ServerLauncher
from pytest_multihost.launch.wire import Frame
from pytest_multihost.model.errors import LaunchError
from pytest_multihost.model.event import Event
from pytest_multihost.model.messages import (
    DumpKind,
    DumpsWritten,
    EndWorld,
    FaultRequest,
    Fork,
    FromPeer,
    PauseRank,
    RankEvent,
    RanksLost,
    RequestDumps,
    SendToRank,
    SnapshotTaken,
    TakeSnapshot,
    WorldEnded,
    WorldForked,
)
from pytest_multihost.model.spec import Site, WorldSpec

_END_S = 15.0
"""How long a process may take to end its ranks."""

_DUMP_S = 20.0
"""How long a process on another machine may take to have its ranks write their stacks."""

_SNAPSHOT_S = 10.0
"""How long a process may take to take a snapshot. One that is stopped never answers."""


def assign_ranks(size: int, processes: int) -> dict[int, tuple[int, ...]]:
    """Return which ranks each process starts.

    A smaller world uses the first processes; in a larger one each has several in a row.
    """
    if size <= processes:
        return {rank: (rank,) for rank in range(size)}
    shares: dict[int, tuple[int, ...]] = {}
    for rank in range(size):
        process = rank * processes // size
        shares[process] = (*shares.get(process, ()), rank)
    return shares


def sites_for(size: int, peers: Mapping[int, Peer]) -> tuple[Site, ...]:
    """Return the hosts of a world of `size` ranks; none where all are on this one."""
    shares = assign_ranks(size, len(peers) + 1)
    far = [peers[process] for process in shares if process and not peers[process].is_local]
    if not far:
        return ()
    sites: list[Site] = []
    for process, ranks in sorted(shares.items()):
        if process == 0 or peers[process].is_local:
            name, address, interface = far[0].our_address
        else:
            hello = peers[process].hello
            name, address, interface = hello.host, hello.address, hello.interface
        if sites and sites[-1][:3] == (name, address, interface):
            sites[-1] = (name, address, interface, sites[-1][3] + len(ranks))
        else:
            sites.append((name, address, interface, len(ranks)))
    return tuple(sites)


@dataclass(frozen=True, slots=True)
class AttachLauncher:
    """Starts worlds through all processes of an attached run.

    Attributes:
        local: Starts the controller's own share of a world.
        peers: The other processes by rank.
    """

    local: ServerLauncher
    peers: Mapping[int, Peer]

    @property
    def name(self) -> str:
        """The way of launching, as the verdict calls it."""
        return "attach"

    def start(self, spec: WorldSpec, *, directory: Path, scratch: Path) -> CompositeWorld:
        """Start the ranks of a world, the primary first: its process holds the world's ports.

        Raises:
            LaunchError: They could not be started; none is left.
        """
        shares = assign_ranks(spec.size, len(self.peers) + 1)
        for process in shares.keys() & self.peers.keys():
            self.peers[process].measure_clock()
        own = shares.pop(0)
        mine = self.local.start(spec, directory=directory, scratch=scratch, ranks=own)
        parts = [PeerWorld(self.peers[each], shares[each], directory) for each in shares]
        world = CompositeWorld([mine, *parts], survives_loss=False)
        try:
            for part in parts:
                part.begin_fork(spec, mine.forked.ports, scratch)
            for part in parts:
                part.finish_fork()
        except LaunchError:
            world.end(grace_s=0.0)
            raise
        return world


@dataclass(slots=True)
class PeerWorld:
    """The ranks of one world that a peer has started; see `WorldPart`.

    Requests are sent first and their answers awaited later, so that several peers work at the same
    time.

    Attributes:
        peer: The process that has started them.
        ranks: Which ranks.
        directory: Where logs and stacks go.
    """

    peer: Peer
    ranks: Sequence[int]
    directory: Path
    _fork: int = field(default=0, init=False)
    _dumps: int = field(default=0, init=False)
    _snapshot: int = field(default=0, init=False)
    _end: int = field(default=0, init=False)

    def begin_fork(self, spec: WorldSpec, ports: tuple[int, int], scratch: Path) -> None:
        """Have the peer start the ranks."""
        is_local = self.peer.is_local
        self._fork = self.peer.request(
            Fork(
                spec=spec,
                directory=str(self.directory) if is_local else None,
                scratch=str(scratch) if is_local else None,
                ranks=tuple(self.ranks),
                ports=ports,
            )
        )

    def finish_fork(self) -> None:
        """Wait until they have been started."""
        self.peer.answer(self._fork, WorldForked, within_s=ANSWER_S)

    @property
    def processes(self) -> WorldProcesses:
        """The harness's own processes around these ranks."""
        return WorldProcesses(remote=() if self.peer.is_local else (self,))

    @property
    def has_events(self) -> bool:
        """Whether frames arrived during a wait for an answer."""
        return bool(self.peer.backlog)

    @property
    def poll_events(self) -> int:
        """The poll events to wait for on the connection."""
        return self.peer.stream.poll_events

    def fileno(self) -> int:
        """Return the connection's descriptor."""
        return self.peer.stream.fileno()

    def wait(self, timeout_s: float) -> Sequence[Event]:
        """Return what has happened by now; does not wait: the composite world does."""
        del timeout_s
        frames = self.peer.take_arrived()
        for frame in frames:
            if isinstance(frame.message, RanksLost):
                happened = f"the ranks of {self.peer.name} are lost"
                raise LaunchError(happened, seen=frame.message.error)
        events = self._events(frames)
        if not events and self.peer.stream.ended is not None:
            raise self.peer.lost("")
        return events

    def _events(self, frames: Sequence[Frame[FromPeer]]) -> list[Event]:
        """Return the events among frames, with their times on the controller's clock."""
        now_s, offset_s = time.monotonic(), self.peer.offset_s
        return [
            replace(event, at_s=min(event.at_s + offset_s, now_s), payload=frame.payload)
            for frame in frames
            if isinstance(frame.message, RankEvent) and (event := frame.message.event)
        ]

    def send(self, rank: int, frame: Frame[Any]) -> None:
        """Send a frame to a rank; a rank that is gone is no error here."""
        self.peer.send(SendToRank(rank, frame.message), frame.payload)

    def request_dumps(self, ranks: Sequence[int], kind: DumpKind) -> None:
        """Have ranks write a dump."""
        request = RequestDumps(tuple(ranks), kind)
        if self.peer.is_local:
            self.peer.send(request)
        else:
            self._dumps = self.peer.request(request)

    def collect_dumps(self) -> None:
        """Wait for the files from another machine, and write them beside the local ones."""
        if not self.peer.is_local:
            answer, payload = self.peer.answer(self._dumps, DumpsWritten, within_s=_DUMP_S)
            write_files(answer.sizes, payload, self.directory)

    def request(self, message: FaultRequest) -> None:
        """Have a rank paused; `CompositeWorld` passes on no other request."""
        if isinstance(message, PauseRank):
            self.peer.send(message)

    def begin_end(self, *, grace_s: float) -> None:
        """Have the peer start ending the ranks."""
        self._end = self.peer.request(EndWorld(grace_s))

    def finish_end(self) -> Ending:
        """Wait until the peer has ended all ranks, and return what it found."""
        answer, payload = self.peer.answer(self._end, WorldEnded, within_s=_END_S)
        write_files(answer.sizes, payload, self.directory)
        return Ending(tuple(self._events(self.peer.take_arrived())), answer.leftovers)

    def close(self) -> None:
        """Discard unrequested frames of this world; the connection stays open."""
        self.peer.backlog.clear()

    # For the watchdog of ranks on another machine, see `RemotePart`

    @property
    def host(self) -> str:
        """The machine's name."""
        return self.peer.hello.host

    @property
    def clock(self) -> tuple[float, float]:
        """Offset in seconds from its clock to the controller's, and the error bound of that."""
        return self.peer.offset_s, self.peer.uncertainty_s

    def begin_snapshot(self, *, is_deep: bool) -> None:
        """Have the peer take a snapshot."""
        self._snapshot = self.peer.request(TakeSnapshot(is_deep))

    def finish_snapshot(self) -> tuple[SnapshotTaken, Mapping[str, bytes]]:
        """Return the snapshot, and the ranks' slot pages by file name."""
        answer, payload = self.peer.answer(self._snapshot, SnapshotTaken, within_s=_SNAPSHOT_S)
        return answer, unpack(answer.sizes, payload)


MAX_FILE = 64 << 20
"""Bytes of a file that are sent; of a longer one, the end."""


def pack(paths: Iterable[Path]) -> tuple[dict[str, int], bytes]:
    """Return the sizes of the existing files by name, and a payload with their contents."""
    sizes, content = {}, b""
    for path in paths:
        with contextlib.suppress(OSError), path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - MAX_FILE))
            data = file.read(MAX_FILE)
            sizes[path.name] = len(data)
            content += data
    return sizes, zlib.compress(content, 1)


def unpack(sizes: Mapping[str, int], payload: bytes) -> dict[str, bytes]:
    """Return the contents of files by name."""
    content = zlib.decompress(payload) if sizes else b""
    files, start = {}, 0
    for name, size in sizes.items():
        files[Path(name).name] = content[start : start + size]
        start += size
    return files


def write_files(sizes: Mapping[str, int], payload: bytes, directory: Path) -> None:
    """Write files into a directory, under their bare names."""
    for name, data in unpack(sizes, payload).items():
        (directory / name).write_bytes(data)
