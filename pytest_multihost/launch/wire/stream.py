"""Connections that carry frames: between processes, from a rank to the controller, and in packets.

A packet is a message with file descriptors beside it, between processes of one machine. Its
connection is a SOCK_SEQPACKET pair (unix(7)). It keeps the boundaries of messages, so the
descriptors that come with one (SCM_RIGHTS) belong to that one: on a stream they would be attached
to a byte, and a reader that takes several messages at once would not know to which. And it is
connected, so the end of the other side is seen.
"""

from __future__ import annotations

import array
import contextlib
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

# By name: a test may replace it in its module, and we must not notice.
from os import getpid
from typing import Any, Generic, TypeVar

from pytest_multihost.launch.wire.framing import Authenticator, Decoder, Frame, encode
from pytest_multihost.model.errors import GarbledError, MultihostError
from pytest_multihost.model.json_values import JsonObject
from pytest_multihost.model.messages import ToRank

M = TypeVar("M")

_CHUNK = 1 << 16
_RAISING = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGALRM})
"""Signals whose handlers may raise."""


@dataclass(slots=True)
class FrameStream(Generic[M]):
    """Frames in both directions, and nobody waits: the controller has others to serve.

    Attributes:
        socket: The connection; it is made non-blocking.
        decoder: Reads what comes in.
        authenticator: Makes the tags of what goes out, where the other side wants any.
        ended: Why nothing comes any more; None as long as something may.
        is_garbled: Whether that is because what came was not ours.
    """

    socket: socket.socket
    decoder: Decoder[M]
    authenticator: Authenticator | None = None
    ended: str | None = None
    is_garbled: bool = False
    _outbox: bytearray = field(default_factory=bytearray)
    _arrived: list[Frame[M]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.socket.setblocking(False)  # noqa: FBT003 - the standard library's signature

    def fileno(self) -> int:
        """Return the descriptor, for a poll; -1 when it is closed."""
        return self.socket.fileno()

    @property
    def has_more_to_send(self) -> bool:
        """Whether the other side has yet to take something."""
        return bool(self._outbox) and self.ended is None

    @property
    def poll_events(self) -> int:
        """What to wait for in a poll: something to read, and room where something is to be sent."""
        return select.POLLIN | (select.POLLOUT if self.has_more_to_send else 0)

    def send(self, frame: Frame[Any]) -> None:
        """Send a frame, or keep it until the other side takes it. One that is gone is no error."""
        with signals_deferred():
            if self.ended is None:
                self._outbox += encode(frame, self.authenticator)
            self._flush()

    def flush(self) -> None:
        """Send what is waiting, as far as the other side takes it."""
        with signals_deferred():
            self._flush()

    def _flush(self) -> None:
        try:
            while self._outbox and self.ended is None:
                del self._outbox[: self.socket.send(self._outbox)]
        except BlockingIOError:
            pass
        except OSError as error:
            self._outbox.clear()
            self._read()  # what it sent before it went
            self._end(str(error))

    def receive(self) -> list[Frame[M]]:
        """Return the frames that have arrived; look at `ended` when there are none."""
        with signals_deferred():
            self._read()
            arrived, self._arrived = self._arrived, []
        return arrived

    def await_frames(self, deadline_s: float) -> list[Frame[M]]:
        """Return the next frames, none at the deadline or when nothing will come any more."""
        while True:
            frames = self.receive()
            left_s = deadline_s - time.monotonic()
            if frames or self.ended is not None or left_s <= 0:
                return frames
            self._wait(left_s)

    def drain(self, deadline_s: float) -> None:
        """Wait until the other side has taken everything, at most until the deadline."""
        while self.has_more_to_send and (left_s := deadline_s - time.monotonic()) > 0:
            self._wait(left_s)
            self.flush()

    def _wait(self, timeout_s: float) -> None:
        poll = select.poll()
        poll.register(self.socket, self.poll_events)
        poll.poll(timeout_s * 1000)
        self.flush()

    def _read(self) -> None:
        if self.ended is not None:
            return
        try:
            while data := self.socket.recv(_CHUNK):
                self._arrived += self.decoder.feed(data)
        except BlockingIOError:
            return
        except OSError as error:
            self._end(str(error))
        except GarbledError as error:
            self.is_garbled = True
            self._end(str(error))
        else:
            self._end("it closed the connection")

    def _end(self, why: str) -> None:
        self.ended = self.ended or why

    def give_up(self, why: str) -> None:
        """Neither send nor receive any more, and let the other side notice."""
        self._end(why)
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection."""
        self._end("we closed it")
        self.socket.close()


@contextlib.contextmanager
def signals_deferred() -> Iterator[None]:
    """Let no signal's handler raise in the block: it comes afterwards.

    Ctrl-C between a piece that was sent and the note that it was would send it twice. That holds
    in a process of one thread: another one would take the signal, and Python has the main thread
    handle it all the same.
    """
    # Read before it is changed: the call that blocks runs handlers of signals that came just
    # before it, and one that raises there would leave the signals blocked for good.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, _RAISING)
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@dataclass(slots=True)
class Channel:
    """A rank's end of its connection to the controller.

    Several threads may use it at once: each waits for frames of its own. Whichever of them finds
    nobody reading reads for all, so no thread of ours is needed in the rank. Useless in a forked
    child: two processes that write to one stream would tear each other's frames apart, so a child
    gets an error instead.
    """

    stream: socket.socket
    _owner: int = field(default_factory=getpid)
    _sending: threading.Lock = field(default_factory=threading.Lock)
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _is_being_read: bool = False
    _decoder: Decoder[ToRank] = field(default_factory=lambda: Decoder(ToRank))
    _arrived: list[Frame[ToRank]] = field(default_factory=list)

    @property
    def is_ours(self) -> bool:
        """Whether this process is the rank itself and not a forked child of it."""
        return getpid() == self._owner

    def send(self, header: Mapping[str, Any], payload: bytes = b"") -> None:
        """Send an event; blocks until the kernel has taken all of it.

        Raises:
            MultihostError: Called in a forked child of the rank.
            OSError: The controller is gone or the descriptor was closed.
        """
        self._check_owner()
        data = encode(Frame(header, payload))
        with self._sending:
            self.stream.sendall(data)

    def receive(self, wanted: Callable[[ToRank], bool]) -> Frame[ToRank]:
        """Return the first frame whose message is `wanted`, waiting as long as it takes.

        Raises:
            EOFError: The controller is gone.
        """
        self._check_owner()
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
        frames: list[Frame[ToRank]] = []
        try:
            while not frames:
                frames = self._decoder.feed(self._read())
        finally:
            with self._changed:
                self._arrived += frames
                self._is_being_read = False
                self._changed.notify_all()

    def _read(self) -> bytes:
        data = self.stream.recv(_CHUNK)
        if not data:
            message = "the controller closed the channel"
            raise EOFError(message)
        return data

    def _check_owner(self) -> None:
        if not self.is_ours:
            happened = "a forked child of a rank used the rank's world"
            raise MultihostError(
                happened, remedy="Use world and the fixtures only in the rank's own process."
            )


MAX_DESCRIPTORS = 250
"""The kernel takes at most 253 descriptors in one message (SCM_MAX_FD)."""

_MAX_PACKET = 1 << 17
_INT = array.array("i").itemsize


@dataclass(frozen=True, slots=True)
class Packet(Generic[M]):
    """One message and the descriptors that came with it."""

    message: M
    descriptors: tuple[int, ...] = ()


def send_packet(
    connection: socket.socket,
    message: Any,  # noqa: ANN401 - any of `model.messages`
    descriptors: Sequence[int] = (),
) -> None:
    """Send one packet; the kernel duplicates the descriptors for the receiver."""
    socket.send_fds(connection, [encode(Frame(message))], list(descriptors))


def receive_packet(connection: socket.socket, messages: object = JsonObject) -> Packet[Any] | None:
    """Return the next packet, or None when the other side is gone. Waits for it.

    Args:
        connection: Where it comes from.
        messages: The messages that may come: a union of classes. Any JSON object where none are
            named.

    Raises:
        GarbledError: It is none of these.
    """
    space = socket.CMSG_SPACE(MAX_DESCRIPTORS * _INT)
    try:
        data, ancillary, _, _ = connection.recvmsg(_MAX_PACKET, space)
    except ConnectionResetError:
        return None
    if not data:
        return None
    descriptors = array.array("i")
    for level, kind, content in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors.frombytes(content[: len(content) - len(content) % _INT])
    frames: list[Frame[Any]] = Decoder[Any](messages).feed(data)
    if len(frames) != 1:
        raise GarbledError("a packet holds one message")
    return Packet(frames[0].message, tuple(descriptors))
