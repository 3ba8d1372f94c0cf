"""How two processes of an attached run authenticate each other, and every frame after that.

Both know a secret; neither sends it. The controller sends a challenge: a number that is used once.
The peer answers with a number of its own, its rank, the number of processes and a proof: an HMAC of
all of these, keyed with the secret. Only a process that knows the secret can compute the proof, and
a recorded proof does not fit another challenge.

From the same values both derive two keys, one for each direction, and every later frame carries
tags made with its direction's key; see `launch.wire.framing.Authenticator`. So the first frame from
the controller proves that it knows the secret as well, no frame can be reflected as an answer, and
frames of other connections are rejected. Nothing is encrypted: an eavesdropper can read it all.

Challenge and proof have a fixed size and layout, so nothing that an unauthenticated process sends
is ever parsed. HMAC-SHA256 (RFC 2104) throughout, compared in constant time.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import secrets
import socket
import struct
import weakref
from dataclasses import dataclass
from typing import Any, Literal

from pytest_multihost.launch.wire import FrameStream
from pytest_multihost.model.messages import FromPeer, ToPeer

Role = Literal["controller", "peer"]

VERSION = 3
MAGIC = f"pytest-multihost-hangs/{VERSION}\n".encode()
_NONCE = 32
CHALLENGE = struct.Struct(f"!{len(MAGIC)}s{_NONCE}s")
"""`MAGIC`, and a number that is used once."""

PROOF = struct.Struct(f"!{len(MAGIC)}s{_NONCE}sII32s")
"""`MAGIC`, another number that is used once, rank, number of processes, and the proof."""

_VALUES = struct.Struct(f"!{_NONCE}s{_NONCE}sII")

_SILENCE_S = 20
"""Seconds without any answer after which the connection to a machine counts as lost."""


class RefusedError(Exception):
    """The other end is not a process of this run, or a third party altered the messages."""


def new_nonce() -> bytes:
    """Return a number that is used once."""
    return secrets.token_bytes(_NONCE)


class Greeting:
    """Receives the one message that precedes all frames, and not a byte beyond it.

    Args:
        layout: The message: `MAGIC` and what follows it.
    """

    def __init__(self, layout: struct.Struct) -> None:
        self._layout = layout
        self._received = b""

    def receive(self, connection: socket.socket) -> tuple[Any, ...] | None:
        """Read once; return the message's fields, None while it is incomplete.

        Raises:
            RefusedError: It is no such message.
            OSError: The connection is broken, or nothing has arrived.
        """
        data = connection.recv(self._layout.size - len(self._received))
        self._received += data
        if self._received[: len(MAGIC)] != MAGIC[: len(self._received)]:
            raise RefusedError(f"it does not speak our protocol, version {VERSION}")
        if not data:
            raise ConnectionError("it closed the connection")
        if len(self._received) < self._layout.size:
            return None
        return self._layout.unpack(self._received)[1:]


@dataclass(frozen=True, slots=True)
class Handshake:
    """The values that both sides of one connection know.

    Attributes:
        challenge: The controller's number.
        answer: The peer's number.
        rank: The rank that the peer claims.
        size: Number of processes, according to the peer's launcher.
    """

    challenge: bytes
    answer: bytes
    rank: int
    size: int

    def proof(self, secret: bytes) -> bytes:
        """Return the peer's proof that it knows the secret."""
        return self._derive(secret, b"proof")

    def stream(self, connection: socket.socket, secret: bytes, *, role: Role) -> FrameStream[Any]:
        """Return a stream whose frames carry tags for this one connection."""
        _enable_keepalive(connection)
        close_in_children(connection)
        down, up = (self._derive(secret, use) for use in (b"to the peer", b"to the controller"))
        if role == "controller":
            return FrameStream(connection, FromPeer, keys=(up, down))
        return FrameStream(connection, ToPeer, keys=(down, up))

    def proves(self, secret: bytes, proof: bytes) -> bool:
        """Return whether `proof` could only be made by a process that knows the secret."""
        return hmac.compare_digest(self.proof(secret), proof)

    def _derive(self, secret: bytes, use: bytes) -> bytes:
        values = _VALUES.pack(self.challenge, self.answer, self.rank, self.size)
        return hmac.digest(secret, MAGIC + values + use, "sha256")


def _enable_keepalive(connection: socket.socket) -> None:
    """Have the kernel end a connection to a machine that has disappeared (tcp(7)).

    TCP_KEEPIDLE and the like cover an idle connection, TCP_USER_TIMEOUT one whose data is not
    acknowledged. With the defaults that takes hours and a quarter of an hour, respectively.
    """
    options = (
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
        (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _SILENCE_S // 4),
        (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _SILENCE_S // 4),
        (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
        (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _SILENCE_S * 1000),
        (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    )
    for level, name, value in options:
        with contextlib.suppress(OSError):  # a pair of unix sockets, in a test
            connection.setsockopt(level, name, value)


_OPEN: weakref.WeakSet[socket.socket] = weakref.WeakSet()


def close_in_children(connection: socket.socket) -> None:
    """Have a forked child close its copy: while one is open, the other side sees no EOF."""
    _OPEN.add(connection)


def _close_all() -> None:
    for connection in list(_OPEN):
        connection.close()


os.register_at_fork(after_in_child=_close_all)  # once: what is registered is never released
