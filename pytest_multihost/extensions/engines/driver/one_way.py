"""One direction of a connection: reads from one descriptor, and writes to another."""

from __future__ import annotations

import os
import select
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

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


def await_ready(ways: Iterable[OneWay], timeout_s: float | None) -> set[int]:
    """Return the descriptors at which one of several directions can read or write.

    A poll has one entry for each descriptor, so directions of one socket need two descriptors.

    Args:
        timeout_s: Maximum wait; None: no limit.
    """
    poll = select.poll()
    for each in ways:
        each.register(poll)
    found = poll.poll(None if timeout_s is None else max(0.0, timeout_s) * 1000)
    return {descriptor for descriptor, _ in found}
