"""The ranks that one server has started, and the controller's connection to that server."""

from __future__ import annotations

import contextlib
import os
import select
import selectors
import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from pytest_multihost.core.launch.frames import WireFrame
from pytest_multihost.core.launch.interface import ANSWER_S, Ending, WorldProcesses
from pytest_multihost.core.launch.own_descriptors import close_in_children
from pytest_multihost.core.launch.packets import Packet, receive_packet, send_packet
from pytest_multihost.core.launch.reaper import kill_strays, wait_for_exit
from pytest_multihost.core.launch.wire import FrameStream
from pytest_multihost.core.model.errors import GarbledError, LaunchError, UnsoundForkError
from pytest_multihost.core.model.event import (
    Event,
    Forked,
    Interrupted,
    RaisedError,
    read_event,
)
from pytest_multihost.core.model.json_values import JsonError
from pytest_multihost.core.model.messages import (
    CloneServer,
    DumpKind,
    EndWorld,
    Failed,
    FaultRequest,
    FromServer,
    Quit,
    RankEvent,
    RequestDumps,
    ServerCloned,
    Serving,
    ToServer,
    Unsound,
    WorldEnded,
    WorldForked,
)

M = TypeVar("M")
Stream = FrameStream[Mapping[str, Any]]


@dataclass(slots=True)
class ServerWorld:
    """All or some ranks of one world: streams to them, and requests to their server.

    Attributes:
        server: The server that has started them.
        forked: The server's answer to the request to fork them.
        socket_tables: Sockets that read the socket tables of the ranks' network namespaces, except
            the controller's own, by the namespaces' names.
    """

    server: ServerConnection
    streams: dict[int, Stream]
    forked: WorldForked
    socket_tables: dict[str, socket.socket] = field(default_factory=dict)
    _selector: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector)
    _is_announced: bool = False

    def __post_init__(self) -> None:
        close_in_children(self._selector)
        for table in self.socket_tables.values():
            close_in_children(table)
        self._selector.register(self.server.control, selectors.EVENT_READ, None)
        for rank, stream in self.streams.items():
            self._selector.register(stream, selectors.EVENT_READ, rank)

    @property
    def ranks(self) -> Sequence[int]:
        """The ranks that the server has started."""
        return tuple(self.streams)

    @property
    def processes(self) -> WorldProcesses:
        """The harness's own processes around these ranks; see `RankControl`."""
        return WorldProcesses(
            servers=frozenset({self.server.pid}),
            reaper=self.server.pid,
            companions=frozenset({*self.server.clones, *self.forked.companions}),
            exchanges=frozenset(self.forked.exchanges),
            idle=other_servers(self.server) | self.server.clones,
            socket_tables=self.socket_tables,
        )

    @property
    def moved_bytes(self) -> int:
        """Bytes sent to and received from the ranks."""
        return sum(stream.moved_bytes for stream in self.streams.values())

    def fileno(self) -> int:
        """Return a descriptor that is readable when `wait` would not block."""
        epoll: Any = self._selector
        return int(epoll.fileno())

    @property
    def poll_events(self) -> int:
        """The poll events to wait for on that descriptor."""
        return select.POLLIN

    @property
    def has_events(self) -> bool:
        """Whether `wait` has events to return at once."""
        return not self._is_announced

    def wait(self, timeout_s: float) -> Sequence[Event]:
        """Return new events, waiting at most `timeout_s` seconds for the first one."""
        if not self._is_announced:
            self._is_announced = True
            pids = zip(self.streams, self.forked.pids, strict=True)
            return [Event(self.forked.at_s, rank, Forked(pid)) for rank, pid in pids]
        events: list[Event] = []
        from_server: list[Event] = []
        for key, _ in self._selector.select(timeout_s):
            if key.data is None:
                from_server.append(self.server.receive(RankEvent).message.event)
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
        if is_garbled or stream.is_garbled:
            message = "other code than this package wrote into the rank's connection to pytest"
            error = RaisedError(
                type="GarbledError", message=message, text=message, is_harness_error=True
            )
            events.append(Event(time.monotonic(), rank, Interrupted(error)))
        return events

    def _watch(self, rank: int) -> None:
        stream = self.streams[rank]
        more = selectors.EVENT_WRITE if stream.has_more_to_send else 0
        self._selector.modify(stream, selectors.EVENT_READ | more, rank)

    def confirm(self) -> None:
        """Do nothing: the ranks send to this process themselves."""

    def send(self, rank: int, frame: WireFrame[Any]) -> None:
        """Send a frame to a rank; a rank that is gone is not an error here.

        This never blocks: bytes that a slow or stopped rank does not read now are sent in `wait`.
        """
        if self.streams[rank].fileno() >= 0:
            self.streams[rank].send(frame)
            self._watch(rank)

    def request_dumps(self, ranks: Sequence[int], kind: DumpKind) -> None:
        """Have every rank of `ranks` write a dump to its file."""
        self.server.send(RequestDumps(tuple(ranks), kind))

    def collect_dumps(self) -> None:
        """Do nothing: the ranks write into the controller's directory."""

    def request(self, message: FaultRequest) -> None:
        """Have the server perform a part of a fault; see `RankControl`."""
        self.server.send(message)

    def end(self, *, grace_s: float) -> Ending:
        """End all remaining processes, in any state; return the last events and leftovers."""
        try:
            self.begin_end(grace_s=grace_s)
            return self.finish_end()
        finally:
            self.close()

    def begin_end(self, *, grace_s: float) -> None:
        """Have the server start ending the ranks."""
        self.server.send(EndWorld(grace_s))

    def finish_end(self) -> Ending:
        """Wait until the server has ended everything; return the last events and leftovers."""
        from_server: list[Event] = []
        while True:
            packet: Packet[RankEvent | WorldEnded] = self.server.receive(RankEvent, WorldEnded)
            if isinstance(packet.message, WorldEnded):
                break
            from_server.append(packet.message.event)
        events = [event for rank in self.streams for event in self._read(rank)]
        return Ending((*events, *from_server), packet.message.leftovers)

    def close(self) -> None:
        """Close the streams."""
        self._selector.close()
        for stream in self.streams.values():
            stream.close()
        for table in self.socket_tables.values():
            table.close()


_EACH_S = 0.25
"""How long the fork of one rank may take on a busy machine; normally it takes 7 ms."""

PREPARE_S = 600.0
"""Timeout for a new server's collection and the project's preloads."""

_LOG_TAIL = 4_000


def reap_child(server: int) -> None:
    """Wait for the end of the server, kill it after a timeout, and reap it."""
    wait_for_exit(server)
    os.waitpid(server, 0)


_LIVING: dict[int, ServerConnection] = {}
"""All servers of this process that have not been closed, by process id."""


def other_servers(server: ServerConnection) -> frozenset[int]:
    """Return the process ids of all servers of this process except one, and of their clones."""
    others = [each for each in _LIVING.values() if each is not server]
    return frozenset(pid for each in others for pid in (each.pid, *each.clones))


@dataclass(slots=True)
class ServerConnection:
    """A server that has been started.

    Attributes:
        control: The controller's end of the control connection.
        pid: Process id of the server, a child of this process unless `reap` is replaced.
        log: The file with its output, if that is not the terminal.
        reap: Waits for its end, kills it after a timeout, and reaps it.
        clones: The servers that were forked from it.
    """

    control: socket.socket
    pid: int
    log: Path | None = None
    reap: Callable[[int], None] = reap_child
    clones: set[int] = field(default_factory=set)
    is_closed: bool = False

    def __post_init__(self) -> None:
        close_in_children(self.control)
        _LIVING[self.pid] = self

    def await_serving(self) -> None:
        """Wait until a new server is ready: it may be collecting, or importing torch.

        Raises:
            UnsoundForkError: The server cannot be forked safely.
            LaunchError: The server failed to start.
        """
        self.control.settimeout(PREPARE_S)
        self.receive(Serving)
        self.control.settimeout(ANSWER_S)

    def await_longer(self, ranks: int) -> None:
        """Give the server more time for its answers: it forks and ends each rank of a world."""
        self.control.settimeout(ANSWER_S + _EACH_S * ranks)

    def clone(self, control: int, controller: int) -> int:
        """Have the server fork itself into a new server, and return the new one's process id.

        Args:
            control: Descriptor of the new server's end of its control connection.
            controller: Id of the process at the other end.

        Raises:
            LaunchError: The server is gone.
        """
        self.send(CloneServer(controller), [control])
        pid = self.receive(ServerCloned).message.pid
        self.clones.add(pid)
        return pid

    def close(self) -> None:
        """End the server, and with it all remaining ranks.

        This sends a request, because the server would not notice a closed connection while a child
        that a test has forked holds a copy.
        """
        if self.is_closed:
            return
        self.is_closed = True
        _LIVING.pop(self.pid, None)
        with contextlib.suppress(OSError):
            send_packet(self.control, Quit())
        self.control.close()
        self.reap(self.pid)

    def send(self, message: ToServer, descriptors: Sequence[int] = ()) -> None:
        """Send a request to the server.

        Raises:
            LaunchError: The server is gone.
        """
        try:
            send_packet(self.control, message, descriptors)
        except OSError as error:
            raise self._lost(str(error)) from error

    def receive(self, *wanted: type[M]) -> Packet[M]:
        """Return the server's next message, of a class in `wanted`, with its descriptors.

        Raises:
            UnsoundForkError: The server cannot be forked safely.
            LaunchError: The server is gone, does not answer, or the request failed.
        """
        try:
            packet: Packet[Any] | None = receive_packet(self.control, FromServer)
        except (OSError, GarbledError) as error:
            raise self._lost(str(error)) from error
        if packet is None:
            raise self._lost("it closed its connection")
        match packet.message:
            case Unsound(problems):
                self.close()
                raise UnsoundForkError(
                    "the server cannot be forked into ranks: a rank would hang, not fail",
                    seen=problems,
                )
            case Failed(why, remedy):
                raise LaunchError("the ranks could not be started", seen=why, remedy=remedy)
            case message if not isinstance(message, wanted):
                raise LaunchError(
                    f"the server that starts the ranks sent {type(message).__name__} out of turn"
                )
        return packet

    def _lost(self, seen: str) -> LaunchError:
        """Reap the server; the next world gets a new one."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self.close()
        kill_strays()
        return LaunchError(
            "the server that starts the ranks is gone", seen=seen + self._last_words()
        )

    def _last_words(self) -> str:
        """Return the end of the server's log, for a message; empty if the log is."""
        try:
            text = self.log.read_text("utf-8", "backslashreplace")[-_LOG_TAIL:] if self.log else ""
        except OSError:
            return ""
        return f"\nThe end of its log, {self.log}:\n{text}" if text.strip() else ""
