"""Frames: how messages travel between the processes of the harness.

`framing` says how a message becomes bytes, `stream` has the connections that carry them.
"""

from pytest_multihost.launch.wire.framing import Frame
from pytest_multihost.launch.wire.stream import (
    Channel,
    FrameStream,
    Packet,
    receive_packet,
    send_packet,
    signals_deferred,
)

__all__ = [
    "Channel",
    "Frame",
    "FrameStream",
    "Packet",
    "receive_packet",
    "send_packet",
    "signals_deferred",
]
