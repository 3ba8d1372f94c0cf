"""Reads bytes that another program made, with a limit for each size that these bytes choose.

A count in a file, in a message or in the memory of another process may be any number, and so may
the size to which an archive unpacks. Here alone such bytes are unpacked: whatever is wrong with
them becomes one error, and so does a lack of memory.
"""

from __future__ import annotations

import ast
import contextlib
import errno
import os
import struct
import zipfile
import zlib
from collections.abc import Iterator
from typing import BinaryIO

MAX_READ = 16 << 20
"""The most bytes that one read takes from a place that another program names."""

MAX_LITERAL = 1 << 16
"""The most bytes of a text that is parsed as a literal of Python's."""

MAX_MEMBERS = 10_000
"""The most files in an archive."""

_ENTRY = b"PK\x01\x02"
_KINDS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_PIECE = 1 << 20


class UnreadableError(ValueError):
    """Bytes that another program made cannot be read; the text says why."""


PARSE_ERRORS = (
    ValueError,  # also of UTF-8, JSON and an UnreadableError
    TypeError,
    LookupError,
    AttributeError,
    ArithmeticError,
    EOFError,
    SyntaxError,
    RuntimeError,  # also NotImplementedError and RecursionError
    MemoryError,
    struct.error,
    zlib.error,
    zipfile.BadZipFile,
)
"""The exceptions that a parser may raise because of its input."""

_BAD_OFFSETS = (errno.EINVAL, errno.EOVERFLOW)
"""The errors of a system call for an offset that no file has."""


@contextlib.contextmanager
def parsing(what: str) -> Iterator[None]:
    """Turn anything that a parser raises because of its input into one error.

    Args:
        what: The input, as the subject of the error.

    Raises:
        UnreadableError: The block could not read it.
    """
    try:
        yield
    except UnreadableError as error:
        raise UnreadableError(f"{what}: {error}") from error
    except (*PARSE_ERRORS, OSError) as error:
        if isinstance(error, OSError) and error.errno not in _BAD_OFFSETS:
            raise  # the bytes are not the cause
        why = " ".join(str(error).split())[:200]
        raise UnreadableError(f"{what}: {type(error).__name__}{': ' * bool(why)}{why}") from error


def read_at(descriptor: int, size: int, at: int) -> bytes:
    """Return at most `size` bytes of a file at an offset; none if they cannot be read.

    A size above `MAX_READ` is not read: it is not to be believed.
    """
    if not 0 < size <= MAX_READ:
        return b""
    try:
        return os.pread(descriptor, size, at)
    except (OSError, OverflowError, MemoryError):
        return b""


def read_literal(text: bytes) -> object:
    """Return the value of a literal of Python's.

    Raises:
        UnreadableError: It is none, or too long.
    """
    if len(text) > MAX_LITERAL:
        raise UnreadableError(f"it has {len(text)} bytes, and {MAX_LITERAL} are read at most")
    with parsing("no literal"):
        return ast.literal_eval(text.decode("latin-1"))


@contextlib.contextmanager
def open_archive(file: BinaryIO, *, max_members: int = MAX_MEMBERS) -> Iterator[zipfile.ZipFile]:
    """Open a zip archive. Errors of the block become those of the archive.

    Raises:
        UnreadableError: It is none, or has more files, files with the same name, or files whose
            compression may take any amount of memory.
    """
    with parsing("not a complete archive"):
        _check_entries(file, max_members)
        with zipfile.ZipFile(file) as archive:
            names = archive.namelist()
            if len(set(names)) < len(names):
                raise UnreadableError("two of its files have the same name")
            if any(each.compress_type not in _KINDS for each in archive.infolist()):
                raise UnreadableError("its files are compressed in another way than by deflate")
            yield archive


def _check_entries(file: BinaryIO, most: int) -> None:
    """Check the number of files before any is listed: each takes a kilobyte of memory."""
    found, last = 0, b""
    file.seek(0)
    while piece := file.read(_PIECE):
        found += (last + piece).count(_ENTRY)
        last = piece[1 - len(_ENTRY) :]
        if found > most:
            raise UnreadableError(f"it has more than {most} files")
    file.seek(0)


def read_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo, *, max_bytes: int) -> bytes:
    """Return the content of a file of an archive.

    Raises:
        UnreadableError: It has more bytes than `max_bytes`, or than the archive says.
    """
    if member.file_size > max_bytes:
        why = f"{member.filename[:100]!r} has {member.file_size} bytes, and {max_bytes} are read"
        raise UnreadableError(f"{why} at most")
    with parsing(repr(member.filename[:100])), archive.open(member) as file:
        return file.read(max_bytes)
