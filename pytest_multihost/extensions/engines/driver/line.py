"""Carries bytes between processes here and others that are reached through descriptors.

The process here is the driver, and the descriptors lead to a node; or it is a peer, and the
descriptors are its standard input and output, which lead to the driver.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import socket
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from pytest_multihost.extensions.engines.driver.heartbeats import HEARTBEAT

STUCK_S = 10.0
"""How long the last bytes of a process that has ended may stay unread: there may be no reader."""

_CHUNK = 1 << 16
_ROOM = 1 << 20
"""How many unwritten bytes stop the reading."""


@dataclass(slots=True)
class OneWay:
    """One direction.

    Attributes:
        source: Descriptor to read from; negative once it has ended.
        target: Descriptor to write to; negative once no process reads there.
        convert: Returns the bytes to write for bytes that were read.
    """

    source: int
    target: int
    convert: Callable[[bytes], bytes] = bytes
    held: bytearray = field(default_factory=bytearray)

    @property
    def is_over(self) -> bool:
        """Whether nothing more can arrive at the target."""
        return self.target < 0 or (self.source < 0 and not self.held)

    @property
    def reads(self) -> bool:
        """Whether it waits for bytes."""
        return self.source >= 0 and self.target >= 0 and len(self.held) < _ROOM

    def register(self, poll: select.poll) -> None:
        """Register the descriptors that this direction waits for."""
        if self.reads:
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
            self.held += self.convert(data)
            if not data:
                self.source = -1
        if self.held and self.target >= 0:
            try:
                del self.held[: os.write(self.target, self.held)]
            except BlockingIOError:
                return
            except OSError:
                self.target = -1


@dataclass(slots=True)
class Duplex:
    """Both directions of the connection of a process here.

    Attributes:
        near: The connection to that process.
        out: From that process.
        back: To that process.
        others: All other descriptors.
        silent_s: After so many seconds without a byte, `back` counts as ended.
    """

    near: socket.socket
    out: OneWay
    back: OneWay
    others: tuple[int, ...]
    silent_s: float
    _sent_s: float = field(default_factory=time.monotonic)
    _heard_s: float = field(default_factory=time.monotonic)

    @classmethod
    def between(
        cls,
        near: socket.socket,
        incoming: int,
        outgoing: int,
        *,
        encode: Callable[[bytes], bytes] = bytes,
        decode: Callable[[bytes], bytes] = bytes,
        silent_s: float = math.inf,
    ) -> Duplex:
        """Return the line between a process here and two descriptors, which it closes at its end.

        Args:
            encode: Converts bytes for `outgoing`.
            decode: Converts bytes of `incoming`.
        """
        copy = os.dup(near.fileno())  # see `await_ready`
        for each in (copy, incoming, outgoing):
            os.set_blocking(each, False)
        out, back = OneWay(near.fileno(), outgoing, encode), OneWay(incoming, copy, decode)
        return cls(near, out, back, (copy, incoming, outgoing), silent_s)

    @property
    def until_s(self) -> float:
        """When to call `move` although no descriptor is ready."""
        silent_s = self._heard_s + self.silent_s if self.back.reads else math.inf
        return min(silent_s, self._stuck_s)

    @property
    def _stuck_s(self) -> float:
        return self._sent_s + STUCK_S if self.out.source < 0 else math.inf

    @property
    def is_over(self) -> bool:
        """Whether nothing more of the process here can arrive, or its last bytes are not read."""
        return self.out.is_over or time.monotonic() >= self._stuck_s

    def move(self, ready: set[int]) -> None:
        """Read and write as much as is possible without blocking."""
        now_s = time.monotonic()
        if self.out.source >= 0 or self.out.target in ready:
            self._sent_s = now_s
        if self.back.source in ready or not self.back.reads:
            self._heard_s = now_s
        elif now_s > self._heard_s + self.silent_s:
            os.write(2, b"pytest-multihost-hangs: pytest's machine has been silent for too long\n")
            self.back.source = -1
        self.out.move(ready)
        self.back.move(ready)
        if self.back.is_over:
            with contextlib.suppress(OSError):
                self.near.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Close all descriptors."""
        self.near.close()
        for each in self.others:
            os.close(each)


def carry(lines: list[Duplex], beat_s: float = math.inf) -> None:
    """Carry bytes until all lines are over.

    Args:
        beat_s: Time between two heartbeats, which are sent if no other bytes are on their way.
    """
    next_s = time.monotonic() + beat_s
    while lines:
        until_s = min(next_s, *(each.until_s for each in lines))
        ready = await_ready((way for each in lines for way in (each.out, each.back)), until_s)
        for each in lines:
            each.move(ready)
        if time.monotonic() >= next_s:
            next_s = time.monotonic() + beat_s
            for each in lines:
                each.out.held += b"" if each.out.held else HEARTBEAT
        for each in [each for each in lines if each.is_over]:
            each.close()
            lines.remove(each)


def await_ready(ways: Iterable[OneWay], until_s: float) -> set[int]:
    """Return the descriptors at which one of several directions can read or write.

    A poll has one entry for each descriptor, so directions of one socket need two descriptors.

    Args:
        until_s: The end of the wait, on the monotonic clock; infinite: none.
    """
    poll = select.poll()
    for each in ways:
        each.register(poll)
    left_s = until_s - time.monotonic()
    found = poll.poll(None if math.isinf(left_s) else max(0.0, left_s) * 1000)
    return {descriptor for descriptor, _ in found}
