"""Bytes that somebody else made choose no size: they are read, or cannot be read."""

from __future__ import annotations

import io
import struct
import tempfile
import zipfile
from collections.abc import Mapping

import pytest

from pytest_multihost.core.model import foreign_bytes
from pytest_multihost.core.model.foreign_bytes import (
    UnreadableError,
    open_archive,
    parsing,
    read_at,
    read_literal,
    read_member,
)


def archive(files: Mapping[str, bytes], kind: int = zipfile.ZIP_DEFLATED) -> bytes:
    """Return a zip archive."""
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w", kind) as written:
        for name, data in files.items():
            written.writestr(name, data)
    return held.getvalue()


@pytest.mark.parametrize(
    "raised",
    [MemoryError(), RecursionError("deep"), struct.error("short"), OverflowError(), KeyError("x")],
    ids=repr,
)
def test_whatever_a_parser_raises_is_one_error(raised: Exception) -> None:
    """A caller has one error to handle, and none escapes it."""
    why = f"the page: {type(raised).__name__}"
    with pytest.raises(UnreadableError, match=why), parsing("the page"):
        raise raised


def test_an_error_that_is_no_parsers_passes() -> None:
    """A full disk and Ctrl-C are not the fault of who made the bytes."""
    for passed in (OSError("disk"), KeyboardInterrupt()):
        with pytest.raises(type(passed)), parsing("the page"):
            raise passed


def test_a_read_of_a_size_that_nobody_has_reads_nothing() -> None:
    """A size of 2 GB asks the kernel for nothing, and one that is fine is read."""
    with tempfile.TemporaryFile() as file:
        file.write(b"content")
        file.flush()
        assert read_at(file.fileno(), 7, 0) == b"content"
        for size in (0, -1, foreign_bytes.MAX_READ + 1, 1 << 31, 1 << 80):
            assert read_at(file.fileno(), size, 0) == b""
        assert read_at(file.fileno(), 7, 1 << 80) == b""


def test_an_archive_with_countless_files_is_not_listed() -> None:
    """Each listed file takes a kilobyte of memory."""
    data = archive({"a": b"x"})
    entry = data[data.index(b"PK\x01\x02") : data.index(b"PK\x05\x06")]
    with (
        pytest.raises(UnreadableError, match="more than 10000 files"),
        open_archive(io.BytesIO(data[:40] + entry * 200_000)),
    ):
        pass


def test_a_member_has_no_more_bytes_than_are_read() -> None:
    """A file of a gigabyte costs nothing but its listing."""
    data = archive({"a": bytes(10_000)})
    with open_archive(io.BytesIO(data)) as found:
        assert len(read_member(found, found.infolist()[0], max_bytes=10_000)) == 10_000
        with pytest.raises(UnreadableError, match="10000 bytes"):
            read_member(found, found.infolist()[0], max_bytes=9_999)


def test_a_literal_is_read() -> None:
    """A sound one, and one of the longest length."""
    assert read_literal(b"{'a': (1, 2)}") == {"a": (1, 2)}
    assert read_literal(b"7".ljust(foreign_bytes.MAX_LITERAL)) == 7
    with pytest.raises(UnreadableError, match="65537 bytes"):
        read_literal(b"7".ljust(foreign_bytes.MAX_LITERAL + 1))
