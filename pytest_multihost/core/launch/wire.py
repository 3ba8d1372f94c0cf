"""Frames, and the connections that carry them between the processes of the harness."""

from __future__ import annotations

import contextlib
import errno
import hmac
import json
import os
import select
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

# By name: a test may replace these in their modules, which must not affect the harness.
from json import dumps as to_json_text
from os import getpid
from typing import Any, Generic, TypeVar

from pytest_multihost.core.model.errors import GarbledError, MultihostError
from pytest_multihost.core.model.json_values import JsonObject, from_json, to_json
from pytest_multihost.core.model.messages import ToRank

# Connections that carry frames: between processes, from a rank to the controller, and in packets.
#
# A packet is a message with file descriptors beside it, between processes of one machine. Its
# connection is a SOCK_SEQPACKET pair (unix(7)). It keeps the boundaries of messages, so the
# descriptors that come with one (SCM_RIGHTS) belong to that one. On a stream they would be attached
# to a byte, and a reader that receives several messages at once could not assign them. And it is
# connected, so the end of the other side is detected.


# Frames: how a message becomes bytes, the same on every connection of the harness.
#
# JSON and not pickle: unpickling would execute whatever a broken rank sends to the controller, and
# fails on exceptions whose constructor requires arguments. A frame is a message as a JSON object,
# with an optional payload of bytes. Payloads carry files, and the objects of `World.gather` and
# `World.broadcast`, which the controller does not decode.
#
# Layout: two unsigned 32-bit big-endian lengths (message, payload), the message in UTF-8, the
# payload; on a connection between machines each of these with a tag, which requires the key.


M = TypeVar("M")

_LENGTHS = struct.Struct("!II")
_PLACE = struct.Struct("!Q")
_TAG = 32  # bytes of SHA-256
_MAX_DEPTH = 20
_MAX_PARTS = 10_000
_MAX_NUMBER = 1 << 1000
MAX_PART = (1 << 32) - 1
MAX_HEADER = 1 << 28
"""Bytes of the largest message that is accepted."""

_OTHER_PROTOCOL = "it does not speak our protocol"


@dataclass(frozen=True, slots=True)
class Frame(Generic[M]):
    """One message and its payload.

    Attributes:
        message: One of `model.messages`, or a rank's event as a JSON object.
        payload: Bytes.
        number: Of the request that this is or answers; 0 where no answer is expected.
    """

    message: M
    payload: bytes = b""
    number: int = 0


@dataclass(slots=True)
class Authenticator:
    """Makes the tags of the frames in one direction of one connection, in order.

    HMAC-SHA256 (RFC 2104) of each part of a frame and its sequence number. So parts that were
    changed, dropped, replayed or recorded in another connection are detected by a wrong tag, and a
    wrong length before anything of that length is waited for.

    Attributes:
        key: The direction's; see `launch.attach.rendezvous`.
    """

    key: bytes
    count: int = 0

    def next_tag(self, part: bytes) -> bytes:
        """Return the tag of the next part."""
        tag = hmac.digest(self.key, _PLACE.pack(self.count) + part, "sha256")
        self.count += 1
        return tag


def encode(frame: Frame[Any], authenticator: Authenticator | None = None) -> bytes:
    """Return the bytes of `frame`.

    A value that JSON cannot represent is sent as its `repr`: an imprecise record is worth more
    to the controller than none.

    Raises:
        MultihostError: Message or payload is 4 GiB or larger.
    """
    message = frame.message if isinstance(frame.message, Mapping) else to_json(frame.message)
    content = {**message, "number": frame.number} if frame.number else message
    try:
        text = to_json_text(content, default=_safe_repr)
    except (TypeError, ValueError, RecursionError):  # a key that is no string, a cycle
        text = to_json_text(_plain(content, room=[_MAX_PARTS], depth=0))
    header = text.encode("utf-8", "backslashreplace")
    if max(len(header), len(frame.payload)) > MAX_PART:
        happened = "a message between ranks is larger than 4 GiB"
        raise MultihostError(happened, remedy="Pass a path in shared_tmp_path instead.")
    parts: tuple[bytes, ...] = (
        _LENGTHS.pack(len(header), len(frame.payload)),
        header,
        frame.payload,
    )
    if authenticator is not None:
        parts = tuple(part + authenticator.next_tag(part) for part in parts)
    return b"".join(parts)


def _plain(value: object, *, room: list[int], depth: int) -> object:
    """Return `value`, truncated, with everything replaced that JSON cannot represent."""
    room[0] -= 1
    if depth > _MAX_DEPTH or room[0] < 0:
        return "..."
    if isinstance(value, Mapping):
        return {
            key if isinstance(key, str) else _safe_repr(key): _plain(
                each, room=room, depth=depth + 1
            )
            for key, each in value.items()
        }
    if isinstance(value, list | tuple):
        return [_plain(each, room=room, depth=depth + 1) for each in value]
    if isinstance(value, int) and abs(value) > _MAX_NUMBER:
        return "<a number that is too large to be written>"
    return value if isinstance(value, str | int | float | None) else _safe_repr(value)


def _safe_repr(value: object) -> str:
    try:
        return repr(value)
    except Exception:  # noqa: BLE001 - any user's __repr__ can raise anything
        return f"<{type(value).__name__} whose repr() raises>"


class Decoder(Generic[M]):
    """Decodes frames from a stream of bytes, in pieces of any size.

    Args:
        messages: The messages that may come: a union of classes, or kinds of events.
        authenticator: Makes the tags that the parts of frames must carry.
    """

    def __init__(
        self, messages: object = JsonObject, *, authenticator: Authenticator | None = None
    ) -> None:
        self._messages = messages
        self._authenticator = authenticator
        self._tag_size = 0 if authenticator is None else _TAG
        self._pending = bytearray()
        self._sizes = [_LENGTHS.size]
        self._frame: Frame[M] | None = None

    def feed(self, data: bytes) -> list[Frame[M]]:
        """Take `data` and return the frames that are complete by now.

        Raises:
            GarbledError: The bytes are no valid frames. Nothing after them can be trusted.
        """
        return list(self.decode(data))

    def decode(self, data: bytes) -> Iterator[Frame[M]]:
        """Take `data` and yield the frames that are complete by now.

        Raises:
            GarbledError: As in `feed`; the frames before have been yielded.
        """
        self._pending += data
        while len(self._pending) >= (end := self._sizes[0] + self._tag_size):
            part = self._authentic(bytes(self._pending[:end]))
            del self._pending[:end], self._sizes[0]
            if self._frame is not None:
                frame, self._frame = self._frame, None
                self._sizes.append(_LENGTHS.size)
                yield replace(frame, payload=part)
            elif not self._sizes:
                self._sizes += _LENGTHS.unpack(part)
                if self._sizes[0] > MAX_HEADER:
                    raise GarbledError(_OTHER_PROTOCOL)
            else:
                # Read before waiting for a payload: a corrupt length could announce gigabytes that
                # never come.
                self._frame = self._read(part)

    def _authentic(self, data: bytes) -> bytes:
        """Return a part of a frame without its tag, which is checked before the part is read."""
        if self._authenticator is None:
            return data
        part, tag = data[:-_TAG], data[-_TAG:]
        if not hmac.compare_digest(self._authenticator.next_tag(part), tag):
            raise GarbledError("a frame is not authentic: changed, repeated or left out")
        return part

    def _read(self, data: bytes) -> Frame[M]:
        try:
            header = json.loads(data)
            if isinstance(self._messages, frozenset):
                if header.get("kind") not in self._messages:
                    raise GarbledError(_OTHER_PROTOCOL)
                return Frame(header)
            number = from_json(int, header.pop("number", 0))
            return Frame(from_json(self._messages, header), number=number)
        except (ValueError, RecursionError, TypeError, AttributeError) as error:
            raise GarbledError(_OTHER_PROTOCOL) from error


_CHUNK = 1 << 16
_RAISING = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM})
"""Signals whose handlers may raise."""


class FrameStream(Generic[M]):
    """Frames in both directions, without blocking: the controller serves many connections.

    Args:
        socket: The connection; it is made non-blocking.
        messages: The messages that may come: a union of classes, or kinds of events.
        keys: The keys of the frames that come and of those that are sent, where they carry tags.

    Attributes:
        ended: Why receiving has ended; None while it has not.
        is_garbled: Whether it has ended because of invalid frames.
    """

    def __init__(
        self, socket: socket.socket, messages: object, *, keys: tuple[bytes, bytes] | None = None
    ) -> None:
        theirs, ours = map(Authenticator, keys) if keys is not None else (None, None)
        self.socket = socket
        self.ended: str | None = None
        self.is_garbled = False
        self._decoder: Decoder[M] = Decoder(messages, authenticator=theirs)
        self._authenticator = ours
        self.moved_bytes = 0
        self._outbox = bytearray()
        self._arrived: list[Frame[M]] = []
        socket.setblocking(False)  # noqa: FBT003 - the standard library's signature

    def fileno(self) -> int:
        """Return the descriptor, for a poll; -1 when it is closed."""
        return self.socket.fileno()

    @property
    def has_more_to_send(self) -> bool:
        """Whether unsent bytes are buffered."""
        return bool(self._outbox) and self.ended is None

    @property
    def poll_events(self) -> int:
        """The poll events to wait for: readable, and writable while unsent bytes are buffered."""
        return select.POLLIN | (select.POLLOUT if self.has_more_to_send else 0)

    def send(self, frame: Frame[Any]) -> None:
        """Send a frame, or buffer it until it can be sent. A closed other side is no error."""
        with signals_deferred():
            if self.ended is None:
                self._outbox += encode(frame, self._authenticator)
            self.flush()

    def flush(self) -> None:
        """Send buffered bytes, as far as possible without blocking."""
        with signals_deferred():
            try:
                while self.has_more_to_send:
                    sent = self.socket.send(self._outbox)
                    del self._outbox[:sent]
                    self.moved_bytes += sent
            except BlockingIOError:
                pass
            except OSError as error:
                self._outbox.clear()
                self._read()  # what it sent before it closed
                self.ended = self.ended or str(error)

    def receive(self) -> list[Frame[M]]:
        """Return the frames that have arrived; look at `ended` when there are none."""
        with signals_deferred():
            self._read()
            arrived, self._arrived = self._arrived, []
        return arrived

    def await_frames(self, deadline_s: float) -> list[Frame[M]]:
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
        self.ended = self.ended or "we closed it"
        self.socket.close()


@contextlib.contextmanager
def signals_deferred() -> Iterator[None]:
    """Defer signals whose handlers may raise until after the block.

    Ctrl-C between sending a piece and recording that would send it twice. This works only in a
    process of one thread: another thread would receive the signal, and Python would still run the
    handler in the main thread.
    """
    # Read before it is changed: the call that blocks signals runs handlers of signals that came
    # just before it, and one that raises there would leave the signals blocked for good.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, _RAISING)
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@dataclass(slots=True)
class Channel:
    """A rank's end of its connection to the controller.

    Several threads may use it at once: each waits for its own frames. A thread that finds no other
    reading reads for all, so the rank needs no reader thread. Unusable in a forked child: two
    processes that write to one stream would interleave their frames, so a child gets an error.
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
        """Whether this process is the rank itself, not a forked child of it."""
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
        """Return the first frame whose message is `wanted`, waiting without a timeout.

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


_MAX_DESCRIPTORS = 250
"""The kernel takes at most 253 descriptors in one message (SCM_MAX_FD)."""

_MAX_PACKET = 1 << 17


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
    """Send one packet; the kernel duplicates the descriptors for the receiver.

    The frame's number is that of the descriptors. Those that the kernel does not take with it
    follow, each group with one byte.
    """
    data = encode(Frame(message, number=len(descriptors)))
    socket.send_fds(connection, [data], list(descriptors[:_MAX_DESCRIPTORS]))
    for first in range(_MAX_DESCRIPTORS, len(descriptors), _MAX_DESCRIPTORS):
        socket.send_fds(connection, [b"+"], list(descriptors[first : first + _MAX_DESCRIPTORS]))


def receive_packet(connection: socket.socket, messages: object = JsonObject) -> Packet[Any] | None:
    """Wait for the next packet and return it, or None when the other side is gone.

    Args:
        connection: Where it comes from.
        messages: The messages that may come: a union of classes. Any JSON object by default.

    Raises:
        GarbledError: It is none of these.
    """
    try:
        data, descriptors, flags, _ = socket.recv_fds(connection, _MAX_PACKET, _MAX_DESCRIPTORS)
        frames: list[Frame[Any]] = Decoder[Any](messages).feed(data)
        if data and len(frames) != 1:
            raise GarbledError("a packet holds one message")
        while data and len(descriptors) < frames[0].number:
            if flags & socket.MSG_CTRUNC:  # the kernel has dropped some
                for each in descriptors:
                    os.close(each)
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            data, more, flags, _ = socket.recv_fds(connection, 1, _MAX_DESCRIPTORS)
            descriptors += more
    except ConnectionResetError:
        return None
    return Packet(frames[0].message, tuple(descriptors)) if data else None
