"""The results of collectives: pure functions of the members' tensors.

Elements are combined in the order of the members. gloo's order depends on the number of ranks and
elements, so sums of floating-point numbers may differ from gloo's in the last bit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pytest_multihost.core.rank.tensor_bytes import tensor_bytes
from pytest_multihost.extensions.simulated.launches import Blob, SimulatedLaunch

Tensor = Any
Members = Mapping[int, SimulatedLaunch]
"""The launch of each member, by its number in the group."""


class UnequalError(Exception):
    """Members pass tensors that do not fit together."""


def result_of(
    member: int, members: Members, cache: dict[object, tuple[Blob, ...]]
) -> Sequence[Blob]:
    """Return a member's result of a collective in which all needed members take part.

    Args:
        member: The member's number in the group.
        members: The launches so far; all, except for a broadcast.
        cache: Results that several members share; empty at first.

    Raises:
        UnequalError: The members' tensors do not fit together.
    """
    own = members[member]
    match own.operation:
        case "all_reduce":
            return _cached(cache, own.reduction, lambda: _reduced(members, own))
        case "reduce":
            return _reduced(members, own) if own.root == member else ()
        case "all_gather":
            return _cached(cache, "gathered", lambda: _gathered(members))
        case "gather":
            return _gathered(members) if own.root == member else ()
        case "broadcast":
            return () if own.root == member else members[_root(own)].blobs
        case "scatter":
            return (_part(members[_root(own)].blobs[0], member, own.size),)
        case "all_to_all":
            return (_collected(members, member),)
        case "reduce_scatter":
            every = _cached(cache, own.reduction, lambda: _reduced(members, own))
            return tuple(_part(each, member, own.size) for each in every)
    return ()


def _root(own: SimulatedLaunch) -> int:
    assert own.root is not None  # noqa: S101 - for the type checker
    return own.root


def _cached(
    cache: dict[object, tuple[Blob, ...]], key: object, compute: Callable[[], tuple[Blob, ...]]
) -> tuple[Blob, ...]:
    if key not in cache:
        cache[key] = compute()
    return cache[key]


def part_sizes(blob: Blob, count: int) -> Sequence[int]:
    """Return the bytes of each of the parts of a blob."""
    if blob.sizes is not None:
        return blob.sizes
    return [len(blob.data or b"") // count] * count


def _part(blob: Blob, index: int, count: int) -> Blob:
    """Return one of the parts of a blob."""
    if blob.data is None:
        return Blob(blob.dtype, None)
    sizes = part_sizes(blob, count)
    start = sum(sizes[:index]) if blob.sizes is not None else index * sizes[0]
    return Blob(blob.dtype, blob.data[start : start + sizes[index]])


def _joined(blobs: Sequence[Blob]) -> Blob:
    if any(each.data is None for each in blobs):
        return Blob(blobs[0].dtype, None)
    data = [each.data or b"" for each in blobs]
    sizes = tuple(map(len, data))
    return Blob(blobs[0].dtype, b"".join(data), None if len({*sizes}) == 1 else sizes)


def _gathered(members: Members) -> tuple[Blob, ...]:
    """Return for each tensor those of all members, in the order of their numbers."""
    launches = [members[each] for each in sorted(members)]
    counts = {len(each.blobs) for each in launches}
    if len(counts) > 1:
        raise UnequalError(f"members pass {' and '.join(map(str, sorted(counts)))} tensors")
    return tuple(_joined([each.blobs[i] for each in launches]) for i in range(counts.pop()))


def _collected(members: Members, member: int) -> Blob:
    """Return the parts that all members send to one member."""
    launches = [members[each] for each in sorted(members)]
    return _joined([_part(each.blobs[0], member, each.size) for each in launches])


def _reduced(members: Members, own: SimulatedLaunch) -> tuple[Blob, ...]:
    """Return for each tensor the combination of those of all members."""
    launches = [members[each] for each in sorted(members)]
    counts = {len(each.blobs) for each in launches}
    if len(counts) > 1:
        told = _told(launches, min(counts))
        raise UnequalError(f"members pass different numbers of tensors: {told}")
    found = []
    for index, blob in enumerate(own.blobs):
        blobs = [each.blobs[index] for each in launches]
        shapes = {(each.dtype, len(each.data or b"")) for each in blobs}
        if len(shapes) > 1:
            raise UnequalError(
                f"members pass tensors of different types or sizes: {_told(launches, index)}"
            )
        data = [each.data for each in blobs if each.data is not None]
        if len(data) < len(blobs):
            found.append(Blob(blob.dtype, None))
        else:
            found.append(Blob(blob.dtype, _combined(data, blob.dtype, own), blob.sizes))
    return tuple(found)


def _told(launches: Sequence[SimulatedLaunch], index: int) -> str:
    """Return which sizes the first members pass that differ."""
    found: dict[tuple[str, int], int] = {}
    for each in launches:
        blob = each.blobs[index] if index < len(each.blobs) else Blob("none", b"")
        found.setdefault((blob.dtype, len(blob.data or b"")), each.rank)
    told = [f"rank {rank}: {size} bytes of {dtype}" for (dtype, size), rank in found.items()]
    return ", ".join(told[:3])


def _combined(data: Sequence[bytes], dtype: str, own: SimulatedLaunch) -> bytes:
    """Return the combination of the members' elements, member by member."""
    import torch

    if not data[0]:
        return b""
    tensors = [torch.frombuffer(bytearray(data[0]), dtype=getattr(torch, dtype))]
    result = tensors[0]
    combine = _COMBINE[own.reduction]
    for each in data[1:]:
        # A copy, because torch warns of a buffer that cannot be written.
        other = torch.frombuffer(bytearray(each), dtype=result.dtype)
        combine(torch, result, other)
    if own.reduction == "avg":
        result.copy_(result / len(data) if result.is_floating_point() else result // len(data))
    return tensor_bytes(result)


def _in_place(name: str) -> Callable[[Any, Tensor, Tensor], object]:
    def combine(torch: Any, result: Tensor, other: Tensor) -> object:  # noqa: ANN401 - a module
        return getattr(torch, name)(result, other, out=result)

    return combine


_COMBINE: Mapping[str, Callable[[Any, Tensor, Tensor], object]] = {
    "sum": _in_place("add"),
    "avg": _in_place("add"),
    "product": _in_place("mul"),
    "min": _in_place("minimum"),
    "max": _in_place("maximum"),
    "band": _in_place("bitwise_and"),
    "bor": _in_place("bitwise_or"),
    "bxor": _in_place("bitwise_xor"),
}
