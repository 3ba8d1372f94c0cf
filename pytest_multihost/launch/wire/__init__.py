"""Frames: how messages travel between the processes of the harness."""

from pytest_multihost.launch.wire.channel import Channel
from pytest_multihost.launch.wire.framing import Decoder, Frame, GarbledError
from pytest_multihost.launch.wire.packets import Packet, receive_packet, send_packet
from pytest_multihost.launch.wire.stream import FrameStream

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
