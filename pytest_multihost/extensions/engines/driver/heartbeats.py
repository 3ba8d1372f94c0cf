"""Chunks and heartbeats: the form of the bytes between the driver's machine and a peer.

A cable that is cut does not end the input of a peer behind it. So a process on the driver's machine
(`carrier`) sends a heartbeat every few seconds, whatever the driver is doing. A peer without one
for long ends, with its ranks.

A chunk is its length, an unsigned 32-bit big-endian number, and so many bytes. An empty chunk is a
heartbeat.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

_LENGTH = struct.Struct("!I")

HEARTBEAT = _LENGTH.pack(0)

BEAT_S = 15.0
"""Time between two heartbeats."""

SILENT_S = 120.0
"""How long a peer waits for a heartbeat."""


def encode_chunk(data: bytes) -> bytes:
    """Return a chunk with these bytes; none if there are none."""
    return _LENGTH.pack(len(data)) + data if data else b""


@dataclass(slots=True)
class ChunkDecoder:
    """Takes chunks in pieces of any size, and returns their content."""

    _header: bytearray = field(default_factory=bytearray)
    _left: int = 0

    def feed(self, data: bytes) -> bytes:
        """Take bytes of chunks, and return their content."""
        carried, rest = bytearray(), memoryview(data)
        while rest:
            if self._left:
                part = rest[: self._left]
                carried += part
                self._left -= len(part)
            else:
                part = rest[: _LENGTH.size - len(self._header)]
                self._header += part
                if len(self._header) == _LENGTH.size:
                    (self._left,) = _LENGTH.unpack(self._header)
                    self._header.clear()
            rest = rest[len(part) :]
        return bytes(carried)
