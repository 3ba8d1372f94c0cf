"""The messages of ranks to the exchange, and its answers: plain values.

A `SimulatedLaunch` is one operation of one rank. Its tensors travel as bytes: all elements of a
tensor in order, or all tensors of a list one after the other. A `Completion` says that the
operation of a rank has ended.

Both travel as tuples: a thousand ranks send many, and pickling a dataclass takes ten times as long.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Travelling = tuple[Any, ...]
"""A value of this module as it travels: a tuple of texts, numbers, bytes and such tuples."""

Sizes = tuple[int, ...]
"""Bytes of each part of a blob."""


@dataclass(frozen=True, slots=True)
class Blob:
    """The elements of a tensor, or of several tensors one after the other.

    Attributes:
        dtype: Name of their type in torch, such as "float32".
        data: The elements; None if the tensors are on the device `meta` and have none.
        sizes: The bytes of each of several tensors; None for one tensor, or if all are equal.
    """

    dtype: str
    data: bytes | None
    sizes: Sizes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedLaunch:
    """One operation of one rank.

    Attributes:
        number: Identifies the launch among those of the rank.
        group: The key of its group; the same on all members.
        member: The rank's number in the group.
        size: How many members the group has.
        operation: Name of the collective; "send", "recv" or "join".
        sequence: Which operation of the group; for transfers: with this peer, direction and tag.
        root: The number of the root in the group, or of the peer of a transfer. None: there is
            none, or the message may come from any member.
        peer: The other rank of a communicator of two ranks, in the world.
        reduction: How elements are combined, such as "sum".
        stream: The operations of a rank with the same stream run one after the other, in the order
            in which they are launched; empty: it waits for no other operation.
    """

    rank: int
    number: int
    group: str
    member: int
    size: int
    operation: str
    sequence: int = 0
    root: int | None = None
    tag: int = 0
    peer: int | None = None
    reduction: str = ""
    blobs: tuple[Blob, ...] = ()
    stream: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """The end of an operation of a rank.

    Attributes:
        blobs: The tensors that the rank receives; empty: none.
        source: The number of the member that sent it, for a transfer.
        error: Why the operation failed; empty: it did not.
    """

    rank: int
    number: int
    blobs: tuple[Blob, ...] = ()
    source: int | None = None
    error: str = ""


def launch_to_tuple(launch: SimulatedLaunch) -> Travelling:
    """Return a launch as it travels."""
    return (
        launch.rank,
        launch.number,
        launch.group,
        launch.member,
        launch.size,
        launch.operation,
        launch.sequence,
        launch.root,
        launch.tag,
        launch.peer,
        launch.reduction,
        _blobs_to_tuple(launch.blobs),
        launch.stream,
    )


def launch_from_tuple(found: Travelling) -> SimulatedLaunch:
    """Return the launch that has travelled as a tuple."""
    rank, number, group, member, size, operation, *more = found
    sequence, root, tag, peer, reduction, blobs, stream = more
    return SimulatedLaunch(
        rank=rank,
        number=number,
        group=group,
        member=member,
        size=size,
        operation=operation,
        sequence=sequence,
        root=root,
        tag=tag,
        peer=peer,
        reduction=reduction,
        blobs=_blobs_from_tuple(blobs),
        stream=stream,
    )


def completion_to_tuple(end: Completion) -> Travelling:
    """Return the end of an operation as it travels."""
    return end.rank, end.number, _blobs_to_tuple(end.blobs), end.source, end.error


def completion_from_tuple(found: Travelling) -> Completion:
    """Return the end of an operation that has travelled as a tuple."""
    rank, number, blobs, source, error = found
    return Completion(
        rank=rank, number=number, blobs=_blobs_from_tuple(blobs), source=source, error=error
    )


def _blobs_to_tuple(blobs: Sequence[Blob]) -> Travelling:
    return tuple((each.dtype, each.data, each.sizes) for each in blobs)


def _blobs_from_tuple(found: Travelling) -> tuple[Blob, ...]:
    return tuple(Blob(*each) for each in found)
