"""Carries bytes between a socket and two pipes, in a process of its own.

A peer is connected to the driver by its standard input and output, which may be two pipes. The code
that waits for connections needs one descriptor, and the peer must have only one thread, so a child
process makes one socket of the two.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
from dataclasses import dataclass, field

_CHUNK = 1 << 16
_ROOM = 1 << 20
"""How many unwritten bytes stop the reading."""

STUCK_S = 10.0
"""How long the last bytes of a connection that has ended may stay unread: nobody may be there."""


@dataclass(slots=True)
class _Way:
    """One direction.

    Attributes:
        source: Descriptor to read from; negative once it has ended.
        target: Descriptor to write to; negative once nobody reads there.
    """

    source: int
    target: int
    held: bytearray = field(default_factory=bytearray)

    @property
    def is_over(self) -> bool:
        """Whether nothing more can arrive at the target."""
        return self.target < 0 or (self.source < 0 and not self.held)

    def register(self, poll: select.poll) -> None:
        """Register what this direction waits for."""
        if self.source >= 0 and self.target >= 0 and len(self.held) < _ROOM:
            poll.register(self.source, select.POLLIN)
        if self.held and self.target >= 0:
            poll.register(self.target, select.POLLOUT)

    def move(self, ready: set[int]) -> None:
        """Read and write as much as is possible without blocking."""
        if self.source in ready:
            try:
                data = os.read(self.source, _CHUNK)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            self.held += data
            if not data:
                self.source = -1
        if self.held and self.target >= 0:
            try:
                del self.held[: os.write(self.target, self.held)]
            except BlockingIOError:
                return
            except OSError:
                self.target = -1


def pump(connection: socket.socket, incoming: int, outgoing: int) -> None:
    """Carry bytes from a pipe to a connection, and from the connection to another pipe.

    Returns when the connection has ended and all its bytes are written, or nobody reads them.
    """
    for each in (connection.fileno(), incoming, outgoing):
        os.set_blocking(each, False)
    # Two descriptors of one socket, because a poll has one entry for each descriptor.
    write_end = os.dup(connection.fileno())
    inward, outward = _Way(incoming, write_end), _Way(connection.fileno(), outgoing)
    is_announced = False
    while not outward.is_over:
        poll = select.poll()
        for way in (inward, outward):
            way.register(poll)
        limit_ms = STUCK_S * 1000 if outward.source < 0 else None
        ready = {descriptor for descriptor, _ in poll.poll(limit_ms)}
        if not ready:
            return
        for way in (inward, outward):
            way.move(ready)
        if inward.is_over and not is_announced:
            is_announced = True
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_WR)


def socket_of_streams() -> socket.socket:
    """Return one socket in place of this process's standard input and output.

    From then on standard input is empty, and standard output goes to standard error. A child
    process carries the bytes until this process has ended.
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
        pump(theirs, incoming, outgoing)
    finally:
        os._exit(0)
