"""A world whose ranks are started by several processes, as the engine sees it."""

from __future__ import annotations

import contextlib
import select
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from pytest_multihost.launch.attach.file_transfer import write_files
from pytest_multihost.launch.attach.stream import Peer
from pytest_multihost.launch.interface import DumpKind, Ending, Share
from pytest_multihost.launch.server.connection import ANSWER_S
from pytest_multihost.launch.server.world import ServerWorld
from pytest_multihost.launch.wire.framing import Frame
from pytest_multihost.model.errors import LaunchError
from pytest_multihost.model.event import Event
from pytest_multihost.model.json_values import Json, from_json, to_json
from pytest_multihost.model.spec import Site, WorldSpec

_END_S = 15.0
"""How long a process may take to end its ranks."""

_DUMP_S = 20.0
"""How long one on another machine may take to have its ranks write their stacks."""


class LocalLauncher(Protocol):
    """Starts ranks on this machine."""

    @property
    def name(self) -> str:
        """The way of launching."""

    def start(
        self, spec: WorldSpec, *, directory: Path, scratch: Path, share: Share | None = None
    ) -> ServerWorld:
        """Start a share of a world."""


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
    far = [peers[process] for process in shares if process and not peers[process].is_near]
    if not far:
        return ()
    here = far[0].here
    sites: list[Site] = []
    for process, ranks in sorted(shares.items()):
        near = process == 0 or peers[process].is_near
        name, address, interface = here if near else peers[process].there
        if sites and sites[-1][:3] == (name, address, interface):
            sites[-1] = (name, address, interface, sites[-1][3] + len(ranks))
        else:
            sites.append((name, address, interface, len(ranks)))
    return tuple(sites)


@dataclass(frozen=True, slots=True)
class AttachLauncher:
    """Starts worlds through all processes of an attached run.

    Attributes:
        local: Starts our own share of a world.
        peers: The other processes by rank.
    """

    local: LocalLauncher
    peers: Mapping[int, Peer]

    @property
    def name(self) -> str:
        """The way of launching, as the verdict calls it."""
        return "attach"

    def start(self, spec: WorldSpec, *, directory: Path, scratch: Path) -> AttachedWorld:
        """Start the ranks of a world, the primary first: its process holds the world's ports.

        Raises:
            LaunchError: They could not be started; none is left.
        """
        shares = assign_ranks(spec.size, len(self.peers) + 1)
        for process in shares.keys() & self.peers.keys():
            self.peers[process].measure_clock()
        mine = self.local.start(
            spec, directory=directory, scratch=scratch, share=Share(ranks=shares.pop(0))
        )
        peers = {process: self.peers[process] for process in shares}
        whose = {rank: process for process, ranks in shares.items() for rank in ranks}
        world = AttachedWorld(mine, peers, whose, directory, scratch)
        order = {"kind": "start", "spec": to_json(spec), "ports": mine.forked.header["ports"]}
        places = {"directory": str(directory), "scratch": str(scratch)}
        try:
            asked = {
                process: peer.request(
                    {**order, "ranks": shares[process], **(places if peer.is_near else {})}
                )
                for process, peer in peers.items()
            }
            for process, peer in peers.items():
                peer.answer(asked[process], within_s=ANSWER_S)
        except LaunchError:
            world.end(grace_s=0.0)
            raise
        return world


@dataclass(slots=True)
class AttachedWorld:
    """The ranks of one world in several processes.

    Attributes:
        mine: Those that this process has started.
        peers: The processes that have started others.
        process_of: Which of them has started a rank; not there for our own.
        directory: Where logs and stacks go.
        scratch: The world's directory for everything else.
    """

    mine: ServerWorld
    peers: Mapping[int, Peer]
    process_of: Mapping[int, int]
    directory: Path
    scratch: Path
    _poll: select.poll = field(default_factory=select.poll)

    def __post_init__(self) -> None:
        self._poll.register(self.mine.fileno(), select.POLLIN)

    def wait(self, timeout_s: float) -> Sequence[Event]:
        """Return what happened, waiting at most `timeout_s` seconds for the first event.

        Raises:
            LaunchError: A process that has started ranks is gone.
        """
        events = list(self.mine.wait(0))
        if not events and not any(peer.backlog for peer in self.peers.values()):
            self._await_something(timeout_s)
            events += self.mine.wait(0)
        for peer in self.peers.values():
            events += self._take(peer)
        return events

    def _await_something(self, timeout_s: float) -> None:
        for peer in self.peers.values():
            more = select.POLLOUT if peer.stream.has_more_to_send else 0
            self._poll.register(peer.stream.fileno(), select.POLLIN | more)
        self._poll.poll(timeout_s * 1000)

    def _take(self, peer: Peer) -> list[Event]:
        peer.stream.flush()
        frames = [*peer.backlog, *peer.stream.receive()]
        peer.backlog.clear()
        events = []
        for frame in frames:
            if frame.header["kind"] == "event":
                events.append(_event(peer, frame))
            elif frame.header["kind"] == "broken":
                happened = f"the ranks of {peer.name} are lost"
                raise LaunchError(happened, seen=str(frame.header["error"]))
        if not events and peer.stream.ended is not None:
            raise peer.lost("")
        return events

    def send(self, rank: int, frame: Frame) -> None:
        """Send a frame to a rank; a rank that is gone is no error here."""
        peer = self._party(rank)
        if peer is None:
            self.mine.send(rank, frame)
        else:
            peer.stream.send({"kind": "send", "rank": rank, "frame": frame.header}, frame.payload)

    def request_dumps(self, ranks: Sequence[int], kind: DumpKind) -> None:
        """Have every rank of `ranks` write what is asked for to its file."""
        asked: dict[int, int] = {}
        self.mine.request_dumps([rank for rank in ranks if self._party(rank) is None], kind)
        for process, peer in self.peers.items():
            theirs = [rank for rank in ranks if self.process_of.get(rank) == process]
            if theirs and peer.is_near:
                peer.stream.send({"kind": "dump", "ranks": theirs, "what": kind})
            elif theirs:
                asked[process] = peer.request({"kind": "dump", "ranks": theirs, "what": kind})
        for process, number in asked.items():
            answer = self.peers[process].answer(number, within_s=_DUMP_S)
            write_files(answer, self.directory)

    def pause(self, rank: int, wish: Mapping[str, Any]) -> None:
        """Have a rank stopped, once or in turns, and continued by the clock."""
        peer = self._party(rank)
        if peer is None:
            self.mine.pause(rank, wish)
        else:
            peer.stream.send({"kind": "pause", "rank": rank, "pause": dict(wish)})

    def resume(self, rank: int) -> None:
        """End what `pause` began."""
        peer = self._party(rank)
        if peer is None:
            self.mine.resume(rank)
        else:
            peer.stream.send({"kind": "resume", "rank": rank})

    def disturb(self, rank: int, index: int) -> None:
        """Refuse: these hosts are not made from namespaces, which is known as tests are planned."""
        raise LaunchError(f"fault {index} of rank {rank} needs hosts made from namespaces")

    def calm(self) -> None:
        """Let the network be: nothing disturbs it."""

    def end(self, *, grace_s: float) -> Ending:
        """End what is left, whatever state it is in, and return what was found.

        A process that is gone has taken its ranks with it.
        """
        asked = {
            process: peer.request({"kind": "end", "grace_s": grace_s})
            for process, peer in self.peers.items()
        }
        events: list[Event] = []
        leftovers: list[str] = []
        try:
            ending = self.mine.end(grace_s=grace_s)
            events += ending.events
            leftovers += ending.leftovers
        finally:
            for process, peer in self.peers.items():
                with contextlib.suppress(LaunchError):
                    answer = peer.answer(asked[process], within_s=_END_S)
                    events += [_event(peer, each) for each in peer.backlog if _is_event(each)]
                    told = [Frame(each) for each in answer.header["events"]]
                    events += [_event(peer, each) for each in told]
                    write_files(answer, self.directory)
                    leftovers += answer.header["leftovers"]
                peer.backlog.clear()
        return Ending(tuple(events), tuple(leftovers))

    @property
    def far(self) -> dict[Peer, tuple[int, ...]]:
        """The processes whose ranks cannot be seen from here, with these ranks."""
        return {
            peer: tuple(rank for rank, whose in self.process_of.items() if whose == process)
            for process, peer in self.peers.items()
            if not peer.is_near
        }

    def _party(self, rank: int) -> Peer | None:
        process = self.process_of.get(rank)
        return None if process is None else self.peers[process]


def _is_event(frame: Frame) -> bool:
    return bool(frame.header["kind"] == "event")


def event_header(event: Event) -> dict[str, Json]:
    """Return how an event travels from the process that has started its rank."""
    return {"kind": "event", **to_json(event)}


def _event(peer: Peer, frame: Frame) -> Event:
    """Return an event with its time on our clock."""
    event = from_json(Event, frame.header)
    at_s = min(event.at_s + peer.offset_s, time.monotonic())
    return replace(event, at_s=at_s, payload=frame.payload)
