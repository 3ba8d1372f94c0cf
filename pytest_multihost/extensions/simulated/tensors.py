"""Tensors as bytes, and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pytest_multihost.core.rank.tensor_bytes import tensor_bytes
from pytest_multihost.extensions.simulated.launches import Blob
from pytest_multihost.extensions.simulated.results import part_sizes

Tensor = Any


def to_blob(tensor: Tensor) -> Blob:
    """Return the elements of a tensor."""
    return Blob(_dtype(tensor), _data(tensor))


def to_joined_blob(tensors: Sequence[Tensor]) -> Blob:
    """Return the elements of several tensors, one after the other."""
    data = [_data(each) for each in tensors]
    if any(each is None for each in data):
        return Blob(_dtype(tensors[0]), None)
    parts = [each or b"" for each in data]
    sizes = tuple(map(len, parts))
    return Blob(_dtype(tensors[0]), b"".join(parts), None if len({*sizes}) == 1 else sizes)


def to_split_blob(tensor: Tensor, counts: Sequence[int], parts: int) -> Blob:
    """Return the elements of a tensor whose rows go to several members.

    Args:
        counts: The rows for each member; empty: equally many for each of them.
    """
    blob = to_blob(tensor)
    if not counts or blob.data is None:
        return blob
    rows = tensor.shape[0] if tensor.dim() else 1
    row = len(blob.data) // rows if rows else 0
    sizes = tuple(int(count) * row for count in counts)
    return Blob(blob.dtype, blob.data, sizes if len(sizes) == parts else None)


def fill(tensor: Tensor, data: bytes | None) -> None:
    """Copy elements into a tensor; fewer than it has fill its beginning, as with gloo.

    Raises:
        RuntimeError: There are more than it has.
    """
    if data is None or not data:
        return
    import torch

    size = tensor.numel() * tensor.element_size()
    if len(data) > size:
        raise RuntimeError(f"received {len(data)} bytes for a tensor of {size}")
    found = torch.frombuffer(bytearray(data), dtype=torch.uint8).view(tensor.dtype)
    with torch.no_grad():
        if len(data) == size:
            tensor.copy_(found.view(tensor.shape))
        else:
            whole = tensor.reshape(-1).clone()
            whole[: found.numel()] = found
            tensor.copy_(whole.view(tensor.shape))


def fill_each(tensors: Sequence[Tensor], blob: Blob) -> None:
    """Copy the parts of a blob into tensors."""
    if blob.data is None:
        return
    at = 0
    for tensor, size in zip(tensors, part_sizes(blob, len(tensors)), strict=True):
        fill(tensor, blob.data[at : at + size])
        at += size


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _data(tensor: Tensor) -> bytes | None:
    if tensor.is_meta:
        return None
    if tensor.is_sparse:
        raise RuntimeError("a simulated group takes no sparse tensors")
    return tensor_bytes(tensor)
