"""How two processes of an attached run authenticate each other, and every frame after that.

Both know a secret; neither sends it. The controller sends a number that is used once. The other
side answers with a number of its own and a proof: an HMAC, keyed with the secret, of both numbers,
its rank and the number of processes. Only a process that knows the secret can compute the proof,
and a recorded proof does not fit another challenge.

From the same values both derive two keys, one for each direction, and every later frame carries a
tag made with its direction's key; see `launch.wire.framing.Authenticator`. So the first frame from
the controller proves that it knows the secret as well, no frame can be reflected as an answer, and
frames of other connections are rejected. Nothing is encrypted: an eavesdropper can read it all.

HMAC-SHA256 (RFC 2104) throughout, compared in constant time.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import secrets
import socket
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import psutil

from pytest_multihost.launch.wire import Decoder, Frame, FrameStream
from pytest_multihost.launch.wire.framing import Authenticator, encode
from pytest_multihost.model.errors import GarbledError
from pytest_multihost.model.messages import Challenge, FromPeer, Proof, ToPeer

Role = Literal["controller", "agent"]

VERSION = 2
MAX_GREETING = 1024
"""Bytes of the largest frame that is read from an unauthenticated process."""


class RefusedError(Exception):
    """The other end is not a process of this run, or a third party altered the messages."""


def new_nonce() -> str:
    """Return a nonce, as text."""
    return secrets.token_hex(32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Handshake:
    """The values that both sides of one connection know.

    Attributes:
        challenge: The controller's number.
        answer: The agent's number.
        rank: The rank that the agent claims.
        size: Number of processes, according to the agent's launcher.
    """

    challenge: str
    answer: str
    rank: int
    size: int

    def proof(self, secret: bytes) -> str:
        """Return the agent's proof that it knows the secret."""
        return self._derive(secret, "proof").hex()

    def key(self, secret: bytes, sender: Role) -> bytes:
        """Return the key for the frames that `sender` sends in this connection."""
        return self._derive(secret, f"key of the {sender}")

    def _derive(self, secret: bytes, use: str) -> bytes:
        # As JSON, so that no two different lists of values make the same text.
        text = json.dumps([VERSION, use, self.challenge, self.answer, self.rank, self.size])
        return hmac.digest(secret, text.encode(), "sha256")

    def proves(self, secret: bytes, proof: str) -> bool:
        """Return whether `proof` could only be made by a process that knows the secret."""
        given = proof.encode("utf-8", "replace")  # may hold lone surrogates
        return hmac.compare_digest(self.proof(secret).encode(), given)


def greeting(message: Challenge | Proof) -> bytes:
    """Return the bytes of a message of the handshake."""
    return encode(Frame(message))


class GreetingDecoder:
    """Decodes the one message that precedes all tagged frames, from pieces of any size.

    Args:
        wanted: Its class.
    """

    def __init__(self, wanted: type[Challenge | Proof]) -> None:
        self._decoder: Decoder[Any] = Decoder(wanted, max_size=MAX_GREETING)

    def feed(self, data: bytes) -> Any | None:  # noqa: ANN401 - of the class that is wanted
        """Return the message that `data` completes; None while it is incomplete.

        Raises:
            RefusedError: It is no such message, has another version, or more bytes follow it.
        """
        try:
            frames = self._decoder.feed(data)
        except GarbledError as error:
            raise RefusedError(str(error)) from error
        if not frames:
            return None
        message = frames[0].message
        if message.version != VERSION:
            raise RefusedError(f"it speaks version {message.version}, we speak {VERSION}")
        if len(frames) > 1 or not self._decoder.is_empty:
            raise RefusedError("it said more than its greeting")
        return message


def authenticated_stream(
    connection: socket.socket, handshake: Handshake, secret: bytes, *, sender: Role
) -> FrameStream[Any]:
    """Return a stream whose frames carry tags for this one connection."""
    enable_keepalive(connection)
    close_in_children(connection)
    other: Role = "agent" if sender == "controller" else "controller"
    messages: object = FromPeer if sender == "controller" else ToPeer
    return FrameStream(
        connection,
        Decoder(messages, authenticator=Authenticator(handshake.key(secret, other))),
        Authenticator(handshake.key(secret, sender)),
    )


SILENCE_S = 20
"""Seconds without any answer after which the connection to a machine counts as lost."""


def kernel_identity() -> tuple[str, str, str]:
    """Return the identities of this process's kernel, time namespace and pid namespace.

    Processes with the same kernel and clock (time_namespaces(7)) have the same monotonic time;
    those that share the table of processes too see each other in /proc.
    """
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    time, pid = (os.readlink(f"/proc/self/ns/{name}") for name in ("time", "pid"))
    return boot, time, pid


def interface_of_address(address: str) -> str:
    """Return the network interface that has an address, "lo" where none is found."""
    for name, found in psutil.net_if_addrs().items():
        if any(each.address == address for each in found):
            return name
    return "lo"


def enable_keepalive(connection: socket.socket) -> None:
    """Have the kernel end a connection to a machine that has disappeared (tcp(7)).

    TCP_KEEPIDLE and the like cover an idle connection, TCP_USER_TIMEOUT one whose data is not
    acknowledged. With the defaults that takes hours and a quarter of an hour, respectively.
    """
    options = (
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
        (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, SILENCE_S // 4),
        (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, SILENCE_S // 4),
        (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
        (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, SILENCE_S * 1000),
        (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    )
    for level, name, value in options:
        with contextlib.suppress(OSError):  # a pair of unix sockets, in a test
            connection.setsockopt(level, name, value)


def close_in_children(connection: socket.socket) -> None:
    """Have a forked child close its copy: while one is open, the other side sees no EOF."""
    found = weakref.ref(connection)

    def close() -> None:
        mine = found()
        if mine is not None:
            mine.close()

    os.register_at_fork(after_in_child=close)
