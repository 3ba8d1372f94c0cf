"""A running world as the engine sees it, whatever way its ranks were launched."""

from __future__ import annotations

import selectors
import socket
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pytest_multihost.launch.interface import DumpKind, Ending, Packet, dump_signal
from pytest_multihost.launch.server.connection import ServerConnection
from pytest_multihost.launch.wire.framing import (
    Decoder,
    Frame,
    GarbledError,
    encode,
    read_available,
)
from pytest_multihost.model.errors import LaunchError
from pytest_multihost.model.event import (
    SENT_BY_RANKS,
    Event,
    Exited,
    Forked,
    Interrupted,
    NetworkChanged,
    RaisedError,
    read_event,
)
from pytest_multihost.model.json_values import JsonError, from_json


@dataclass(slots=True)
class ServerWorld:
    """The ranks of one world that a server has started: streams to them, requests to it.

    Attributes:
        server: Who has started them.
        streams: Their channels by rank.
        forked: What it said then.
        tables: By the names of network namespaces in which ranks are, beside our own: sockets
            that read their tables of sockets.
    """

    server: ServerConnection
    streams: dict[int, socket.socket]
    forked: Packet
    tables: dict[str, socket.socket] = field(default_factory=dict)
    _selector: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector)
    _decoders: dict[int, Decoder] = field(default_factory=dict)
    _outbox: dict[int, bytearray] = field(default_factory=dict)
    _announced: bool = False

    def __post_init__(self) -> None:
        self._selector.register(self.server.control, selectors.EVENT_READ, None)
        for rank, stream in self.streams.items():
            stream.setblocking(False)  # noqa: FBT003 - the standard library's signature
            self._decoders[rank] = Decoder(SENT_BY_RANKS)
            self._selector.register(stream, selectors.EVENT_READ, rank)

    def fileno(self) -> int:
        """Return a descriptor that is readable when there is something to wait for no longer."""
        epoll: Any = self._selector
        return int(epoll.fileno())

    def wait(self, timeout_s: float) -> Sequence[Event]:
        """Return what happened, waiting at most `timeout_s` seconds for the first event."""
        if not self._announced:
            self._announced = True
            return _forked_events(self.forked, self.streams)
        events: list[Event] = []
        told: list[Event] = []
        for key, _ in self._selector.select(timeout_s):
            if key.data is None:
                told += _server_events(self.server.hear())
            else:
                self._flush(key.data)
                events += self._read(key.data)
        for event in told:  # its last words arrived before it died
            events += self._read(event.rank)
        return events + told

    def _read(self, rank: int) -> list[Event]:
        stream = self.streams[rank]
        if stream.fileno() < 0:
            return []
        try:
            data = read_available(stream)
        except OSError:  # reset: it died with frames of ours unread
            data = None
        if data is None:
            self._selector.unregister(stream)
            stream.close()
            return []
        try:
            frames = self._decoders[rank].feed(data)
            return [read_event(rank, frame.header, frame.payload) for frame in frames]
        except (GarbledError, JsonError):
            self._selector.unregister(stream)
            stream.close()
            return [_garbled(rank)]

    def send(self, rank: int, frame: Frame) -> None:
        """Send a frame to a rank; a rank that is gone is no error here.

        Never waits: what a slow or stopped rank does not take now is sent while we wait for
        events.
        """
        self._outbox.setdefault(rank, bytearray()).extend(encode(frame))
        self._flush(rank)

    def _flush(self, rank: int) -> None:
        stream, pending = self.streams[rank], self._outbox.get(rank)
        if stream.fileno() < 0 or not pending:
            return
        try:
            del pending[: stream.send(pending)]
        except BlockingIOError:
            pass
        except OSError:  # it is gone; its exit will be told by the server
            pending.clear()
        interest = selectors.EVENT_READ | (selectors.EVENT_WRITE if pending else 0)
        self._selector.modify(stream, interest, rank)

    def request_dumps(self, ranks: Sequence[int], kind: DumpKind) -> None:
        """Have every rank of `ranks` write what is asked for to its file."""
        header = {"kind": "signal", "ranks": list(ranks), "signal": dump_signal(kind)}
        self.server.tell(header)

    def pause(self, rank: int, wish: Mapping[str, Any]) -> None:
        """Have a rank stopped, once or in turns, and continued by the clock."""
        self.server.tell({"kind": "pause", "rank": rank, "pause": dict(wish)})

    def resume(self, rank: int) -> None:
        """End what `pause` began."""
        self.server.tell({"kind": "resume", "rank": rank})

    def disturb(self, rank: int, index: int) -> None:
        """Have a fault of the network happen, see `RunningWorld`."""
        self.server.tell({"kind": "disturb", "rank": rank, "index": index})

    def calm(self) -> None:
        """End all faults of the network."""
        self.server.tell({"kind": "calm"})

    def end(self, *, grace_s: float) -> Ending:
        """End what is left, whatever state it is in, and return what was found."""
        try:
            self.begin_end(grace_s=grace_s)
            return self.finish_end()
        finally:
            self.let_go()

    def begin_end(self, *, grace_s: float) -> None:
        """Have the server begin with the end."""
        self.server.tell({"kind": "end", "grace_s": grace_s})

    def let_go(self) -> None:
        """Close the streams."""
        self._selector.close()
        for stream in (*self.streams.values(), *self.tables.values()):
            stream.close()

    def finish_end(self) -> Ending:
        """Wait until the server has ended everything, and return what was found."""
        events: list[Event] = []
        while (packet := self.server.hear()).header["kind"] != "ended":
            events += _server_events(packet)
        for rank in self.streams:
            events += self._read(rank)
        events += [_exit_event(each) for each in packet.header["exits"]]
        return Ending(tuple(events), tuple(packet.header["leftovers"]))


def _garbled(rank: int) -> Event:
    message = "something else than this package wrote into the rank's connection to pytest"
    error = RaisedError(type="GarbledError", message=message, text=message, is_harness_error=True)
    return Event(time.monotonic(), rank, Interrupted(error))


def _forked_events(packet: Packet, ranks: Iterable[int]) -> list[Event]:
    at_s = packet.header["at_s"]
    pids = zip(ranks, packet.header["pids"], strict=True)
    return [Event(at_s, rank, Forked(pid)) for rank, pid in pids]


def _server_events(packet: Packet) -> list[Event]:
    if packet.header["kind"] == "changed":
        data = packet.header
        return [Event(data["at_s"], data["rank"], NetworkChanged(data["token"], data["error"]))]
    if packet.header["kind"] != "exited":
        happened = f"the server said {packet.header['kind']!r} at the wrong time"
        raise LaunchError(happened)
    return [_exit_event(packet.header)]


def _exit_event(data: Any) -> Event:  # noqa: ANN401 - a JSON object
    return Event(data["at_s"], data["rank"], from_json(Exited, {**data, "kind": Exited.kind}))
