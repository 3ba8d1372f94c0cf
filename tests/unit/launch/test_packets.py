"""Packets with descriptors."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from pytest_multihost.core.launch.packets import receive_packet, send_packet
from pytest_multihost.testing import GarbledError

pytestmark = pytest.mark.unit


def test_descriptors_of_a_garbled_packet_are_closed() -> None:
    """Nobody could close them later."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs, Path(os.devnull).open() as file:
        socket.send_fds(theirs, [b"\xff" * 30], [file.fileno()] * 5)
        before = len(os.listdir("/proc/self/fd"))
        with pytest.raises(GarbledError):
            receive_packet(ours)
        assert len(os.listdir("/proc/self/fd")) == before


def test_descriptors_of_a_packet_stay_open() -> None:
    """More than the kernel takes in one message; the test above can fail."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs, Path(os.devnull).open() as file:
        send_packet(theirs, {"kind": "any"}, [file.fileno()] * 300)
        packet = receive_packet(ours)
        assert packet is not None
        assert len(packet.descriptors) == 300
        for each in packet.descriptors:
            os.close(each)
