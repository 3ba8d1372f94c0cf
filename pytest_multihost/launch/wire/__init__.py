"""Frames: how messages travel between the processes of the harness."""

from pytest_multihost.launch.wire.framing import Decoder, Frame, GarbledError
from pytest_multihost.launch.wire.stream import (
    Channel,
    FrameStream,
    Packet,
    receive_packet,
    send_packet,
)

__all__ = [
    "Channel",
    "Decoder",
    "Frame",
    "FrameStream",
    "GarbledError",
    "Packet",
    "receive_packet",
    "send_packet",
]
