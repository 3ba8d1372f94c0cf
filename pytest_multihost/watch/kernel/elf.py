"""Names of the functions in a shared library, from its own table, if it has one."""

from __future__ import annotations

import bisect
import functools
import mmap
import struct
from collections.abc import Iterator
from dataclasses import dataclass

_ELF = b"\x7fELF\x02\x01"  # 64 bits, little-endian
_HEADER = struct.Struct("<QQ")  # at 32: where segments and sections are described
_COUNTS = struct.Struct("<HHHH")  # at 54: size and number of both descriptions
_SEGMENT = struct.Struct("<IIQQQQQQ")  # type, flags, offset, address, -, size in the file, -, -
_SECTION = struct.Struct("<IIQQQQIIQQ")  # -, type, -, -, offset, size, link, -, -, -
_SYMBOL = struct.Struct("<IBBHQQ")  # name, kind, -, -, address, size
_LOADED, _TABLE, _FUNCTION = 1, 2, 2


@dataclass(frozen=True, slots=True)
class Symbols:
    """The functions of one library, by the offset of their code in the file."""

    starts: tuple[int, ...] = ()
    ends: tuple[int, ...] = ()
    names: tuple[int, ...] = ()
    texts: bytes = b""

    def name(self, offset: int) -> str:
        """Return the mangled name of the function whose code is at `offset`, empty if unknown."""
        at = bisect.bisect(self.starts, offset) - 1
        if at < 0 or offset >= self.ends[at]:
            return ""
        start = self.names[at]
        return self.texts[start : self.texts.index(b"\0", start)].decode("ascii", "replace")


@functools.cache
def symbols(path: str) -> Symbols:
    """Return the functions of a library; none where it has no table. Takes part of a second, once.

    Args:
        path: Where it lies.
    """
    try:
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as data:  # noqa: PTH123 - as for PTH115
            return _read(data) if data[: len(_ELF)] == _ELF else Symbols()
    except (OSError, ValueError, struct.error):
        return Symbols()


def _read(data: mmap.mmap) -> Symbols:
    segments_at, sections_at = _HEADER.unpack_from(data, 32)
    _, segment_count, section_size, section_count = _COUNTS.unpack_from(data, 54)
    sections = [
        _SECTION.unpack_from(data, sections_at + i * section_size) for i in range(section_count)
    ]
    table = next((each for each in sections if each[1] == _TABLE), None)
    if table is None:
        return Symbols()
    _, _, _, _, texts_at, texts_size, *_ = sections[table[6]]
    segments = [
        _SEGMENT.unpack_from(data, segments_at + i * _SEGMENT.size) for i in range(segment_count)
    ]
    moves = [
        (each[3], each[3] + each[5], each[2] - each[3]) for each in segments if each[0] == _LOADED
    ]
    found = sorted(_functions(data[table[4] : table[4] + table[5]], moves))
    starts, ends, names = zip(*found, strict=True) if found else ((), (), ())
    return Symbols(starts, ends, names, data[texts_at : texts_at + texts_size])


def _functions(table: bytes, moves: list[tuple[int, int, int]]) -> Iterator[tuple[int, int, int]]:
    """Yield where in the file each function begins and ends, and where its name begins."""
    for name, kind, _, _, address, size in _SYMBOL.iter_unpack(table):
        if kind & 15 == _FUNCTION and size:
            for start, end, move in moves:
                if start <= address < end:
                    yield address + move, address + move + size, name
                    break
