"""Shortens the values that a rank has seen, so that they can be compared between ranks.

No function of torch is called that a sweep may watch, such as `Tensor.item`.
"""

from __future__ import annotations

import hashlib
import math
import random
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

from pytest_multihost.extensions.sweep.local_decisions.facts import Seen, Sort

_ELEMENTS = 64
"""The number of elements of a list, and of its parts, that count."""

_NUMBERS = 4_096
"""The number of elements of an array that count."""

_DEPTH = 3

_PATHS = ("PurePath", "PosixPath", "WindowsPath", "Path", "PurePosixPath")


def seen(value: object) -> Seen:
    """Return a value as a rank has seen it; never raises."""
    try:
        return _seen(value)
    except Exception:  # noqa: BLE001 - a value of the user's may raise anything
        return Seen()


def _seen(value: Any) -> Seen:  # noqa: ANN401 - any value
    if value is None:
        return Seen("none", "None", "None")
    if isinstance(value, bool | int | float):
        return _number(value)
    if isinstance(value, str | bytes) or type(value).__name__ in _PATHS:
        return Seen("text", "", _digest(str(value)))
    if isinstance(value, Mapping | Sequence | AbstractSet | deque):
        parts = _parts(value, _DEPTH)
        digest = _digest(str(len(value)), *(each.digest for each in parts))
        is_known = all(each.digest for each in parts)
        return Seen(
            "list",
            str(len(value)),
            digest if is_known else "",
            any(each.is_measured for each in parts),
            any(each.is_array for each in parts),
        )
    if isinstance(value, random.Random):
        return Seen("generator", "", _digest(repr(value.getstate())))
    array = _as_numpy(value)
    return Seen() if array is None else _array(array, tuple(value.shape))


def _number(value: float, *, is_array: bool = False) -> Seen:
    sort: Sort = "number" if isinstance(value, float) else "whole"
    sort = "truth" if isinstance(value, bool) else sort
    return Seen(sort, repr(value), repr(value), sort == "number", is_array)


def _parts(value: Any, depth: int) -> list[Seen]:  # noqa: ANN401 - any value
    """Return the elements of a list, and those of the lists in it."""
    if depth == 0:
        return [Seen()]
    if isinstance(value, Mapping):
        items = [part for item in list(value.items())[:_ELEMENTS] for part in item]
    elif isinstance(value, AbstractSet):
        items = sorted(value, key=repr)[:_ELEMENTS]
    else:
        items = list(value)[:_ELEMENTS]
    parts: list[Seen] = []
    for each in items:
        if isinstance(each, Mapping | Sequence | AbstractSet) and not isinstance(each, str | bytes):
            length = str(len(each))
            parts += [Seen("list", length, length), *_parts(each, depth - 1)]
        else:
            parts.append(_seen(each))
    return parts


def _as_numpy(value: Any) -> Any:  # noqa: ANN401 - an array of any library
    """Return an array or tensor in the memory of this process as one of numpy, None for others."""
    numpy = sys.modules.get("numpy")
    if numpy is None or not (hasattr(value, "dtype") and hasattr(value, "shape")):
        return None
    if isinstance(value, numpy.ndarray | numpy.generic):
        return numpy.asarray(value)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        is_plain = type(value) in (torch.Tensor, torch.nn.Parameter)
        if not is_plain or value.device.type != "cpu" or value.layout != torch.strided:
            return None
        flat = value.detach().reshape(-1)[:_NUMBERS]
        return (flat.float() if flat.dtype == torch.bfloat16 else flat).numpy()
    jax = sys.modules.get("jax")
    if jax is None or not isinstance(value, jax.Array) or isinstance(value, jax.core.Tracer):
        return None
    return numpy.asarray(value) if value.is_fully_addressable else None


def _array(array: Any, shape: tuple[int, ...]) -> Seen:  # noqa: ANN401 - of numpy
    """Return an array, of which all or the first elements are given."""
    if math.prod(shape) == 1:
        value = array.reshape(-1).tolist()[0]
        if isinstance(value, bool | int | float):
            return _number(value, is_array=True)
    flat = array.reshape(-1)[:_NUMBERS]
    digest = _digest(str(array.dtype), str(shape), flat.tobytes().hex())
    return Seen("array", str(shape[0]), digest, array.dtype.kind == "f", is_array=True)


def _digest(*parts: str) -> str:
    found = hashlib.blake2s(digest_size=8)
    for each in parts:
        found.update(f"{len(each)}:{each}".encode("utf-8", "backslashreplace"))
    return found.hexdigest()


def chained(digest: str, value: str) -> str:
    """Return the digest of a sequence of values, from that of all but the last."""
    return _digest(digest, value)
