"""Messages with file descriptors beside them, between processes of one machine.

The connection is a SOCK_SEQPACKET pair (unix(7)). It keeps the boundaries of messages, so the
descriptors that come with one (SCM_RIGHTS) belong to that one: on a stream they would be attached
to a byte, and a reader that takes several messages at once would not know to which. And it is
connected, so the end of the other side is seen.
"""

from __future__ import annotations

import array
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pytest_multihost.launch.wire.framing import Decoder, Frame, GarbledError, encode
from pytest_multihost.model.json_values import JsonObject

M = TypeVar("M")

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
