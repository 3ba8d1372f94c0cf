"""Checks of the tensors that a rank passes to an operation, before anything is sent.

torch makes the same checks, so each rank that passes tensors which do not fit its own group or each
other gets an error, and no wrong values. Tensors that do not fit another rank's are found later.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

__tracebackhide__ = True  # pytest leaves the frames of this module out of tracebacks

Tensor = Any


def require_one_for_each_member(size: int, *lists: Sequence[Tensor]) -> None:
    """Check that lists have one tensor for each of the members of a group.

    Raises:
        RuntimeError: One has another length.
    """
    for each in lists:
        if len(each) != size:
            raise RuntimeError(f"a list of {len(each)} tensors: the group has {size} ranks")


def require_alike(tensor: Tensor, others: Sequence[Tensor]) -> None:
    """Check that tensors have the shape of this rank's tensor, as gloo needs it.

    Raises:
        RuntimeError: One has another shape.
    """
    for index, each in enumerate(others):
        if each.shape != tensor.shape:
            raise RuntimeError(
                f"invalid tensor size at index {index} (expected {tuple(tensor.shape)}, got "
                f"{tuple(each.shape)})"
            )


def require_parts(whole: Tensor, part: Tensor, size: int) -> None:
    """Check that a tensor has one part for each of the members of a group.

    Raises:
        RuntimeError: It has more elements, or fewer.
    """
    if whole.numel() != part.numel() * size:
        raise RuntimeError(
            f"a tensor of {whole.numel()} elements for {size} parts of {part.numel()}"
        )


def require_split(tensor: Tensor, counts: Sequence[int], size: int) -> None:
    """Check that the rows of a tensor are split among all members of a group.

    Args:
        counts: The rows for each member; empty: equally many for each of them.

    Raises:
        RuntimeError: There are more counts than members, or fewer, or their sum is another one.
    """
    if not counts:
        return
    if len(counts) != size:
        raise RuntimeError(f"Number of tensor splits not equal to group size: {len(counts)}")
    rows = tensor.shape[0] if tensor.dim() else 1
    if sum(counts) != rows:
        raise RuntimeError(f"Split sizes doesn't match total dim 0 size: {sum(counts)}, {rows}")
