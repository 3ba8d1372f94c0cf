"""Frames between a rank and the controller.

Why not pickle: what a rank sends is read by the controller, and a controller that unpickles
executes whatever a broken rank hands it, and dies of exceptions whose constructor wants
arguments. A frame is a JSON header with an optional payload of bytes. The payload serves
`World.gather` and `World.broadcast`, whose objects travel from rank to rank; the controller passes
it on unopened.

Layout: two unsigned 32-bit big-endian lengths (header, payload), the header as UTF-8, the payload.
"""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

# By name: a test may replace any of these in its modules, and we must not notice.
from json import dumps as to_json
from os import getpid
from typing import Any

from pytest_multihost.model.errors import MultihostError

_LENGTHS = struct.Struct("!II")
_CHUNK = 1 << 16
_MAX_DEPTH = 20
_MAX_PARTS = 10_000
_MAX_NUMBER = 1 << 1000
MAX_PART = (1 << 32) - 1
MAX_HEADER = 1 << 28
"""Bytes of the largest header that is believed in."""


class GarbledError(Exception):
    """What came through a connection was not written by this package."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One message: a JSON object and, rarely, bytes beside it."""

    header: Mapping[str, Any]
    payload: bytes = b""


def encode(frame: Frame) -> bytes:
    """Return the bytes of `frame`.

    A value that JSON does not know is sent as its `repr`: a record that reaches the controller
    a little less precise is worth more than one that does not reach it.

    Raises:
        MultihostError: Header or payload is 4 GiB or larger.
    """
    header = _dumped(frame.header).encode("utf-8", "backslashreplace")
    if max(len(header), len(frame.payload)) > MAX_PART:
        happened = "a message between ranks is larger than 4 GiB"
        raise MultihostError(happened, remedy="Pass a path in shared_tmp_path instead.")
    return _LENGTHS.pack(len(header), len(frame.payload)) + header + frame.payload


def _dumped(header: Mapping[str, Any]) -> str:
    try:
        return to_json(header, default=_safe_repr)
    except (TypeError, ValueError, RecursionError):  # a key that is no text, a circle
        return to_json(_plain(header, room=[_MAX_PARTS], depth=0))


def _plain(value: object, *, room: list[int], depth: int) -> object:
    """Return `value` with everything replaced that JSON cannot hold, and only so much of it."""
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


class Decoder:
    """Turns a stream of bytes back into frames, however it was cut.

    Args:
        kinds: Kinds of frames that may come; any if none is named.
    """

    def __init__(self, kinds: Collection[str] = ()) -> None:
        self._kinds = kinds
        self._pending = bytearray()
        self._header: Mapping[str, Any] | None = None

    def feed(self, data: bytes) -> list[Frame]:
        """Take `data` and return the frames that are complete by now.

        Raises:
            GarbledError: The bytes are no frames of ours.
        """
        self._pending += data
        frames = []
        while (frame := self._next()) is not None:
            frames.append(frame)
        return frames

    def _next(self) -> Frame | None:
        if len(self._pending) < _LENGTHS.size:
            return None
        header_size, payload_size = _LENGTHS.unpack_from(self._pending)
        payload_start = _LENGTHS.size + header_size
        if header_size > MAX_HEADER:
            raise GarbledError
        if len(self._pending) < payload_start:
            return None
        if self._header is None:  # looked at before a payload is waited for
            self._header = self._read_header(bytes(self._pending[_LENGTHS.size : payload_start]))
        end = payload_start + payload_size
        if len(self._pending) < end:
            return None
        frame = Frame(self._header, bytes(self._pending[payload_start:end]))
        self._header = None
        del self._pending[:end]
        return frame

    def _read_header(self, data: bytes) -> Mapping[str, Any]:
        try:
            header = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise GarbledError from error
        if not isinstance(header, dict) or (self._kinds and header.get("kind") not in self._kinds):
            raise GarbledError
        return header


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
    _decoder: Decoder = field(default_factory=Decoder)
    _arrived: list[Frame] = field(default_factory=list)

    @property
    def is_ours(self) -> bool:
        """Whether this process is the rank itself and not a forked child of it."""
        return getpid() == self._owner

    def send(self, header: Mapping[str, Any], payload: bytes = b"") -> None:
        """Send one frame; blocks until the kernel has taken all of it.

        Raises:
            MultihostError: Called in a forked child of the rank.
            OSError: The controller is gone or the descriptor was closed.
        """
        self._check_owner()
        data = encode(Frame(header, payload))
        with self._sending:
            self.stream.sendall(data)

    def receive(self, wanted: Callable[[Frame], bool]) -> Frame:
        """Return the first frame that is `wanted`, waiting for it as long as it takes.

        Raises:
            EOFError: The controller is gone.
        """
        self._check_owner()
        while True:
            with self._changed:
                for index, frame in enumerate(self._arrived):
                    if wanted(frame):
                        return self._arrived.pop(index)
                if self._is_being_read:
                    self._changed.wait()
                    continue
                self._is_being_read = True
            self._read_for_all()

    def _read_for_all(self) -> None:
        frames: list[Frame] = []
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


def read_available(stream: socket.socket) -> bytes | None:
    """Return what can be read without waiting, b"" if nothing, None at the end of the stream."""
    chunks = []
    with contextlib.suppress(BlockingIOError):
        while data := stream.recv(_CHUNK):
            chunks.append(data)
        return b"".join(chunks) or None
    return b"".join(chunks)
