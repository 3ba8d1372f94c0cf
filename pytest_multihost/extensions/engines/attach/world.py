"""Starts the ranks of one world through all processes of an attached run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, TypeVar

from pytest_multihost.core.files import write
from pytest_multihost.core.launch.composite_world import CompositeWorld
from pytest_multihost.core.launch.frames import WireFrame
from pytest_multihost.core.launch.interface import ANSWER_S, Ending, WorldProcesses
from pytest_multihost.core.launch.server import ServerLauncher, ServerWorld
from pytest_multihost.core.model.errors import LaunchError
from pytest_multihost.core.model.event import Event
from pytest_multihost.core.model.foreign_bytes import UnreadableError
from pytest_multihost.core.model.messages import (
    DumpKind,
    DumpsWritten,
    EndWorld,
    FaultRequest,
    Fork,
    FromPeer,
    PauseRank,
    Ping,
    Pong,
    RankEvent,
    RanksLost,
    RequestDumps,
    SendToRank,
    Signalled,
    SnapshotTaken,
    TakeSnapshot,
    WorldEnded,
    WorldForked,
)
from pytest_multihost.core.model.operation import group_by_value
from pytest_multihost.core.model.process import KernelSnapshot
from pytest_multihost.core.model.rank_names import Names
from pytest_multihost.core.model.spec import MACHINE, Host, WorldSpec
from pytest_multihost.core.slots import check_page, move_files, shift_times
from pytest_multihost.core.slots.page import HISTORY_SIZE
from pytest_multihost.core.slots.page import SIZE as SLOTS_SIZE
from pytest_multihost.core.watch.kernel.merged_snapshot import RemoteSnapshot, merge_snapshots
from pytest_multihost.extensions.engines.attach.archives import Files, members, write_files
from pytest_multihost.extensions.engines.attach.peer import Answer, Peer

_END_S = 15.0
"""How long a process may take to end its ranks."""

_DUMP_S = 20.0
"""How long a process on another machine may take to have its ranks write their stacks."""

_SNAPSHOT_S = 10.0
"""How long a process may take to take a snapshot. A stopped process never answers."""

_CONFIRM_S = 15.0
"""How long a process may be silent when a hang is about to be reported: its ranks' last events may
be on the way, or lost with the connection."""


SLOTS, _HISTORY = ".slots", ".history"
_MAX_BYTES = {SLOTS: SLOTS_SIZE, _HISTORY: HISTORY_SIZE}
"""The maximum size of the files in the archive of a snapshot, by the end of their names."""


Machine = tuple[str, str, str]
"""A machine: its name, its address, its network interface."""


P = TypeVar("P")

Processes = Sequence[Peer | None]
"""The processes that start the ranks of a run, in order; None: the controller's own."""


def with_controller(peers: Mapping[int, Peer]) -> Processes:
    """Return the processes of a run whose controller also starts ranks."""
    return [None, *in_order(peers)]


def in_order(peers: Mapping[int, Peer]) -> list[Peer]:
    """Return peers in the order of their numbers."""
    return [peers[number] for number in sorted(peers)]


def shares_of(size: int, processes: Sequence[P]) -> list[tuple[P, list[int]]]:
    """Return the processes that start a world, and the ranks of each.

    A smaller world uses only the first processes; in a larger one, each has consecutive ranks.
    """
    used = min(size, len(processes))
    shares = group_by_value((rank * used // size, rank) for rank in range(size))
    return [(processes[index], ranks) for index, ranks in shares.items()]


def hosts_of(size: int, processes: Processes) -> tuple[Host, ...]:
    """Return the machines of a world as hosts; empty if all ranks are on this one."""
    shares = shares_of(size, processes)
    far = [peer for peer, _ in shares if peer is not None and not peer.is_local]
    if not far:
        return ()
    is_attached = None in processes  # then a local peer's address is only for this machine
    places = [
        (
            far[0].our_address
            if peer is None or (peer.is_local and is_attached)
            else peer.its_address,
            ranks,
        )
        for peer, ranks in shares
    ]
    hosts: list[Host] = []
    for (name, address, interface), group in groupby(places, key=itemgetter(0)):
        ranks = [rank for _, share in group for rank in share]
        span = range(ranks[0], ranks[-1] + 1)
        hosts.append(Host(len(hosts), name, address, interface, span, MACHINE))
    return tuple(hosts)


@dataclass(frozen=True, slots=True)
class PeersLauncher:
    """Starts worlds through the processes of a run.

    Attributes:
        name: The way of launching, for the verdict.
        local: Starts the controller's own share of a world; None: the controller has no share.
        root: The rootdir to name in place of a peer's own; empty: they are the same.
    """

    name: str
    processes: Processes
    local: ServerLauncher | None = None
    root: str = ""

    def start(self, spec: WorldSpec, *, directory: Path, scratch: Path) -> CompositeWorld:
        """Start the ranks of a world, the primary first, because its process holds the ports.

        Raises:
            LaunchError: The ranks could not be started; none is left.
        """
        shares = shares_of(spec.size, self.processes)
        parts = [
            PeerWorld(peer, ranks, directory, self.root)
            for peer, ranks in shares
            if peer is not None
        ]
        for part in parts:
            part.peer.measure_clock()
        own: list[ServerWorld] = []
        if self.local is not None:
            ranks = shares[0][1]
            own += [self.local.start(spec, directory=directory, scratch=scratch, ranks=ranks)]
        far = [part for part in parts if not part.peer.is_local]
        remote = PeersRanks(far, scratch, spec.names) if far else None
        world = CompositeWorld([*own, *parts], remote)
        try:
            first = own[0].forked if own else parts[0].begin_fork(spec, None, scratch)()[0]
            later = parts if own else parts[1:]
            for wait in [part.begin_fork(spec, first.ports, scratch) for part in later]:
                wait()
        except LaunchError:
            world.end(grace_s=0.0)
            raise
        return world


@dataclass(slots=True)
class PeerWorld:
    """The ranks of one world that a peer has started; see `WorldPart`.

    Requests are sent first and their answers awaited later, so several peers work concurrently.

    Attributes:
        directory: The folder for logs and stacks.
        root: The rootdir to name in place of the peer's own; empty: they are the same.
    """

    peer: Peer
    ranks: Sequence[int]
    directory: Path
    root: str = ""
    _dumps: Callable[[], Answer[DumpsWritten]] | None = field(default=None, init=False)
    _end: Callable[[], Answer[WorldEnded]] | None = field(default=None, init=False)

    def begin_fork(
        self, spec: WorldSpec, ports: tuple[int, ...] | None, scratch: Path
    ) -> Callable[[], Answer[WorldForked]]:
        """Make the peer start the ranks; return a function that waits until they have started."""
        is_local = self.peer.is_local
        request = Fork(
            spec=spec,
            directory=str(self.directory) if is_local else None,
            scratch=str(scratch) if is_local else None,
            ranks=tuple(self.ranks),
            ports=ports,
        )
        return self.peer.request(request, WorldForked, within_s=ANSWER_S)

    @property
    def processes(self) -> WorldProcesses:
        """The harness's own processes around these ranks; none concerns the watchdog."""
        return WorldProcesses()

    def begin_snapshot(self, request: TakeSnapshot) -> Callable[[], tuple[KernelSnapshot, Files]]:
        """Make the peer take a snapshot of ranks on its machine; return a function that waits.

        The function returns the snapshot, and the ranks' slot pages by file name, with their times
        on the controller's clock. It raises LaunchError if the peer does not answer, or sends
        unreadable data.
        """
        wait = self.peer.request(request, SnapshotTaken, within_s=_SNAPSHOT_S)

        def finish() -> tuple[KernelSnapshot, Files]:
            answer, payload = wait()
            with self.peer.reading("its snapshot"):
                if {each.rank for each in answer.snapshot.processes} - {None, *self.ranks}:
                    raise UnreadableError("it has ranks that were not started there")
                return answer.snapshot, dict(self._pages(payload))

        return finish

    def _pages(self, payload: bytes) -> Iterator[tuple[str, bytes]]:
        """Yield the slot pages and histories in an archive, as they would be on this machine.

        Raises:
            UnreadableError, ValueError, OverflowError: They are none.
        """
        by_ns = round(self.peer.offset_s * 1e9)
        for name, page in members(payload, self.ranks, _MAX_BYTES):
            if name.endswith(SLOTS):
                check_page(page)
            moved = move_files(page, *self._moved) if self._moved is not None else page
            yield name, shift_times(moved, by_ns)

    def _write(self, payload: bytes, *, moved: tuple[str, str] | None = None) -> None:
        """Write the files of an archive next to the local ones.

        Raises:
            LaunchError: The peer sent unreadable data.
        """
        with self.peer.reading("its logs and stacks"):
            write_files(payload, self.directory, self.ranks, moved=moved)

    @property
    def _moved(self) -> tuple[str, str] | None:
        """The peer's rootdir and the one to name in its place; None if they are the same."""
        there = self.peer.hello.root
        return (there, self.root) if there and self.root and there != self.root else None

    @property
    def moved_bytes(self) -> int:
        """Number of bytes sent to and received from the peer."""
        return self.peer.stream.moved_bytes

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
        """Return the events that have arrived; does not wait, because the composite world does.

        Raises:
            LaunchError: The peer is gone, or its ranks are.
            KeyboardInterrupt: The peer has received a signal that ends the run.
        """
        del timeout_s
        self.peer.note_arrived()
        if self.peer.interruption:
            raise KeyboardInterrupt(self.peer.interruption)
        frames = self.peer.take_arrived()
        for frame in frames:
            if isinstance(frame.message, RanksLost):
                happened = f"the ranks of {self.peer.name} are lost"
                raise LaunchError(happened, seen=frame.message.error)
        events = self._events(frames)
        if not events and self.peer.stream.ended is not None:
            raise self.peer.lost("")
        return events

    def _events(self, frames: Sequence[WireFrame[FromPeer]]) -> list[Event]:
        """Return the events among frames, with their times on the controller's clock."""
        now_s, offset_s = time.monotonic(), self.peer.offset_s
        events = [frame.message.event for frame in frames if isinstance(frame.message, RankEvent)]
        if foreign := {each.rank for each in events} - {*self.ranks}:
            raise self.peer.garbled(f"an event of rank {foreign.pop()}, which it has not started")
        return [
            replace(event, at_s=min(event.at_s + offset_s, now_s), payload=frame.payload)
            for frame in frames
            if isinstance(frame.message, RankEvent) and (event := frame.message.event)
        ]

    def confirm(self) -> None:
        """Wait for an answer of the peer, which comes behind all that its ranks had sent.

        Raises:
            LaunchError: The peer is gone, or does not answer.
        """
        self.peer.request(Ping(), Pong, within_s=_CONFIRM_S)()

    def send(self, rank: int, frame: WireFrame[Any]) -> None:
        """Send a frame to a rank; it is not an error if the rank is gone."""
        self.peer.send(SendToRank(rank, frame.message), frame.payload)

    def request_dumps(self, ranks: Sequence[int], kind: DumpKind) -> None:
        """Make ranks write a dump."""
        request = RequestDumps(tuple(ranks), kind)
        if self.peer.is_local:
            self.peer.send(request)
        else:
            self._dumps = self.peer.request(request, DumpsWritten, within_s=_DUMP_S)

    def collect_dumps(self) -> None:
        """Wait for the files of another machine, and write them next to the local ones."""
        if self._dumps is not None:
            _, payload = self._dumps()
            self._write(payload, moved=self._moved)

    def request(self, message: FaultRequest) -> None:
        """Make the peer pause a rank; `CompositeWorld` forwards no other request."""
        if isinstance(message, PauseRank):
            self.peer.send(message)

    def begin_end(self, *, grace_s: float) -> None:
        """Make the peer start ending the ranks."""
        self._end = self.peer.request(EndWorld(grace_s), WorldEnded, within_s=_END_S)

    def finish_end(self) -> Ending:
        """Wait until the peer has ended all ranks; return their last events and leftovers."""
        if self._end is None:
            return Ending()
        answer, payload = self._end()
        self._write(payload)
        return Ending(tuple(self._events(self.peer.take_arrived())), answer.leftovers)

    def close(self) -> None:
        """Discard frames of this world; the connection stays open."""
        self.peer.backlog = [e for e in self.peer.backlog if isinstance(e.message, Signalled)]


@dataclass(slots=True)
class PeersRanks:
    """The ranks that peers on other machines have started, for the watchdog; see `RemoteRanks`.

    The peers take snapshots and send them. Slot pages are copied next to those of local ranks, with
    times converted to the controller's clock.

    Attributes:
        scratch: The world's directory, which gets copies of the slot pages.
    """

    parts: Sequence[PeerWorld]
    scratch: Path
    names: Names
    shallow: list[RemoteSnapshot] = field(default_factory=list)

    @property
    def ranks(self) -> frozenset[int]:
        """The ranks' numbers; their process ids mean nothing on this machine."""
        return frozenset(rank for each in self.parts for rank in each.ranks)

    @property
    def notes(self) -> tuple[str, ...]:
        """Caveats for the report: which process observed the ranks, and by which clock."""
        notes = []
        for host, parts in group_by_value((p.peer.hello.host, p) for p in self.parts).items():
            error_s = max(part.peer.uncertainty_s for part in parts)
            clock = f"times are exact to {error_s * 1e3:.2g} ms" if error_s else "on pytest's clock"
            ranks = self.names.of(rank for part in parts for rank in part.ranks)
            notes.append(
                f"{ranks} on {host}: watched by the process there, {clock}, without native frames"
            )
        return tuple(notes)

    def refresh(self) -> None:
        """Fetch the ranks' slot pages and their part of a shallow snapshot.

        Raises:
            LaunchError: A peer is gone, or does not answer.
        """
        self.shallow = self.take(is_deep=False)

    def take(self, *, is_deep: bool) -> list[RemoteSnapshot]:
        """Return a new snapshot of every peer, and copy the slot pages.

        Raises:
            LaunchError: A peer is gone, or does not answer.
        """
        waits = [part.begin_snapshot(TakeSnapshot(is_deep)) for part in self.parts]
        found = []
        for number, (part, wait) in enumerate(zip(self.parts, waits, strict=True), 1):
            snapshot, pages = wait()
            for name, data in pages.items():
                write(self.scratch / name, data)
            peer = part.peer
            found.append(RemoteSnapshot(number, snapshot, peer.offset_s, peer.uncertainty_s))
        return found

    def shallow_snapshot(self, local: KernelSnapshot) -> KernelSnapshot:
        """Return a snapshot of the main threads of all ranks."""
        return merge_snapshots(local, self.shallow, self.names)

    def deep_snapshot(self, local: KernelSnapshot) -> KernelSnapshot:
        """Return a snapshot of all threads and file descriptors."""
        return merge_snapshots(local, self.take(is_deep=True), self.names)
