"""The elements of a tensor of torch as bytes, without numpy: torch can be installed without it."""

from __future__ import annotations

import ctypes
from typing import Any


def tensor_bytes(tensor: Any) -> bytes:  # noqa: ANN401 - of torch
    """Return the elements of a tensor in order.

    Raises:
        TypeError: Its elements are not in the memory of this process.
    """
    flat = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    if not flat.numel():
        return b""
    if not flat.data_ptr():
        flat = flat.clone()  # waits for a functional collective that has not ended
    if not flat.data_ptr():
        raise TypeError(f"a {type(tensor).__name__} has no elements of its own")
    return ctypes.string_at(flat.data_ptr(), flat.numel() * flat.element_size())
