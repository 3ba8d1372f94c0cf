"""Packets: messages with file descriptors attached, between processes of one machine.

Packets use a SOCK_SEQPACKET pair (unix(7)). It keeps the boundaries of messages, so descriptors
(SCM_RIGHTS) belong to the message with which they arrive. On a stream they would be attached to a
byte, and a reader that receives several messages at once could not assign them. The pair is
connected, so each side detects the end of the other.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic

from pytest_multihost.core.launch.frames import Decoder, M, WireFrame, encode
from pytest_multihost.core.model.errors import GarbledError
from pytest_multihost.core.model.json_values import JsonObject

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

    The frame's number is the number of descriptors. Descriptors beyond the kernel's maximum follow
    in groups, each attached to one byte.
    """
    data = encode(WireFrame(message, number=len(descriptors)))
    socket.send_fds(connection, [data], list(descriptors[:_MAX_DESCRIPTORS]))
    for first in range(_MAX_DESCRIPTORS, len(descriptors), _MAX_DESCRIPTORS):
        socket.send_fds(connection, [b"+"], list(descriptors[first : first + _MAX_DESCRIPTORS]))


def receive_packet(connection: socket.socket, messages: object = JsonObject) -> Packet[Any] | None:
    """Wait for the next packet and return it; None if the other side is gone.

    Args:
        messages: The accepted messages, a union of classes; any JSON object by default.

    Raises:
        GarbledError: The packet holds no such message.
    """
    try:
        with contextlib.ExitStack() as unused:
            data, descriptors, flags, _ = socket.recv_fds(connection, _MAX_PACKET, _MAX_DESCRIPTORS)
            unused.callback(_close, descriptors)
            frames: list[WireFrame[Any]] = Decoder[Any](messages).feed(data)
            if data and len(frames) != 1:
                raise GarbledError("a packet holds one message")
            while data and len(descriptors) < frames[0].number:
                if flags & socket.MSG_CTRUNC:  # the kernel has dropped some
                    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
                data, more, flags, _ = socket.recv_fds(connection, 1, _MAX_DESCRIPTORS)
                descriptors += more
            if data:
                unused.pop_all()
    except ConnectionResetError:
        return None
    return Packet(frames[0].message, tuple(descriptors)) if data else None


def _close(descriptors: Sequence[int]) -> None:
    for each in descriptors:
        os.close(each)
