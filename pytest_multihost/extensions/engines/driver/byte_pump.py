"""Carries bytes between a peer and its standard input and output, in a process of its own.

A peer is connected to the driver by its standard input and output, which may be two pipes. The code
that waits for connections needs one descriptor, and the peer must have only one thread, so a child
process makes one socket of the two. It also notices that the driver's machine is out of reach.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time

from pytest_multihost.extensions.engines.driver.heartbeats import ChunkDecoder
from pytest_multihost.extensions.engines.driver.one_way import OneWay, await_ready

STUCK_S = 10.0
"""How long the last bytes of an ended connection may stay unread: no reader may be there."""


def pump(connection: socket.socket, incoming: int, outgoing: int, silent_s: float) -> None:
    """Carry chunks from a pipe to a connection, and bytes from the connection to another pipe.

    Returns when the connection has ended and all its bytes are written, or no process reads them.

    Args:
        silent_s: After so many seconds without a byte, the incoming pipe counts as ended.
    """
    for each in (connection.fileno(), incoming, outgoing):
        os.set_blocking(each, False)
    inward = OneWay(incoming, os.dup(connection.fileno()), ChunkDecoder().feed)
    outward = OneWay(connection.fileno(), outgoing)
    is_announced, heard_s = False, time.monotonic()
    while not outward.is_over:
        left_s = heard_s + silent_s - time.monotonic()
        limit_s = STUCK_S if outward.source < 0 else left_s if inward.reads else None
        ready = await_ready((inward, outward), limit_s)
        if not ready and outward.source < 0:
            return
        if incoming in ready or not inward.reads:
            heard_s = time.monotonic()
        elif time.monotonic() > heard_s + silent_s:
            os.write(2, b"pytest-multihost-hangs: pytest's machine has been silent for too long\n")
            inward.source = -1
        for way in (inward, outward):
            way.move(ready)
        if inward.is_over and not is_announced:
            is_announced = True
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_WR)


def socket_of_streams(silent_s: float) -> socket.socket:
    """Return one socket in place of this process's standard input and output.

    From then on standard input is empty, and standard output goes to standard error. A child
    process carries the bytes until this process has ended.

    Args:
        silent_s: After so many seconds without a heartbeat, standard input counts as ended.
    """
    incoming, outgoing = os.dup(0), os.dup(1)
    with open(os.devnull, "rb") as nothing:  # noqa: PTH123 - for its descriptor
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    ours, theirs = socket.socketpair()
    if os.fork():
        theirs.close()
        os.close(incoming)
        os.close(outgoing)
        return ours
    ours.close()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # this process's parent decides
        signal.signal(number, signal.SIG_IGN)
    try:
        pump(theirs, incoming, outgoing, silent_s)
    finally:
        os._exit(0)
