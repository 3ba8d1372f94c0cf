"""A world whose ranks are started by several processes, as the engine sees it."""

from __future__ import annotations

import contextlib
import select
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from pytest_multihost.launch.attach_stream import Party
from pytest_multihost.launch.connection import ANSWER_S
from pytest_multihost.launch.protocol import DumpKind, Ending, Share
from pytest_multihost.launch.wire import Frame
from pytest_multihost.launch.world import LaunchedWorld
from pytest_multihost.model.errors import LaunchError
from pytest_multihost.model.event import Event
from pytest_multihost.model.spec import WorldSpec

_END_S = 30.0
"""How long a process may take to end its ranks."""


class LocalLauncher(Protocol):
    """Starts ranks on this machine."""

    @property
    def name(self) -> str:
        """The way of launching."""

    def start(
        self, spec: WorldSpec, *, directory: Path, scratch: Path, share: Share | None = None
    ) -> LaunchedWorld:
        """Start a share of a world."""


def share_out(size: int, processes: int) -> dict[int, tuple[int, ...]]:
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


@dataclass(frozen=True, slots=True)
class AttachedLauncher:
    """Starts worlds through all processes of an attached run.

    Attributes:
        local: Starts our own share of a world.
        parties: The other processes by rank.
    """

    local: LocalLauncher
    parties: Mapping[int, Party]

    @property
    def name(self) -> str:
        """The way of launching, as the verdict calls it."""
        return "attach"

    def start(self, spec: WorldSpec, *, directory: Path, scratch: Path) -> AttachedWorld:
        """Start the ranks of a world, the primary first: its process holds the world's ports.

        Raises:
            LaunchError: They could not be started; none is left.
        """
        shares = share_out(spec.size, len(self.parties) + 1)
        mine = self.local.start(
            spec, directory=directory, scratch=scratch, share=Share(ranks=shares.pop(0))
        )
        parties = {process: self.parties[process] for process in shares}
        world = AttachedWorld(mine, parties, {r: p for p, ranks in shares.items() for r in ranks})
        order = {"kind": "start", "spec": spec.to_json(), "ports": mine.forked.header["ports"]}
        places = {"directory": str(directory), "scratch": str(scratch)}
        try:
            asked = {
                process: party.request(
                    {**order, "ranks": shares[process], **(places if party.is_near else {})}
                )
                for process, party in parties.items()
            }
            for process, party in parties.items():
                party.answer(asked[process], within_s=ANSWER_S)
        except LaunchError:
            world.end(grace_s=0.0)
            raise
        return world


@dataclass(slots=True)
class AttachedWorld:
    """The ranks of one world in several processes.

    Attributes:
        mine: Those that this process has started.
        parties: The processes that have started others.
        process_of: Which of them has started a rank; not there for our own.
    """

    mine: LaunchedWorld
    parties: Mapping[int, Party]
    process_of: Mapping[int, int]
    _poll: select.poll = field(default_factory=select.poll)

    def __post_init__(self) -> None:
        self._poll.register(self.mine.fileno(), select.POLLIN)

    def wait(self, timeout_s: float) -> Sequence[Event]:
        """Return what happened, waiting at most `timeout_s` seconds for the first event.

        Raises:
            LaunchError: A process that has started ranks is gone.
        """
        events = list(self.mine.wait(0))
        if not events and not any(party.backlog for party in self.parties.values()):
            self._await_something(timeout_s)
            events += self.mine.wait(0)
        for party in self.parties.values():
            events += self._take(party)
        return events

    def _await_something(self, timeout_s: float) -> None:
        for party in self.parties.values():
            more = select.POLLOUT if party.stream.has_more_to_send else 0
            self._poll.register(party.stream.fileno(), select.POLLIN | more)
        self._poll.poll(timeout_s * 1000)

    def _take(self, party: Party) -> list[Event]:
        party.stream.flush()
        frames = [*party.backlog, *party.stream.receive()]
        party.backlog.clear()
        events = []
        for frame in frames:
            if frame.header["kind"] == "event":
                events.append(_event(party, frame))
            elif frame.header["kind"] == "broken":
                happened = f"the ranks of {party.name} are lost"
                raise LaunchError(happened, seen=str(frame.header["error"]))
        if not events and party.stream.ended is not None:
            raise party.lost("")
        return events

    def send(self, rank: int, frame: Frame) -> None:
        """Send a frame to a rank; a rank that is gone is no error here."""
        party = self._party(rank)
        if party is None:
            self.mine.send(rank, frame)
        else:
            party.stream.send({"kind": "send", "rank": rank, "frame": frame.header}, frame.payload)

    def request_dumps(self, ranks: Sequence[int], kind: DumpKind) -> None:
        """Have every rank of `ranks` write what is asked for to its file."""
        self.mine.request_dumps([rank for rank in ranks if self._party(rank) is None], kind)
        for process, party in self.parties.items():
            theirs = [rank for rank in ranks if self.process_of.get(rank) == process]
            if theirs:
                party.stream.send({"kind": "dump", "ranks": theirs, "what": kind})

    def pause(self, rank: int, wish: Mapping[str, Any]) -> None:
        """Have a rank stopped, once or in turns, and continued by the clock."""
        party = self._party(rank)
        if party is None:
            self.mine.pause(rank, wish)
        else:
            party.stream.send({"kind": "pause", "rank": rank, "pause": dict(wish)})

    def resume(self, rank: int) -> None:
        """End what `pause` began."""
        party = self._party(rank)
        if party is None:
            self.mine.resume(rank)
        else:
            party.stream.send({"kind": "resume", "rank": rank})

    def end(self, *, grace_s: float) -> Ending:
        """End what is left, whatever state it is in, and return what was found.

        A process that is gone has taken its ranks with it.
        """
        asked = {
            process: party.request({"kind": "end", "grace_s": grace_s})
            for process, party in self.parties.items()
        }
        events: list[Event] = []
        leftovers: list[str] = []
        try:
            ending = self.mine.end(grace_s=grace_s)
            events += ending.events
            leftovers += ending.leftovers
        finally:
            for process, party in self.parties.items():
                with contextlib.suppress(LaunchError):
                    answer = party.answer(asked[process], within_s=_END_S)
                    events += [_event(party, each) for each in party.backlog if _is_event(each)]
                    told = [Frame(each) for each in answer.header["events"]]
                    events += [_event(party, each) for each in told]
                    leftovers += answer.header["leftovers"]
                party.backlog.clear()
        return Ending(tuple(events), tuple(leftovers))

    def _party(self, rank: int) -> Party | None:
        process = self.process_of.get(rank)
        return None if process is None else self.parties[process]


def _is_event(frame: Frame) -> bool:
    return bool(frame.header["kind"] == "event")


def event_header(event: Event) -> dict[str, Any]:
    """Return how an event travels from the process that has started its rank."""
    return {
        "kind": "event",
        "at_s": event.at_s,
        "rank": event.rank,
        "what": event.kind,
        "detail": event.detail,
    }


def _event(party: Party, frame: Frame) -> Event:
    """Return an event with its time on our clock."""
    header = frame.header
    at_s = min(header["at_s"] + party.offset_s, time.monotonic())
    return Event(at_s, header["rank"], header["what"], header["detail"], frame.payload)
