"""Digests of values, so that ranks can compare them without sending the data.

A digest covers the type and all elements. Arrays and tensors of any library are read by their own
methods; no library is imported here.
"""

from __future__ import annotations

import hashlib
import pickle
import reprlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

from pytest_multihost.core.rank.tensor_bytes import tensor_bytes

_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_MAX_TEXT = 200
_ELEMENTS = 4

_short = reprlib.Repr()
_short.maxstring = _short.maxother = _MAX_TEXT


def digest(value: object) -> str:
    """Return the digest of a value: equal for equal values, whichever rank makes it.

    Mappings and sets may have any order. A module of torch counts as its state_dict. Of an array of
    jax that is replicated over processes, this process's copy counts.

    Raises:
        TypeError: A part cannot be digested: it cannot be pickled, or is spread over processes.
    """
    found = hashlib.blake2b(digest_size=16)
    for part in _parts(value):
        found.update(len(part).to_bytes(8, "little"))
        found.update(part)
    return found.hexdigest()


def short_text(value: object) -> str:
    """Return a value for the reader, shortened: of an array its type, shape and first elements."""
    state = _state(value)
    if state is not value:
        return f"{type(value).__name__} with {len(state)} parameters and buffers"
    if _is_array(value):
        array: Any = value
        is_whole = getattr(array, "is_fully_addressable", True)
        first = array.reshape(-1)[:_ELEMENTS].tolist() if is_whole else []
        more = ", ..." if len(first) < _size(array) else ""
        return f"{array.dtype} {tuple(array.shape)} [{', '.join(map(str, first))}{more}]"
    return _short.repr(value)[:_MAX_TEXT]


def _parts(value: object) -> Iterator[bytes]:
    value = _state(value)
    if isinstance(value, _PLAIN):
        yield f"{type(value).__name__} {value!r}".encode("utf-8", "backslashreplace")
    elif _is_array(value):
        yield from _array_parts(value)
    elif isinstance(value, Mapping):
        items = sorted((digest(key), digest(each)) for key, each in value.items())
        yield f"mapping {items}".encode()
    elif isinstance(value, AbstractSet):
        yield f"set {sorted(map(digest, value))}".encode()
    elif isinstance(value, Sequence):
        yield f"sequence {len(value)}".encode()
        for each in value:
            yield digest(each).encode()
    else:
        yield _pickled(value)


def _pickled(value: object) -> bytes:
    try:
        return pickle.dumps(value)
    except Exception as error:
        raise TypeError(
            f"a value of type {type(value).__name__} cannot be compared between ranks: {error};"
            " pass numbers, texts, arrays, or containers of these"
        ) from error


def _state(value: object) -> Any:  # noqa: ANN401 - of any library
    """Return the state of a module of torch; any other value itself."""
    torch = sys.modules.get("torch")
    is_module = torch is not None and isinstance(value, torch.nn.Module)
    module: Any = value
    return module.state_dict() if is_module else value


def _is_array(value: object) -> bool:
    return all(hasattr(value, name) for name in ("dtype", "shape", "tolist"))


def _size(array: Any) -> int:  # noqa: ANN401 - of any library
    size = 1
    for each in array.shape:
        size *= each
    return size


def _array_parts(array: Any) -> Iterator[bytes]:  # noqa: ANN401 - of any library
    yield f"array {array.dtype} {tuple(array.shape)}".encode()
    if hasattr(array, "detach"):  # of torch: also of types that numpy lacks, such as bfloat16
        yield tensor_bytes(array)
        return
    if hasattr(array, "is_fully_addressable") and not array.is_fully_addressable:
        if not array.is_fully_replicated:
            raise TypeError("the array is spread over processes, so no process has all of it")
        array = array.addressable_data(0)
    numpy = sys.modules.get("numpy")
    if numpy is None:
        raise TypeError("arrays are compared by numpy, which is not imported")
    yield numpy.ascontiguousarray(numpy.asarray(array)).tobytes()
