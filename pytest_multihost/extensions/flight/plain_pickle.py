"""Reads pickles of plain values: dicts, lists, tuples, texts, numbers. Nothing in them is called.

`pickle` cannot be used for a file that another user may have written. Ten bytes make it reserve
four gigabytes for its memo, and a tuple that is nested deep enough ends the interpreter. This
reader knows only the codes that torch and `pickle` write for plain values, and it bounds count,
depth, length and digits. The memo of a pickle lets one object occur many times; the bound on values
counts it each time.
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Callable, Mapping
from typing import cast as typed

from pytest_multihost.core.model.json_values import Json, JsonError

MAX_DEPTH = 12
_MAX_CODES = 3_000_000
"""Maximum number of codes in a pickle: each makes at most one value, or one entry of the memo."""

_MAX_PLAIN = 1_500_000
"""Maximum number of codes that only the table knows: they take most of the time, 2 s in all.

The largest buffers in use have 20,000 operations (torch recommends 2,000), and torch writes 38 to
55 such codes for an operation.
"""

_MAX_VALUES = 4_000_000
"""Maximum number of values, if an object counts wherever it occurs."""

_MAX_INT_BYTES = 9  # 64 bits, and one for the sign
_MAX_SHOWN = 80
_LEAF = 16

_U1, _U2, _U4, _U8 = (struct.Struct(each) for each in ("<B", "<H", "<I", "<Q"))
_I4, _F8 = struct.Struct("<i"), struct.Struct(">d")
_PUT, _LONG_PUT, _GET, _LONG_GET, _STOP = (
    each[0]
    for each in (
        *(pickle.BINPUT, pickle.LONG_BINPUT),
        *(pickle.BINGET, pickle.LONG_BINGET, pickle.STOP),
    )
)
_CUT_OFF = "not a whole pickle of plain values: it is cut off"


class _Pickle:
    """A pickle that is being read; a class because its codes share a position and a stack."""

    __slots__ = ("at", "data", "marks", "memo", "stack")

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0
        self.stack: list[object] = []
        self.marks: list[int] = []
        self.memo: dict[int, object] = {}

    def value(self) -> object:
        """Return the value of the pickle."""
        data, stack, memo, codes = self.data, self.stack, self.memo, _CODES
        at = plain = 0
        for _ in range(_MAX_CODES):
            code = data[at]
            at += 1
            # Most codes are of the memo: it has the names of all fields.
            if code == _GET:
                stack.append(memo[data[at]])
                at += 1
            elif code == _PUT:
                memo[data[at]] = stack[-1]
                at += 1
            elif code == _LONG_GET:
                stack.append(memo[int.from_bytes(data[at : at + 4], "little")])
                at += 4
            elif code == _LONG_PUT:
                memo[int.from_bytes(data[at : at + 4], "little")] = stack[-1]
                at += 4
            elif code in codes and plain < _MAX_PLAIN:
                plain += 1
                self.at = at
                codes[code](self)
                at = self.at
            elif code == _STOP and len(stack) == 1 and not self.marks:
                return stack[0]
            elif code == _STOP:
                raise JsonError(_CUT_OFF)
            elif code in codes:
                raise JsonError(f"it has more than {_MAX_PLAIN} values")
            else:
                self.at = at
                raise JsonError(self.why_not(code))
        raise JsonError(f"it has more than {_MAX_CODES} values")

    def why_not(self, code: int) -> str:
        """Return why a code is refused."""
        if code in (pickle.GLOBAL[0], pickle.INST[0]):
            parts = [self.line().decode(errors="replace") for _ in range(2)]
        elif code == pickle.STACK_GLOBAL[0]:
            parts = [each if isinstance(each, str) else "?" for each in self.stack[-2:]]
        else:
            return f"not a pickle of plain values: it has the code {code:#04x}"
        shown = ".".join(each[:_MAX_SHOWN] for each in parts)
        return f"it names {shown}, and a dump names no class or function"

    def number(self, form: struct.Struct) -> int:
        """Return the number at the position."""
        found: int = form.unpack_from(self.data, self.at)[0]
        self.at += form.size
        return found

    def take(self, length: int) -> bytes:
        """Return the bytes at the position."""
        found = self.data[self.at : self.at + length]
        if len(found) < length:
            raise JsonError(_CUT_OFF)
        self.at += length
        return found

    def line(self) -> bytes:
        """Return the bytes up to the next line feed."""
        end = self.data.index(b"\n", self.at)
        found = self.data[self.at : end]
        self.at = end + 1
        return found

    def text(self, length: int) -> None:
        """Add the text at the position."""
        self.stack.append(self.take(length).decode("utf-8", "surrogatepass"))

    def long(self, length: int) -> None:
        """Add the number of several bytes at the position."""
        if length > _MAX_INT_BYTES:
            raise JsonError("a number is too large")
        self.stack.append(int.from_bytes(self.take(length), "little", signed=True))

    def decimal(self) -> None:
        """Add the number whose digits are at the position."""
        text = self.line().removesuffix(b"L")
        if len(text) > len(str(1 << 64)):
            raise JsonError("a number is too large")
        self.stack.append({b"00": False, b"01": True}.get(text, int(text)))

    def since_mark(self) -> list[object]:
        """Take the values since the last mark."""
        start = self.marks.pop()
        found = self.stack[start:]
        del self.stack[start:]
        return found

    def join(self, count: int) -> None:
        """Replace the last values by a tuple."""
        start = len(self.stack) - count
        if start < 0:
            raise JsonError(_CUT_OFF)
        self.stack[start:] = [tuple(self.stack[start:])]

    def append(self, found: list[object]) -> None:
        """Append values to the list below them."""
        target = self.stack[-1]
        if not isinstance(target, list):
            raise JsonError("not a pickle of plain values: it appends to no list")
        target.extend(found)

    def set(self, found: list[object]) -> None:
        """Set keys and values of the dict below them."""
        target = self.stack[-1]
        if not isinstance(target, dict) or len(found) % 2:
            raise JsonError("not a pickle of plain values: it sets items of no dict")
        for key, value in zip(found[::2], found[1::2], strict=True):
            if not isinstance(key, str | int):  # a tuple's hash knows no bound on its depth
                raise JsonError(f"a key is a {type(key).__name__}, not a text")
            target[str(key)] = value

    def pop(self, count: int) -> list[object]:
        """Take the last values."""
        return [self.stack.pop() for _ in range(count)][::-1]


def _codes() -> Mapping[int, Callable[[_Pickle], object]]:
    """Return the function for each code except the most frequent."""
    found: dict[bytes, Callable[[_Pickle], object]] = {
        pickle.PROTO: lambda read: read.number(_U1),
        pickle.FRAME: lambda read: read.number(_U8),
        pickle.MARK: lambda read: read.marks.append(len(read.stack)),
        pickle.NONE: lambda read: read.stack.append(None),
        pickle.NEWTRUE: lambda read: read.stack.append(True),
        pickle.NEWFALSE: lambda read: read.stack.append(False),
        pickle.BININT: lambda read: read.stack.append(read.number(_I4)),
        pickle.BININT1: lambda read: read.stack.append(read.number(_U1)),
        pickle.BININT2: lambda read: read.stack.append(read.number(_U2)),
        pickle.LONG1: lambda read: read.long(read.number(_U1)),
        pickle.LONG4: lambda read: read.long(read.number(_U4)),
        pickle.INT: lambda read: read.decimal(),
        pickle.LONG: lambda read: read.decimal(),
        pickle.BINFLOAT: lambda read: read.stack.append(_F8.unpack(read.take(8))[0]),
        pickle.SHORT_BINUNICODE: lambda read: read.text(read.number(_U1)),
        pickle.BINUNICODE: lambda read: read.text(read.number(_U4)),
        pickle.BINUNICODE8: lambda read: read.text(read.number(_U8)),
        pickle.EMPTY_LIST: lambda read: read.stack.append([]),
        pickle.EMPTY_DICT: lambda read: read.stack.append({}),
        pickle.EMPTY_TUPLE: lambda read: read.stack.append(()),
        pickle.LIST: lambda read: read.stack.append(read.since_mark()),
        pickle.TUPLE: lambda read: read.stack.append(tuple(read.since_mark())),
        pickle.TUPLE1: lambda read: read.join(1),
        pickle.TUPLE2: lambda read: read.join(2),
        pickle.TUPLE3: lambda read: read.join(3),
        pickle.APPEND: lambda read: read.append(read.pop(1)),
        pickle.APPENDS: lambda read: read.append(read.since_mark()),
        pickle.SETITEM: lambda read: read.set(read.pop(2)),
        pickle.SETITEMS: lambda read: read.set(read.since_mark()),
        pickle.MEMOIZE: lambda read: read.memo.setdefault(len(read.memo), read.stack[-1]),
    }
    return {code[0]: each for code, each in found.items()}


_CODES = _codes()


def unpickled(data: bytes) -> Json:
    """Return the value of a pickle that holds only plain values; an array may be a tuple.

    An object that occurs several times is one object in the result as well.

    Raises:
        JsonError: The pickle is cut off, holds or does anything else, or is too large.
    """
    try:
        value = _Pickle(data).value()
    except (IndexError, KeyError, struct.error) as error:
        raise JsonError(_CUT_OFF) from error
    except ValueError as error:
        if isinstance(error, JsonError):
            raise
        raise JsonError(f"not a pickle of plain values: {error}"[:200]) from error
    _measure(value, MAX_DEPTH, {})
    return typed("Json", value)


def _measure(value: object, depth: int, known: dict[int, tuple[int, int]]) -> tuple[int, int]:
    """Return of how many values a value consists, and how deep it is nested.

    Args:
        depth: How deep it may be nested.
        known: By its id, the result for each object that is not small: it is measured once.

    Raises:
        JsonError: It has too many values, or is nested too deep.
    """
    if not isinstance(value, dict | list | tuple):
        return 1, 0
    if id(value) in known:
        count, height = known[id(value)]
    else:
        count, height = 1, 1
        for each in (value.values() if isinstance(value, dict) else value) if depth > 0 else ():
            if isinstance(each, dict | list | tuple):
                one, level = _measure(each, depth - 1, known)
                count, height = count + one, max(height, level + 1)
            else:
                count += 1
        if height > 1 or len(value) > _LEAF:
            known[id(value)] = count, height
    if height > depth:
        raise JsonError(f"its values are nested more than {MAX_DEPTH} deep")
    if count > _MAX_VALUES:
        raise JsonError(f"it has more than {_MAX_VALUES} values")
    return count, height
