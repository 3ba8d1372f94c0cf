"""Checks whether a file can be loaded, as far as its format shows without the library itself.

Nothing is unpickled or executed. A file of torch is a zip archive whose parts have checksums, and
so is an npz file; safetensors and npy files state in a header how long they are.
"""

from __future__ import annotations

import math
import os
import pickletools
import re
import struct
import zipfile
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any, BinaryIO, Literal
from typing import cast as typed

from pytest_multihost.core.model.foreign_bytes import (
    MAX_LITERAL,
    UnreadableError,
    open_archive,
    parsing,
    read_literal,
    read_member,
)
from pytest_multihost.core.model.json_values import has_many_values, parse_foreign, parse_json

Format = Literal["zip", "npy", "safetensors", "json", "text", "other"]
"""The format of a file by its first bytes, or by its name."""

MOST_BYTES = 64 << 20
"""The largest file whose content is read, unpacked."""

MOST_TEXT = 4096
"""The largest file that counts as a text."""

_MOST_HEADER = 16 << 20
_MOST_OPERATIONS = 1_000_000
"""How many operations of a pickle are read: a second's."""

_ITEM = re.compile(r"[<>|=]?([a-zA-Z])(\d+)")
_NPY_MAGIC, _ZIP_MAGIC = b"\x93NUMPY", b"PK\x03\x04"
_NPY_NEW = 2
_UNICODE_BYTES = 4
_PICKLE = "data.pkl"


def format_of(name: str, begin: bytes, size: int) -> Format:
    """Return the format of a file.

    Args:
        begin: Its first bytes; of a small file, all of them.
    """
    if begin.startswith(_ZIP_MAGIC):
        return "zip"
    if begin.startswith(_NPY_MAGIC):
        return "npy"
    if name.endswith(".safetensors"):
        return "safetensors"
    if name.endswith(".json"):
        return "json"
    try:
        is_text = size <= MOST_TEXT and "".join(begin.decode("utf-8").split()).isprintable()
    except UnicodeDecodeError:
        is_text = False
    return "text" if is_text else "other"


def problem_of(file: BinaryIO, form: Format) -> str:
    """Return why a file cannot be loaded as its format, as a clause; empty if it can.

    Files of other formats and files beyond `MOST_BYTES` count as loadable.
    """
    check = _CHECKS.get(form)
    size = os.fstat(file.fileno()).st_size
    if check is None or size > MOST_BYTES:
        return ""
    if size == 0:
        return "is empty"
    try:
        with parsing("a file"):
            file.seek(0)
            return check(file, size)
    except UnreadableError:
        return "is not a complete archive" if form == "zip" else "cannot be read in its format"


def _zip(file: BinaryIO, _size: int) -> str:
    with open_archive(file) as archive:
        if sum(each.file_size for each in archive.infolist()) > MOST_BYTES:
            return ""
        broken = archive.testzip()
        if broken:
            return f"is an archive whose part {broken} is broken"
        lacking = next(_lacking_of_torch(archive), None)
    return f"is an archive without {lacking}" if lacking else ""


def _lacking_of_torch(archive: zipfile.ZipFile) -> Iterator[str]:
    """Yield the parts that a file of torch needs and lacks.

    It needs the pickle and, for each storage that the pickle names, a part with its numbers. A key
    of a storage is a text of digits, in the tuple of a persistent id.
    """
    names = {name.partition("/")[2]: name for name in archive.namelist()}
    if not {"version", _PICKLE} & names.keys():
        return
    if _PICKLE not in names:
        yield _PICKLE
        return
    if archive.getinfo(names[_PICKLE]).file_size > _MOST_HEADER:
        return
    texts: list[str] = []
    data = read_member(archive, archive.getinfo(names[_PICKLE]), max_bytes=_MOST_HEADER)
    for operation, value, _ in islice(pickletools.genops(data), _MOST_OPERATIONS):
        if operation.name == "MARK":
            texts.clear()
        elif isinstance(value, str):
            texts.append(value)
        elif operation.name == "BINPERSID":
            keys = (text for text in texts if text.isdigit())
            yield from (f"data/{key}" for key in keys if f"data/{key}" not in names)


def _npy(file: BinaryIO, size: int) -> str:
    magic = file.read(8)
    if not magic.startswith(_NPY_MAGIC):
        return "does not begin as an npy file"
    length = struct.Struct("<I" if magic[6] >= _NPY_NEW else "<H")
    (count,) = length.unpack(file.read(length.size))
    header = read_literal(file.read(min(count, MAX_LITERAL + 1)))
    if not isinstance(header, dict):
        return "cannot be read in its format"
    item = _ITEM.fullmatch(str(header["descr"]))
    if item is None or item[1] == "O":
        return ""
    item_size = int(item[2]) * (_UNICODE_BYTES if item[1] == "U" else 1)
    shape = header["shape"]
    if not isinstance(shape, tuple) or any(type(each) is not int or each < 0 for each in shape):
        return "cannot be read in its format"
    needed = file.tell() + item_size * math.prod(shape)
    return f"has {size} bytes of {needed}" if size < needed else ""


def _safetensors(file: BinaryIO, size: int) -> str:
    (count,) = struct.unpack("<Q", file.read(8))
    if count > min(size, _MOST_HEADER):
        return f"is cut off in its header, at {size} bytes"
    header = parse_foreign(file.read(count))
    if not isinstance(header, dict):
        return "cannot be read in its format"
    tensors = [typed("Any", each) for name, each in header.items() if name != "__metadata__"]
    needed = 8 + count + max((each["data_offsets"][1] for each in tensors), default=0)
    return f"has {size} bytes of {needed}" if size != needed else ""


def _json(file: BinaryIO, _size: int) -> str:
    data = file.read()
    if not has_many_values(data):
        parse_json(data)
    return ""


_CHECKS: Mapping[Format, Callable[[BinaryIO, int], str]] = {
    "zip": _zip,
    "npy": _npy,
    "safetensors": _safetensors,
    "json": _json,
}
