"""Read the names of functions in ELF files from their symbol tables (elf(5)).

Another user's process may have mapped the file, so anything may be in it, and it may change at any
moment. So every size that it states has a limit, and it is read, never mapped: a mapped file that
becomes shorter ends the process that touches it.

This module imports nothing from this package, because the program `probes/native_reader.py` loads
it by its path.
"""

from __future__ import annotations

import bisect
import ctypes
import errno
import functools
import os
import stat
import struct
from array import array
from dataclasses import dataclass, field
from itertools import compress, repeat
from operator import lshift, or_

_ELF64_LITTLE = b"\x7fELF\x02\x01"
_HEADER_BYTES = 64
_OFFSETS = struct.Struct("<QQ")  # e_phoff, e_shoff
_OFFSETS_AT = 32
_COUNTS = struct.Struct("<HHHH")  # e_phentsize, e_phnum, e_shentsize, e_shnum
_COUNTS_AT = 54
_SEGMENT = struct.Struct("<IIQQQQQQ")  # type, flags, offset, vaddr, paddr, filesz, memsz, align
_SECTION = struct.Struct("<IIQQQQIIQQ")  # name, type, flags, addr, offset, size, link, ...
_HASH, _SYMBOL = struct.Struct("<I"), struct.Struct("<IBBHQQ")
_PT_LOAD = 1
_SYMTAB, _DYNSYM = 2, 11  # SHT_SYMTAB, SHT_DYNSYM
_GNU_HASH = 0x6FFFFFF6  # SHT_GNU_HASH
_HASH_HEADER = struct.Struct("<IIII")  # buckets, first symbol, words of the filter, shift
_FUNCTIONS = (2, 10)  # STT_FUNC, STT_GNU_IFUNC
_IS_FUNCTION = bytes((info & 15) in _FUNCTIONS for info in range(256))
"""For each value of a symbol's byte of type and binding: 1 for a function, else 0."""

# A symbol (Elf64_Sym) is three words of eight bytes: name (4), info (1), other (1), section (2);
# address; size.
_SYMBOL_BYTES, _SYMBOL_WORDS, _INFO_AT = 24, 3, 4
_INDEX_BITS = 24
_INDEX_MASK = (1 << _INDEX_BITS) - 1

MAX_SYMBOLS = 1_500_000
"""The most symbols of one file; jaxlib, the largest known one, has 740 000."""

MAX_ALL_SYMBOLS = 6_000_000
"""The most symbols of all files that this process reads: 200 MB of memory, and seconds."""

_MAX_SECTIONS, _MAX_SEGMENTS = 4096, 256
_MAX_ENTRY_BYTES = 256
_MAX_NAME_BYTES = 1 << 14
_MAX_FILES = 256
_MAX_ALIKE = 1000  # names of one function


_BROKEN = (
    OSError,
    ValueError,
    TypeError,
    LookupError,
    ArithmeticError,
    MemoryError,
    struct.error,
)
"""The exceptions of reading a broken file."""


class _TooLargeError(ValueError):
    """A file states a size that is not to be believed."""


@dataclass(slots=True)
class SymbolTable:
    """The functions of one file.

    jaxlib has 740 000 symbols, so no Python code runs for each of them. A key is an address and, in
    its low bits, the index of the symbol in the table.

    Attributes:
        file: The open file, which has the names; -1 if there are none.
    """

    _keys: array[int] = field(default_factory=lambda: array("Q"))
    _symbols: memoryview = field(default_factory=lambda: memoryview(b""))
    _strings_at: int = 0
    file: int = -1
    _segments: tuple[tuple[int, int, int], ...] = ()

    @classmethod
    def read(cls, path: str, *, max_symbols: int = MAX_SYMBOLS) -> SymbolTable:
        """Read the full table, or if there is none, the table of exported functions.

        Raises:
            OSError: The file is gone.
            ValueError, TypeError, struct.error, LookupError, ArithmeticError, MemoryError: The file
                is broken, or states a size that is not to be believed.
        """
        file, found = _open(path), cls()
        try:
            found = cls._read(file, max_symbols)
        finally:
            if found.file != file:
                os.close(file)
        return found

    @classmethod
    def _read(cls, file: int, max_symbols: int) -> SymbolTable:
        headers, sections = _headers(file)
        by_type = {section[1]: section for section in sections}
        section = by_type.get(_SYMTAB) or by_type.get(_DYNSYM)
        if section is None:
            return cls()
        raw = _read(file, section[4], section[5], most=_SYMBOL_BYTES * max_symbols)
        symbols = memoryview(raw).cast("Q")
        keys = map(lshift, symbols[1::_SYMBOL_WORDS].tolist(), repeat(_INDEX_BITS))
        keys = map(or_, keys, range(len(symbols) // _SYMBOL_WORDS))
        kinds = raw[_INFO_AT::_SYMBOL_BYTES].translate(_IS_FUNCTION)
        found = array("Q", sorted(compress(keys, kinds)))
        segments = tuple((each[2], each[5], each[3]) for each in headers if each[0] == _PT_LOAD)
        return cls(found, symbols, sections[section[6]][4], file, segments)

    @property
    def count(self) -> int:
        """The number of symbols of the file."""
        return len(self._symbols) // _SYMBOL_WORDS

    def name_at(self, address: int) -> bytes:
        """Return the mangled name of the function at `address`; empty if unknown."""
        index = bisect.bisect_left(self._keys, address + 1 << _INDEX_BITS) - 1
        if index < 0 or self.file < 0:
            return b""
        start = self._keys[index] >> _INDEX_BITS
        first = bisect.bisect_left(self._keys, start << _INDEX_BITS, max(0, index - _MAX_ALIKE))
        indices = [key & _INDEX_MASK for key in self._keys[first : index + 1]]
        widest = max(indices, key=self._size)  # several symbols may begin at one address
        size = self._size(widest)
        if not start or (size and address >= start + size):
            return b""
        name_at = self._strings_at + (self._symbols[_SYMBOL_WORDS * widest] & 0xFFFFFFFF)
        try:
            name, end, _ = os.pread(self.file, _MAX_NAME_BYTES, name_at).partition(b"\0")
        except (OSError, OverflowError):
            return b""
        return name if end else b""

    def name_at_offset(self, offset: int) -> str:
        """Return the same for an offset in the file, as in /proc/PID/maps."""
        for start, size, address in self._segments:
            if start <= offset < start + size:
                return self.name_at(offset - start + address).decode("ascii", "replace")
        return ""

    def _size(self, index: int) -> int:
        return self._symbols[_SYMBOL_WORDS * index + 2]


def _open(path: str) -> int:
    """Open a regular file for reading; return its descriptor.

    Another file may have the name of a mapped file: a FIFO, which would block. Not by
    `open_regular` of core.model: the program that loads this module may not have the package on its
    path, and would need longer to import it than to read a process.

    Raises:
        OSError: It is none, or cannot be opened.
    """
    if not stat.S_ISREG(os.stat(path).st_mode):  # noqa: PTH116 - as for PTH115
        raise OSError(errno.EINVAL, "no regular file", path)
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    if stat.S_ISREG(os.fstat(file).st_mode):
        return file
    os.close(file)  # another file has its name by now
    raise OSError(errno.EINVAL, "no regular file", path)


def _headers(file: int) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
    """Return the headers of the segments and of the sections of a file; none of another format."""
    header = _read(file, 0, _HEADER_BYTES, most=_HEADER_BYTES)
    if header[: len(_ELF64_LITTLE)] != _ELF64_LITTLE:
        return [], []
    segments_at, sections_at = _OFFSETS.unpack_from(header, _OFFSETS_AT)
    _, segments, size, sections = _COUNTS.unpack_from(header, _COUNTS_AT)
    return (
        _entries(file, segments_at, _SEGMENT, _SEGMENT.size, segments, most=_MAX_SEGMENTS),
        _entries(file, sections_at, _SECTION, size, sections, most=_MAX_SECTIONS),
    )


def _unpack(file: int, at: int, layout: struct.Struct) -> tuple[int, ...]:
    return layout.unpack(_read(file, at, layout.size, most=layout.size))


def _entries(
    file: int, at: int, layout: struct.Struct, size: int, count: int, *, most: int
) -> list[tuple[int, ...]]:
    """Return the entries of a table of a file's header."""
    if count > most or (count and not layout.size <= size <= _MAX_ENTRY_BYTES):
        raise _TooLargeError(count, size)
    data = _read(file, at, size * count, most=_MAX_ENTRY_BYTES * most)
    return [layout.unpack_from(data, size * index) for index in range(count)]


def _read(file: int, at: int, size: int, *, most: int) -> bytes:
    """Return so many bytes of a file at an offset.

    Raises:
        ValueError: It is too many, or the file has not so many.
    """
    if size > most or at + size > os.fstat(file).st_size:
        raise _TooLargeError(at, size)
    data = os.pread(file, size, at) if size else b""
    if len(data) != size:
        raise _TooLargeError(at, size)
    return data


_known: dict[str, SymbolTable] = {}
"""The tables that were read, by path."""


def symbol_table(path: str) -> SymbolTable:
    """Return the functions of a file; none if it has no table, or is gone, broken or [vdso].

    This takes a fraction of a second, once for each file. Files beyond `MAX_ALL_SYMBOLS` count as
    broken: a process may map any number of large ones.
    """
    if path not in _known:
        left = MAX_ALL_SYMBOLS - sum(each.count for each in _known.values())
        try:
            found = SymbolTable.read(path, max_symbols=min(MAX_SYMBOLS, left))
        except _BROKEN:
            found = SymbolTable()
        if found.count and sum(each.count > 0 for each in _known.values()) >= _MAX_FILES:
            os.close(found.file)
            found = SymbolTable()
        _known[path] = found
    return _known[path]


@functools.lru_cache(_MAX_FILES)
def exported_function(path: str, name: str) -> range:
    """Return where an exported function is in a file, as in /proc/PID/maps; empty if unknown.

    It is found by the file's hash table, which takes no time: the loader looks up each function in
    it (https://flapenguin.me/elf-dt-gnu-hash).
    """
    try:
        file = _open(path)
    except OSError:
        return range(0)
    try:
        return _find_exported(file, name.encode())
    except _BROKEN:
        return range(0)
    finally:
        os.close(file)


def _find_exported(file: int, name: bytes) -> range:
    headers, sections = _headers(file)
    by_type = {section[1]: section for section in sections}
    if _GNU_HASH not in by_type or _DYNSYM not in by_type:
        return range(0)
    table_at, symbols = by_type[_GNU_HASH][4], by_type[_DYNSYM]
    buckets, first, words, _ = _unpack(file, table_at, _HASH_HEADER)
    buckets_at = table_at + _HASH_HEADER.size + 8 * words
    hashed = 5381
    for byte in name:
        hashed = (hashed * 33 + byte) & 0xFFFFFFFF
    (index,) = _unpack(file, buckets_at + 4 * (hashed % buckets), _HASH)
    for index in range(index, index + _MAX_ALIKE) if index >= first else ():  # noqa: B020 - from it
        (found,) = _unpack(file, buckets_at + 4 * (buckets + index - first), _HASH)
        if found | 1 == hashed | 1:
            at = symbols[4] + _SYMBOL_BYTES * index
            name_at, _, _, _, address, size = _unpack(file, at, _SYMBOL)
            begins = sections[symbols[6]][4] + name_at
            if _read(file, begins, len(name) + 1, most=_MAX_NAME_BYTES) == name + b"\0":
                return _in_file(headers, address, size)
        if found & 1:  # the last of its bucket
            break
    return range(0)


def _in_file(segments: list[tuple[int, ...]], address: int, size: int) -> range:
    """Return the place in a file of the bytes loaded at an address."""
    for each in segments:
        if each[0] == _PT_LOAD and each[3] <= address < each[3] + each[6]:
            start = address - each[3] + each[2]
            return range(start, start + size)
    return range(0)


def demangled(name: bytes) -> str:
    """Return the readable name of a C++ function; other names are returned unchanged."""
    demangle, free = _demangler()
    pointer = demangle(name, None, None, None)
    if pointer:
        name = ctypes.string_at(pointer)
        free(pointer)
    return name.decode("utf-8", "replace")


@functools.cache
def _demangler() -> tuple[ctypes._NamedFuncPointer, ctypes._NamedFuncPointer]:
    demangle, free = ctypes.CDLL("libstdc++.so.6")["__cxa_demangle"], ctypes.CDLL(None)["free"]
    demangle.argtypes = [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
    demangle.restype, free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
    return demangle, free
