"""How two processes of an attached run make sure of each other, and of every frame after that.

Both know a secret; neither sends it. Each sends a number that is used once, and what follows is
sealed with keys that only who knows the secret can make of the two numbers: one key for each
direction, so that nothing can be sent back as if it were an answer. A sealed frame carries its
place in the sequence, so one that is recorded and sent again is refused, in this connection and in
any other. Nothing is encrypted: who can listen can read.

HMAC-SHA256 (RFC 2104) throughout, compared in constant time.
"""

from __future__ import annotations

import hmac
import json
import secrets
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Role = Literal["controller", "agent"]

VERSION = 1
MAX_GREETING = 1024
"""Bytes of the largest message that is read from somebody unknown."""

_LENGTH = struct.Struct("!I")
_SEAL = struct.Struct("!QQ32s")
"""Length of what is sealed, its place in the sequence, and the proof of both."""


class RefusedError(Exception):
    """Whoever is at the other end is not one of us, or somebody stands between."""


def new_nonce() -> str:
    """Return a number that is used once, as text."""
    return secrets.token_hex(32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Handshake:
    """What both sides of one connection have in common.

    Attributes:
        challenge: The controller's number.
        answer: The agent's.
        rank: Who the agent says it is.
        size: How many processes it has been told there are.
    """

    challenge: str
    answer: str
    rank: int
    size: int

    def proof(self, secret: bytes) -> str:
        """Return what the agent sends to show that it knows the secret."""
        return self._derive(secret, "proof").hex()

    def key(self, secret: bytes, sender: Role) -> bytes:
        """Return what frames are sealed with that `sender` sends in this connection."""
        return self._derive(secret, f"key of the {sender}")

    def _derive(self, secret: bytes, use: str) -> bytes:
        text = json.dumps([VERSION, use, self.challenge, self.answer, self.rank, self.size])
        return hmac.digest(secret, text.encode(), "sha256")


def proof_is_valid(handshake: Handshake, secret: bytes, proof: object) -> bool:
    """Tell whether `proof` could only be made by who knows the secret."""
    expected = handshake.proof(secret)
    return isinstance(proof, str) and hmac.compare_digest(expected.encode(), proof.encode())


def greeting(content: Mapping[str, Any]) -> bytes:
    """Return the bytes of a message that comes before the seals."""
    data = json.dumps({"version": VERSION, **content}).encode()
    return _LENGTH.pack(len(data)) + data


def read_greeting(data: bytes) -> tuple[Mapping[str, Any], bytes] | None:
    """Return the message that `data` begins with and what follows it; None where more must come.

    Raises:
        RefusedError: It is no message of ours, or of another version.
    """
    if len(data) < _LENGTH.size:
        return None
    (size,) = _LENGTH.unpack_from(data)
    if size > MAX_GREETING:
        raise RefusedError("it does not speak our language")
    if len(data) < _LENGTH.size + size:
        return None
    try:
        content = json.loads(data[_LENGTH.size : _LENGTH.size + size])
    except ValueError:
        content = None
    if not isinstance(content, dict):
        raise RefusedError("it does not speak our language")
    if content.get("version") != VERSION:
        raise RefusedError(f"it speaks version {content.get('version')!r}, we speak {VERSION}")
    return content, data[_LENGTH.size + size :]


@dataclass(slots=True)
class Sealer:
    """Seals what one side sends."""

    key: bytes
    _count: int = 0

    def seal(self, data: bytes) -> bytes:
        """Return `data` with its place in the sequence and the proof of both."""
        head = struct.pack("!QQ", len(data), self._count)
        proof = hmac.digest(self.key, head + data, "sha256")
        self._count += 1
        return head + proof + data


@dataclass(slots=True)
class Opener:
    """Opens what the other side has sealed, however the stream was cut."""

    key: bytes
    _count: int = 0
    _pending: bytearray = field(default_factory=bytearray)

    def feed(self, data: bytes) -> list[bytes]:
        """Take in `data` and return what was sealed and is complete by now.

        Raises:
            RefusedError: Somebody else has sealed it, or it was sent before. Nothing that comes
                after that may be believed.
        """
        self._pending += data
        opened = []
        while (content := self._next()) is not None:
            opened.append(content)
        return opened

    def _next(self) -> bytes | None:
        if len(self._pending) < _SEAL.size:
            return None
        size, count, proof = _SEAL.unpack_from(self._pending)
        if count != self._count:
            raise RefusedError(f"frame {count} came where frame {self._count} was due")
        if len(self._pending) < _SEAL.size + size:
            return None
        content = bytes(self._pending[_SEAL.size : _SEAL.size + size])
        head = struct.pack("!QQ", size, count)
        if not hmac.compare_digest(hmac.digest(self.key, head + content, "sha256"), proof):
            raise RefusedError(f"the seal of frame {count} is not ours")
        self._count += 1
        del self._pending[: _SEAL.size + size]
        return content
