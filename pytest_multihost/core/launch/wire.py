"""Connections that carry frames: between processes, and from a rank to the controller."""

from __future__ import annotations

import contextlib
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

# By name: a test may replace it in its module, which must not affect the harness.
from os import getpid
from typing import Any, Generic

from pytest_multihost.core.launch.frames import Authenticator, Decoder, M, WireFrame, encode
from pytest_multihost.core.launch.own_descriptors import close_in_children
from pytest_multihost.core.model.errors import GarbledError, MultihostError
from pytest_multihost.core.model.messages import ToRank

_CHUNK = 1 << 16
_RAISING = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM})
"""Signals whose handlers may raise."""


class FrameStream(Generic[M]):
    """Frames in both directions, without blocking: the controller serves many connections.

    Args:
        socket: The connection; it is made non-blocking.
        messages: The accepted messages: a union of classes, or kinds of events.
        keys: The keys of received and of sent frames; None: frames carry no tags.

    Attributes:
        ended: Why receiving has ended; None while it has not.
        is_garbled: Whether it has ended because of invalid frames.
        heard: Called when bytes have been received; None: nothing is.
    """

    def __init__(
        self, socket: socket.socket, messages: object, *, keys: tuple[bytes, bytes] | None = None
    ) -> None:
        theirs, ours = map(Authenticator, keys) if keys is not None else (None, None)
        self.socket = close_in_children(socket)
        self.ended: str | None = None
        self.is_garbled = False
        self.heard: Callable[[], None] | None = None
        self._decoder: Decoder[M] = Decoder(messages, authenticator=theirs)
        self._authenticator = ours
        self.moved_bytes = 0
        self._outbox = bytearray()
        self._arrived: list[WireFrame[M]] = []
        socket.setblocking(False)  # noqa: FBT003 - the standard library's signature

    def fileno(self) -> int:
        """Return the descriptor, for a poll; -1 if it is closed."""
        return self.socket.fileno()

    @property
    def has_more_to_send(self) -> bool:
        """Whether unsent bytes are buffered."""
        return bool(self._outbox) and self.ended is None

    @property
    def poll_events(self) -> int:
        """The poll events to wait for: readable, and writable while unsent bytes are buffered."""
        return select.POLLIN | (select.POLLOUT if self.has_more_to_send else 0)

    def send(self, frame: WireFrame[Any]) -> None:
        """Send a frame, or buffer it until it can be sent. A closed other side is not an error."""
        with signals_deferred():
            if self.ended is None:
                self._outbox += encode(frame, self._authenticator)
            self._send_buffered()

    def flush(self) -> None:
        """Send buffered bytes, as far as possible without blocking."""
        if self.has_more_to_send:
            with signals_deferred():
                self._send_buffered()

    def _send_buffered(self) -> None:
        try:
            while self.has_more_to_send:
                sent = self.socket.send(self._outbox)
                del self._outbox[:sent]
                self.moved_bytes += sent
        except BlockingIOError:
            pass
        except OSError as error:
            self._outbox.clear()
            self._read()  # frames that the other side sent before it closed
            self.ended = self.ended or str(error)

    def receive(self) -> list[WireFrame[M]]:
        """Return the frames that have arrived; if there are none, check `ended`."""
        with signals_deferred():
            self._read()
            arrived, self._arrived = self._arrived, []
        return arrived

    def await_frames(self, deadline_s: float) -> list[WireFrame[M]]:
        """Wait for the next frames; return none at the deadline or after the stream's end."""
        while True:
            frames = self.receive()
            left_s = deadline_s - time.monotonic()
            if frames or self.ended is not None or left_s <= 0:
                return frames
            self._wait(left_s)

    def drain(self, deadline_s: float) -> None:
        """Wait until all buffered bytes are sent, at most until the deadline."""
        while self.has_more_to_send and (left_s := deadline_s - time.monotonic()) > 0:
            self._wait(left_s)

    def _wait(self, timeout_s: float) -> None:
        poll = select.poll()
        poll.register(self.socket, self.poll_events)
        poll.poll(timeout_s * 1000)
        self.flush()

    def _read(self) -> None:
        if self.ended is not None:
            return
        before = self.moved_bytes
        self._read_available()
        if self.heard is not None and self.moved_bytes > before:
            self.heard()

    def _read_available(self) -> None:
        try:
            while data := self.socket.recv(_CHUNK):
                self.moved_bytes += len(data)
                for frame in self._decoder.decode(data):
                    self._arrived.append(frame)
            self.ended = "it closed the connection"
        except BlockingIOError:
            return
        except OSError as error:
            self.ended = str(error)
        except GarbledError as error:
            self.is_garbled = True
            self.ended = str(error)

    def give_up(self, why: str) -> None:
        """Stop sending and receiving, and let the other side see the end."""
        self.ended = self.ended or why
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection."""
        self.ended = self.ended or "this side closed the connection"
        self.socket.close()

    def detach(self) -> int:
        """Stop sending and receiving; return the open descriptor, which the caller must close."""
        self.ended = self.ended or "this side handed the connection on"
        return self.socket.detach()


@contextlib.contextmanager
def signals_deferred() -> Iterator[None]:
    """Defer signals whose handlers may raise until after the block.

    If Ctrl-C raised between sending bytes and recording that, they would be sent twice. This works
    only in a process with one thread: otherwise another thread receives the signal, and Python
    still runs the handler in the main thread.
    """
    # The mask is read by a call of its own: the call that blocks signals also runs handlers of
    # earlier signals, and if one raised there, the signals would stay blocked forever.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, _RAISING)
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@dataclass(slots=True)
class Channel:
    """A rank's end of its connection to the controller.

    Several threads may use it at once, and each waits for its own frames. If no thread is reading,
    the next one reads for all, so the rank needs no reader thread. A forked child that uses the
    channel gets an error, because two processes that write to one stream would interleave frames.
    """

    stream: socket.socket
    _owner: int = field(default_factory=getpid)
    _sending: threading.Lock = field(default_factory=threading.Lock)
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _is_being_read: bool = False
    _decoder: Decoder[ToRank] = field(default_factory=lambda: Decoder(ToRank))
    _arrived: list[WireFrame[ToRank]] = field(default_factory=list)
    _held: bytes = b""

    @property
    def is_ours(self) -> bool:
        """Whether this process is the rank itself, not a forked child of it."""
        return getpid() == self._owner

    def send(self, header: Mapping[str, Any], payload: bytes = b"") -> None:
        """Send an event; blocks until the kernel has taken all of it.

        Raises:
            MultihostError: Called in a forked child of the rank.
            OSError: The controller is gone or the descriptor was closed.
        """
        self._check_owner()
        self._write(encode(WireFrame(header, payload)))

    def send_with_next(self, header: Mapping[str, Any]) -> None:
        """Send an event together with the next one: each write wakes the controller.

        Only for an event after which this process soon sends an event, or waits for a frame.

        Raises:
            MultihostError: As in `send`.
        """
        self._check_owner()
        with self._sending:
            self._held += encode(WireFrame(header))

    def _write(self, data: bytes) -> None:
        with self._sending:
            held, self._held = self._held, b""
            self.stream.sendall(held + data)

    def receive(self, wanted: Callable[[ToRank], bool]) -> WireFrame[ToRank]:
        """Return the first frame whose message is `wanted`, waiting without a timeout.

        Raises:
            EOFError: The controller is gone.
        """
        self._check_owner()
        if self._held:
            self._write(b"")
        while True:
            with self._changed:
                for index, frame in enumerate(self._arrived):
                    if wanted(frame.message):
                        return self._arrived.pop(index)
                if self._is_being_read:
                    self._changed.wait()
                    continue
                self._is_being_read = True
            self._read_for_all()

    def _read_for_all(self) -> None:
        frames: list[WireFrame[ToRank]] = []
        try:
            while not frames:
                data = self.stream.recv(_CHUNK)
                if not data:
                    message = "the controller closed the channel"
                    raise EOFError(message)
                frames = self._decoder.feed(data)
        finally:
            with self._changed:
                self._arrived += frames
                self._is_being_read = False
                self._changed.notify_all()

    def _check_owner(self) -> None:
        if not self.is_ours:
            happened = "a forked child of a rank used the rank's world"
            raise MultihostError(
                happened, remedy="Use world and the fixtures only in the rank's own process."
            )
