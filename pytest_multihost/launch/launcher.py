"""The controller's side of the server: start it, have it fork worlds, hear from the ranks."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_multihost.launch.guard import wait_until_dead
from pytest_multihost.launch.protocol import (
    MAX_DESCRIPTORS,
    Ending,
    Packet,
    RunningWorld,
    RunRank,
    dump_signal,
    receive_packet,
    send_packet,
)
from pytest_multihost.launch.server import serve
from pytest_multihost.launch.soundness import fork_problems
from pytest_multihost.launch.wire import Decoder, Frame, encode, read_available
from pytest_multihost.model.errors import LaunchError, UnsoundForkError
from pytest_multihost.model.event import Event, ExitStatus
from pytest_multihost.model.spec import WorldSpec

ANSWER_S = 60.0
"""How long the server may take to answer. Forking 64 ranks of a large image takes a second."""


FAREWELL_S = 15.0
"""How long the server may take to end its ranks and itself."""

PREPARE_S = 600.0
"""How long a new server may load what the project has it load."""


@dataclass(slots=True)
class ForkLauncher:
    """Starts worlds through a server that was forked from the controller.

    Attributes:
        run_rank: What a rank does.
        prepare_server: Runs once in a new server before its first fork.
    """

    run_rank: RunRank
    prepare_server: Callable[[], None]
    _control: socket.socket | None = None
    _server: int = 0
    _is_serving: bool = False

    @property
    def name(self) -> str:
        """The way of launching, as the verdict calls it."""
        return "fork"

    def open(self) -> None:
        """Fork the server.

        Raises:
            UnsoundForkError: The controller has threads or runtimes that a fork would break.
        """
        if problems := fork_problems():
            raise _unsound(problems)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        controller = os.getpid()
        self._server = os.fork()
        if self._server == 0:
            ours.close()
            self._serve(theirs, controller)
        theirs.close()
        ours.settimeout(ANSWER_S)
        self._control = ours

    def _serve(self, control: socket.socket, controller: int) -> None:
        try:
            self.prepare_server()
        except BaseException as error:  # noqa: BLE001 - must not climb into pytest's stack
            happened = f"the server could not prepare itself: {type(error).__name__}: {error}"
            send_packet(control, {"kind": "failed", "error": happened})
            os._exit(0)
        serve(control, self.run_rank, controller=controller)

    def close(self) -> None:
        """End the server, and with it every rank that is left.

        It is asked to go: closing our end would not tell it, if a child that a test has forked
        still holds a copy.
        """
        if self._control is None:
            return
        with contextlib.suppress(OSError):
            send_packet(self._control, {"kind": "quit"})
        self._control.close()
        self._control, self._is_serving = None, False
        _bury(self._server)

    def start(self, spec: WorldSpec, *, directory: Path, scratch: Path) -> RunningWorld:
        """Start the ranks of a world, with a new server if the last one is gone.

        Raises:
            LaunchError: They could not be started; none is left.
            UnsoundForkError: A new server was needed, and the controller is no longer sound.
        """
        if self._control is None:
            self.open()
        self._await_serving()
        pairs = [socket.socketpair() for _ in range(spec.size)]
        try:
            packet = self._request_fork(spec, [theirs for _, theirs in pairs], directory, scratch)
        except LaunchError:
            for ours, _ in pairs:
                ours.close()
            raise
        finally:
            for _, theirs in pairs:
                theirs.close()
        return _ForkedWorld(self, [ours for ours, _ in pairs], packet)

    def _await_serving(self) -> None:
        """Wait for a new server to be ready: it may be importing torch."""
        if self._is_serving:
            return
        self.control.settimeout(PREPARE_S)
        self.hear()
        self.control.settimeout(ANSWER_S)
        self._is_serving = True

    def _request_fork(
        self, spec: WorldSpec, streams: Sequence[socket.socket], directory: Path, scratch: Path
    ) -> Packet:
        descriptors = [stream.fileno() for stream in streams]
        header = {
            "kind": "fork",
            "spec": spec.to_json(),
            "directory": str(directory),
            "scratch": str(scratch),
        }
        self.tell(header, descriptors[:MAX_DESCRIPTORS])
        for first in range(MAX_DESCRIPTORS, len(descriptors), MAX_DESCRIPTORS):
            self.tell({"kind": "streams"}, descriptors[first : first + MAX_DESCRIPTORS])
        return self.hear()

    def tell(self, header: dict[str, Any], descriptors: Sequence[int] = ()) -> None:
        """Send a request to the server.

        Raises:
            LaunchError: The server is gone.
        """
        try:
            send_packet(self.control, header, descriptors)
        except OSError as error:
            raise self._lost(str(error)) from error

    def hear(self) -> Packet:
        """Return the server's next packet.

        Raises:
            LaunchError: The server is gone, does not answer, or could not do what it was asked.
        """
        try:
            packet = receive_packet(self.control)
        except OSError as error:
            raise self._lost(str(error)) from error
        if packet is None:
            raise self._lost("it closed its connection")
        if packet.header["kind"] == "failed":
            if not self._is_serving:
                self.close()
            raise LaunchError("the ranks could not be started", seen=packet.header["error"])
        return packet

    @property
    def control(self) -> socket.socket:
        """The connection to the server.

        Raises:
            LaunchError: There is no server.
        """
        if self._control is None:
            happened = "the server that starts the ranks is gone"
            raise LaunchError(happened)
        return self._control

    def _lost(self, seen: str) -> LaunchError:
        """Bury the server; the next world gets a new one."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._server, signal.SIGKILL)
        self.close()
        return LaunchError("the server that starts the ranks is gone", seen=seen)


@dataclass(slots=True)
class _ForkedWorld:
    """The ranks of one world that the server has forked."""

    launcher: ForkLauncher
    streams: list[socket.socket]
    forked: Packet
    _selector: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector)
    _decoders: dict[int, Decoder] = field(default_factory=dict)
    _outbox: dict[int, bytearray] = field(default_factory=dict)
    _announced: bool = False

    def __post_init__(self) -> None:
        self._selector.register(self.launcher.control, selectors.EVENT_READ, None)
        for rank, stream in enumerate(self.streams):
            stream.setblocking(False)  # noqa: FBT003 - the standard library's signature
            self._decoders[rank] = Decoder()
            self._selector.register(stream, selectors.EVENT_READ, rank)

    def wait(self, timeout_s: float) -> Sequence[Event]:
        """Return what happened, waiting at most `timeout_s` seconds for the first event."""
        if not self._announced:
            self._announced = True
            return _forked_events(self.forked)
        events: list[Event] = []
        exits: list[Event] = []
        for key, _ in self._selector.select(timeout_s):
            if key.data is None:
                exits += _exit_events(self.launcher.hear())
            else:
                self._flush(key.data)
                events += self._read(key.data)
        for event in exits:  # its last words arrived before it died
            events += self._read(event.rank)
        return events + exits

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
        return [_event(rank, frame) for frame in self._decoders[rank].feed(data)]

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

    def request_dumps(self, ranks: Sequence[int]) -> None:
        """Have every rank of `ranks` write its stacks to its file."""
        header = {"kind": "signal", "ranks": list(ranks), "signal": dump_signal()}
        self.launcher.tell(header)

    def end(self, *, grace_s: float) -> Ending:
        """End what is left, whatever state it is in, and return what was found."""
        try:
            self.launcher.tell({"kind": "end", "grace_s": grace_s})
            return self._await_end()
        finally:
            self._selector.close()
            for stream in self.streams:
                stream.close()

    def _await_end(self) -> Ending:
        events: list[Event] = []
        while (packet := self.launcher.hear()).header["kind"] != "ended":
            events += _exit_events(packet)
        for rank in range(len(self.streams)):
            events += self._read(rank)
        events += [_exit_event(each) for each in packet.header["exits"]]
        return Ending(tuple(events), tuple(packet.header["leftovers"]))


def _bury(server: int) -> None:
    """Wait for the end of the server and reap it, at the latest after having killed it."""
    descriptor = os.pidfd_open(server)
    try:
        if not wait_until_dead([descriptor], FAREWELL_S):
            os.kill(server, signal.SIGKILL)
    finally:
        os.close(descriptor)
    os.waitpid(server, 0)


def _forked_events(packet: Packet) -> list[Event]:
    at_s = packet.header["at_s"]
    pids = enumerate(packet.header["pids"])
    return [Event(at_s, rank, "forked", {"pid": pid}) for rank, pid in pids]


def _exit_events(packet: Packet) -> list[Event]:
    if packet.header["kind"] != "exited":
        happened = f"the server said {packet.header['kind']!r} at the wrong time"
        raise LaunchError(happened)
    return [_exit_event(packet.header)]


def _exit_event(data: Any) -> Event:  # noqa: ANN401 - a JSON object
    fields = ExitStatus.__dataclass_fields__
    return Event(data["at_s"], data["rank"], "exited", {name: data[name] for name in fields})


def _event(rank: int, frame: Frame) -> Event:
    detail = {key: value for key, value in frame.header.items() if key not in ("kind", "at_s")}
    at_s = frame.header.get("at_s", time.monotonic())
    return Event(at_s, rank, frame.header["kind"], detail, frame.payload)


def _unsound(problems: Sequence[str]) -> UnsoundForkError:
    return UnsoundForkError(
        "pytest's own process cannot be forked into ranks: a rank would hang, not fail",
        seen="Seen: " + "; ".join(problems) + ".",
        remedy=(
            "Move what starts threads or a runtime from module level into a fixture or the test;"
            " other ways of launching are not available yet."
        ),
    )
