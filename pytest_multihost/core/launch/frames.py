"""Encode and decode frames, the messages on every connection of the harness.

A frame is a message as a JSON object, with an optional payload of bytes. Payloads carry files, and
the objects of `World.gather` and `World.broadcast`, which the controller does not decode. Messages
are not pickled: unpickling would execute whatever a broken rank sends to the controller, and fails
on exceptions whose constructor requires arguments.

Layout: two unsigned 32-bit big-endian lengths (message, payload), the message in UTF-8, the
payload. On a connection between machines a tag follows each of these; making it requires the key.
"""

from __future__ import annotations

import hmac
import json
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

# By name: a test may replace it in its module, which must not affect the harness.
from json import dumps as to_json_text
from typing import Any, Generic, TypeVar

from pytest_multihost.core.model.errors import GarbledError, MultihostError
from pytest_multihost.core.model.json_values import JsonObject, from_json, to_json

M = TypeVar("M")

_LENGTHS = struct.Struct("!II")
_PLACE = struct.Struct("!Q")
_TAG = 32  # bytes of SHA-256
_MAX_DEPTH = 20
_MAX_PARTS = 10_000
_MAX_NUMBER = 1 << 1000
MAX_PART = (1 << 32) - 1
MAX_HEADER = 1 << 28
"""The largest accepted message, in bytes."""

_OTHER_PROTOCOL = "it does not speak the protocol of pytest-multihost-hangs"


@dataclass(frozen=True, slots=True)
class WireFrame(Generic[M]):
    """One message and its payload.

    Attributes:
        message: One of `model.messages`, or a rank's event as a JSON object.
        number: Number of the request that this is or answers; 0 if no answer is expected.
    """

    message: M
    payload: bytes = b""
    number: int = 0


@dataclass(slots=True)
class Authenticator:
    """Makes the tags of the frames in one direction of one connection, in order.

    A tag is the HMAC-SHA256 (RFC 2104) of a part of a frame and its sequence number. So a wrong tag
    reveals parts that were changed, dropped, replayed or recorded in another connection. A wrong
    length is detected before the decoder waits for so many bytes.

    Attributes:
        key: Only this direction of this connection uses it.
        count: The number of tags made so far.
    """

    key: bytes
    count: int = 0

    def next_tag(self, part: bytes) -> bytes:
        """Return the tag of the next part."""
        tag = hmac.digest(self.key, _PLACE.pack(self.count) + part, "sha256")
        self.count += 1
        return tag


def encode(frame: WireFrame[Any], authenticator: Authenticator | None = None) -> bytes:
    """Return the bytes of `frame`.

    A value that JSON cannot represent is replaced by its `repr`, because an imprecise record is
    worth more to the controller than none.

    Raises:
        MultihostError: The message is larger than 256 MiB, or the payload than 4 GiB.
    """
    message = frame.message if isinstance(frame.message, Mapping) else to_json(frame.message)
    content = {**message, "number": frame.number} if frame.number else message
    try:
        text = to_json_text(content, default=_safe_repr)
    except (TypeError, ValueError, RecursionError):  # a key that is not a string, a cycle
        text = to_json_text(_plain(content, room=[_MAX_PARTS], depth=0))
    header = text.encode("utf-8", "backslashreplace")
    if len(header) > MAX_HEADER or len(frame.payload) > MAX_PART:
        happened = "a value that ranks exchange is too large: more than 256 MiB of text, or 4 GiB"
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
    """Return `value`, truncated, with replacements for everything that JSON cannot represent."""
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
        messages: The accepted messages: a union of classes, or kinds of events.
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
        self._frame: WireFrame[M] | None = None

    def feed(self, data: bytes) -> list[WireFrame[M]]:
        """Take `data` and return the frames that are now complete.

        Raises:
            GarbledError: The bytes are not valid frames. Nothing after them can be trusted.
        """
        return list(self.decode(data))

    def decode(self, data: bytes) -> Iterator[WireFrame[M]]:
        """Take `data` and yield the frames that are now complete.

        Raises:
            GarbledError: As in `feed`; the frames before the invalid bytes have been yielded.
        """
        self._pending += data
        while len(self._pending) >= (end := self._sizes[0] + self._tag_size):
            part = self._authentic(bytes(self._pending[:end]))
            del self._pending[:end], self._sizes[0]
            if self._frame is not None:
                frame, self._frame = self._frame, None
                self._sizes.append(_LENGTHS.size)
                yield replace(frame, payload=part) if part else frame
            elif not self._sizes:
                self._sizes += _LENGTHS.unpack(part)
                if self._sizes[0] > MAX_HEADER:
                    raise GarbledError(_OTHER_PROTOCOL)
            else:
                # Read before waiting for a payload: a corrupt length could announce gigabytes that
                # never come.
                self._frame = self._read(part)

    def _authentic(self, data: bytes) -> bytes:
        """Return a part of a frame without its tag; check the tag first."""
        if self._authenticator is None:
            return data
        part, tag = data[:-_TAG], data[-_TAG:]
        if not hmac.compare_digest(self._authenticator.next_tag(part), tag):
            raise GarbledError(
                "a message failed its check: something changed, repeated or dropped a message"
            )
        return part

    def _read(self, data: bytes) -> WireFrame[M]:
        try:
            header = json.loads(data)
            if isinstance(self._messages, frozenset):
                if header.get("kind") not in self._messages:
                    raise GarbledError(_OTHER_PROTOCOL)
                return WireFrame(header)
            number = from_json(int, header.pop("number", 0))
            return WireFrame(from_json(self._messages, header), number=number)
        except (ValueError, RecursionError, TypeError, AttributeError) as error:
            raise GarbledError(_OTHER_PROTOCOL) from error
