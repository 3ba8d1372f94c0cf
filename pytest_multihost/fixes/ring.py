"""Post as many receives as a wire's region has chunks (a ring over several wires).

A transport cuts a message over several wires and posts a few receives on each wire before data
arrives. The number of receives must follow from the size of the wire's own region. If it follows
from where the region ends in the message, every wire but the first gets too many receives, and no
send fills them. `prefill_count` returns the right number. The rest of this module is a small real
transport that shows both ways of counting: rings of processes with several TCP connections between
neighbours.
"""

from __future__ import annotations

import math
import select
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Self

from pytest_multihost.fixes import Fix

FIX = Fix(
    name="ring",
    title="Count receives by the size of a wire's region, not by its end",
    upstream="https://github.com/ml-explore/mlx/pull/3654",
    symptom=(
        "a point-to-point receive over several wires never returns though the sender is done, for"
        " some sizes; or the message after it is wrong"
    ),
    affected=("mlx<0.32",),
    tried=(),  # jaccl needs RDMA and macOS; the guide lists the comparisons with its code
    upstream_since="mlx>=0.32",
    differs=(
        "Published as a hang of all messages smaller than the part that precedes a wire's. Which"
        " sizes hang is narrower there and wider above: over two wires 2 to 4096 bytes pass and"
        " 4097 to 8193 hang. In a stream nothing need hang at first: the receives that are too many"
        " take the frames of the next message, which is then wrong."
    ),
)

Prefill = Literal["region", "absolute"]
"""How receives are counted: `"region"`, the fix, or `"absolute"`, the bug as published."""

Address = tuple[str, int]
Region = tuple[int, int]
"""Where a wire's part of a message begins and ends, in bytes from the message's start."""


def prefill_count(start: int, end: int, chunk: int, pipeline: int) -> int:
    """Return how many receives to post on a wire before its first data comes.

    Args:
        start: Where the wire's region of the message begins, in bytes.
        end: Where it ends.
        chunk: Bytes of a frame.
        pipeline: How many receives may be posted at a time.
    """
    return min(pipeline, math.ceil((end - start) / chunk))


def split(size: int, wires: int) -> tuple[Region, ...]:
    """Return each wire's region of a message: equal parts, the last ones shorter or empty."""
    share = math.ceil(size / wires)
    return tuple((min(i * share, size), min((i + 1) * share, size)) for i in range(wires))


def orphans(
    regions: Sequence[Region], chunk: int, pipeline: int, prefill: Prefill
) -> tuple[int, ...]:
    """Return how many receives of each wire no send of the same message will fill.

    The receiver hangs if, and only if, there is any; see the module for its other reactions. Works
    for every way to cut a message, also for that of your own transport.

    Args:
        regions: Of all wires.
        chunk: Bytes of a frame.
        pipeline: How many receives may be posted at a time.
        prefill: How receives are counted.
    """
    return tuple(
        _posted_first((start, end), chunk, pipeline, prefill)
        - prefill_count(start, end, chunk, pipeline)
        for start, end in regions
    )


def _posted_first(region: Region, chunk: int, pipeline: int, prefill: Prefill) -> int:
    start, end = region
    counted_from = start if prefill == "region" else 0
    return prefill_count(counted_from, end, chunk, pipeline)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How messages are cut; the same on both sides of a link.

    Attributes:
        wires: Connections between two neighbours.
        chunk: Bytes of a frame. Every frame has as many; the last of a region is filled up.
        pipeline: How many receives are posted on a wire at a time.
        prefill: Where the count of the first receives begins: at the region's start, or at 0.
    """

    wires: int
    chunk: int = 4096
    pipeline: int = 2
    prefill: Prefill = "region"

    def __post_init__(self) -> None:
        """Refuse a layout over which nothing could be sent."""
        if min(self.wires, self.chunk, self.pipeline) < 1:
            raise ValueError(f"wires, chunk and pipeline must be positive: {self}")


@dataclass(slots=True)
class Link:
    """All wires between this process and one neighbour.

    Attributes:
        wires: The connections, in the same order on both sides.
        sent: How many frames were sent on each wire.
        taken: How many frames were taken from each wire.
    """

    wires: tuple[socket.socket, ...]
    layout: Layout
    sent: list[int] = field(init=False)
    taken: list[int] = field(init=False)

    def __post_init__(self) -> None:
        """Begin to count."""
        if len(self.wires) != self.layout.wires:
            raise ValueError(f"{len(self.wires)} wires for {self.layout}")
        self.sent, self.taken = [0] * len(self.wires), [0] * len(self.wires)

    def send(self, message: bytes) -> None:
        """Send a message to the neighbour, a frame on each wire in turn.

        Waits only while the system's buffers are full.
        """
        chunk, regions = self.layout.chunk, split(len(message), self.layout.wires)
        for offset in range(0, regions[0][1], chunk):  # no region is larger than the first
            for wire, (start, end) in enumerate(regions):
                if start + offset < end:
                    frame = message[start + offset : min(start + offset + chunk, end)]
                    self.wires[wire].sendall(frame.ljust(chunk, b"\0"))
                    self.sent[wire] += 1

    def receive(self, size: int, *, timeout_s: float | None = None) -> bytes:
        """Return the next message of the neighbour.

        Args:
            size: Its bytes; both sides must know.
            timeout_s: How long to wait, in seconds; for ever if not given, as upstream does.

        Raises:
            TimeoutError: It did not come in time; says on which wires receives are posted.
            ConnectionError: The neighbour has closed a wire.
        """
        deadline = math.inf if timeout_s is None else time.monotonic() + timeout_s
        receiving = self.receiving(size)
        while receiving.in_flight:
            left_s = deadline - time.monotonic()
            if not receiving.step(None if math.isinf(left_s) else max(left_s, 0)):
                raise TimeoutError(f"nothing came for {timeout_s} s; {receiving}")
        return bytes(receiving.message)

    def receiving(self, size: int) -> Receiving:
        """Post the first receives of a message, and return the object that takes its frames."""
        regions, layout = split(size, self.layout.wires), self.layout
        posted = [
            _posted_first(region, layout.chunk, layout.pipeline, layout.prefill)
            for region in regions
        ]
        return Receiving(self, bytearray(size), regions, [start for start, _ in regions], posted)

    def close(self) -> None:
        """Close all wires."""
        for wire in self.wires:
            wire.close()


@dataclass(slots=True)
class Receiving:
    """A message that is being received.

    Attributes:
        link: Where from.
        message: The bytes of it that have come.
        regions: Each wire's part.
        offsets: Where in the message the next frame of each wire belongs.
        posted: How many receives of each wire wait for a frame.
    """

    link: Link
    message: bytearray
    regions: tuple[Region, ...]
    offsets: list[int]
    posted: list[int]

    def __str__(self) -> str:
        """Say how many receives are posted."""
        return f"receives in flight on each wire: {self.posted}"

    @property
    def in_flight(self) -> int:
        """How many receives wait for a frame; the message is complete when there is none."""
        return sum(self.posted)

    def is_stranded(self, sent: Sequence[int]) -> bool:
        """Return whether it can never end if the neighbour sends nothing more.

        Then receives are in flight and the wires that they are posted on are drained. That is a
        fact, where a time without news is a guess.

        Args:
            sent: How many frames the neighbour has sent on each wire so far: its `Link.sent`.
        """
        frames = zip(self.posted, sent, self.link.taken, strict=True)
        return self.in_flight > 0 and all(sent == taken for posted, sent, taken in frames if posted)

    def step(self, timeout_s: float | None = None) -> bool:
        """Take a frame from every wire that has one for a posted receive.

        Args:
            timeout_s: How long to wait for the first frame, in seconds; for ever if not given.

        Returns:
            Whether any came.
        """
        waiting = {self.link.wires[i].fileno(): i for i, count in enumerate(self.posted) if count}
        poll = select.poll()
        for descriptor in waiting:
            poll.register(descriptor, select.POLLIN)
        ready = poll.poll(None if timeout_s is None else timeout_s * 1000)
        for descriptor, _ in ready:
            self._complete(waiting[descriptor])
        return bool(ready)

    def _complete(self, wire: int) -> None:
        """Take a frame, keep its part in the region, and post the next receive."""
        layout, offset, end = self.link.layout, self.offsets[wire], self.regions[wire][1]
        frame = bytearray()
        while len(frame) < layout.chunk:
            part = self.link.wires[wire].recv(layout.chunk - len(frame))
            if not part:
                raise ConnectionError(f"the neighbour has closed wire {wire}; {self}")
            frame += part
        self.link.taken[wire] += 1
        wanted = max(0, min(end - offset, layout.chunk))
        self.message[offset : offset + wanted] = frame[:wanted]
        self.offsets[wire] = offset + layout.chunk
        is_next_due = self.offsets[wire] + (layout.pipeline - 1) * layout.chunk < end
        self.posted[wire] += is_next_due - 1


@dataclass(frozen=True, slots=True)
class Ring:
    """This process in a ring of processes; messages go to the right or to the left.

    Attributes:
        left: The link to the process before this one.
        right: The link to the process after it. Of two processes each is the other's both sides,
            and a message that one sends to its right the other receives from its left.
    """

    left: Link
    right: Link

    def __enter__(self) -> Self:
        """Return itself; its wires are closed at the end."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the wires; a neighbour that waits for this process gets a ConnectionError."""
        self.left.close()
        self.right.close()


def listen(host: str = "127.0.0.1") -> socket.socket:
    """Return a socket at which the left neighbour can reach this process.

    Its `getsockname()` is the address to tell the others.
    """
    return socket.create_server((host, 0))


def join(
    listener: socket.socket,
    addresses: Sequence[Address],
    rank: int,
    layout: Layout,
    *,
    timeout_s: float = 60.0,
) -> Ring:
    """Connect this process with both of its neighbours.

    Args:
        listener: This process's, from `listen`; closed by this function.
        addresses: Of the listeners of all processes, by rank; at least two.
        layout: The same in all processes.
        timeout_s: How long each connection may take, in seconds.

    Raises:
        TimeoutError: A neighbour did not come.
    """
    right: list[socket.socket] = []
    left: dict[int, socket.socket] = {}
    with listener:
        listener.settimeout(timeout_s)
        for wire in range(layout.wires):  # the kernel accepts before the neighbour does
            after = addresses[(rank + 1) % len(addresses)]
            right.append(socket.create_connection(after, timeout_s))
            right[-1].sendall(bytes([wire]))
        for _ in range(layout.wires):
            connection, _ = listener.accept()
            connection.settimeout(timeout_s)
            left[connection.recv(1)[0]] = connection
    for each in (*right, *left.values()):
        each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        each.settimeout(None)
    in_order = tuple(left[wire] for wire in range(layout.wires))
    return Ring(Link(in_order, layout), Link(tuple(right), layout))
