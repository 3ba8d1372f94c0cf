"""The ranks that one server has started, as the controller sees them."""

from __future__ import annotations

import select
import selectors
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pytest_multihost.launch.interface import Ending, NetworkFaults, WorldProcesses
from pytest_multihost.launch.server.connection import ServerConnection, unexpected
from pytest_multihost.launch.wire.framing import Frame
from pytest_multihost.launch.wire.stream import FrameStream
from pytest_multihost.model.event import (
    Event,
    Forked,
    Interrupted,
    Pause,
    RaisedError,
    read_event,
)
from pytest_multihost.model.json_values import JsonError
from pytest_multihost.model.messages import (
    Calm,
    Disturb,
    DumpKind,
    EndWorld,
    FromServer,
    PauseRank,
    RankEvent,
    RequestDumps,
    ResumeRank,
    WorldEnded,
    WorldForked,
)

Stream = FrameStream[Mapping[str, Any]]


@dataclass(slots=True)
class ServerWorld:
    """The ranks of one world, or a share of them: streams to them, requests to their server.

    Attributes:
        server: The server that has started them.
        streams: Their connections by rank.
        forked: What it said then.
        socket_tables: By the names of network namespaces in which ranks are, beside our own:
            sockets that read their tables of sockets.
    """

    server: ServerConnection
    streams: dict[int, Stream]
    forked: WorldForked
    socket_tables: dict[str, socket.socket] = field(default_factory=dict)
    _selector: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector)
    _is_announced: bool = False

    def __post_init__(self) -> None:
        self._selector.register(self.server.control, selectors.EVENT_READ, None)
        for rank, stream in self.streams.items():
            self._selector.register(stream, selectors.EVENT_READ, rank)

    @property
    def ranks(self) -> Sequence[int]:
        """Which ranks these are."""
        return tuple(self.streams)

    @property
    def processes(self) -> WorldProcesses:
        """What of the harness is around them, see `RunningWorld`."""
        daemon = self.forked.netfault_daemon
        return WorldProcesses(
            servers=frozenset({self.server.pid}),
            reaper=self.server.pid,
            companions=frozenset() if daemon is None else frozenset({daemon}),
            socket_tables=self.socket_tables,
        )

    @property
    def network_faults(self) -> NetworkFaults:
        """What disturbs the network between its hosts: the server."""
        return self

    # What a composite world waits for

    def fileno(self) -> int:
        """Return a descriptor that is readable when there is something to wait for no longer."""
        epoll: Any = self._selector
        return int(epoll.fileno())

    @property
    def poll_events(self) -> int:
        """What to wait for in a poll of that descriptor."""
        return select.POLLIN

    @property
    def has_events(self) -> bool:
        """Whether `wait` has something to return at once."""
        return not self._is_announced

    def wait(self, timeout_s: float) -> Sequence[Event]:
        """Return what happened, waiting at most `timeout_s` seconds for the first event."""
        if not self._is_announced:
            self._is_announced = True
            pids = zip(self.streams, self.forked.pids, strict=True)
            return [Event(self.forked.at_s, rank, Forked(pid)) for rank, pid in pids]
        events: list[Event] = []
        from_server: list[Event] = []
        for key, _ in self._selector.select(timeout_s):
            if key.data is None:
                from_server.append(_server_event(self.server.receive()))
            else:
                events += self._read(key.data)
        for event in from_server:  # the last frames of a rank arrived before it died
            events += self._read(event.rank)
        return events + from_server

    def _read(self, rank: int) -> list[Event]:
        stream = self.streams[rank]
        if stream.fileno() < 0:
            return []
        stream.flush()
        events, is_garbled = [], False
        for frame in stream.receive():
            try:
                events.append(read_event(rank, frame.message, frame.payload))
            except JsonError:
                is_garbled = True
                break
        if stream.ended is None and not is_garbled:
            self._watch(rank)
            return events
        self._selector.unregister(stream)
        stream.close()
        return [*events, _garbled(rank)] if is_garbled or stream.is_garbled else events

    def _watch(self, rank: int) -> None:
        stream = self.streams[rank]
        more = selectors.EVENT_WRITE if stream.has_more_to_send else 0
        self._selector.modify(stream, selectors.EVENT_READ | more, rank)

    def send(self, rank: int, frame: Frame[Any]) -> None:
        """Send a frame to a rank; a rank that is gone is no error here.

        Never waits: what a slow or stopped rank does not take now is sent while we wait for
        events.
        """
        if self.streams[rank].fileno() >= 0:
            self.streams[rank].send(frame)
            self._watch(rank)

    def request_dumps(self, ranks: Sequence[int], kind: DumpKind) -> None:
        """Have every rank of `ranks` write what is asked for to its file."""
        self.server.send(RequestDumps(tuple(ranks), kind))

    def collect_dumps(self) -> None:
        """Do nothing: the ranks write where we read."""

    def pause(self, rank: int, pause: Pause) -> None:
        """Have a rank stopped, once or in turns, and continued by the clock."""
        self.server.send(PauseRank(rank, pause))

    def resume(self, rank: int) -> None:
        """End what `pause` began."""
        self.server.send(ResumeRank(rank))

    def disturb(self, rank: int, index: int) -> None:
        """Have a fault of the network happen, see `NetworkFaults`."""
        self.server.send(Disturb(rank, index))

    def calm(self) -> None:
        """End all faults of the network."""
        self.server.send(Calm())

    def end(self, *, grace_s: float) -> Ending:
        """End what is left, whatever state it is in, and return what was found."""
        try:
            self.begin_end(grace_s=grace_s)
            return self.finish_end()
        finally:
            self.close()

    def begin_end(self, *, grace_s: float) -> None:
        """Have the server begin with the end."""
        self.server.send(EndWorld(grace_s))

    def finish_end(self) -> Ending:
        """Wait until the server has ended everything, and return what was found."""
        from_server: list[Event] = []
        while not isinstance(message := self.server.receive(), WorldEnded):
            from_server.append(_server_event(message))
        events = [event for rank in self.streams for event in self._read(rank)]
        return Ending((*events, *from_server), message.leftovers)

    def close(self) -> None:
        """Close the streams."""
        self._selector.close()
        for stream in self.streams.values():
            stream.close()
        for table in self.socket_tables.values():
            table.close()


def _garbled(rank: int) -> Event:
    message = "something else than this package wrote into the rank's connection to pytest"
    error = RaisedError(type="GarbledError", message=message, text=message, is_harness_error=True)
    return Event(time.monotonic(), rank, Interrupted(error))


def _server_event(message: FromServer) -> Event:
    if isinstance(message, RankEvent):
        return message.event
    raise unexpected(message)
