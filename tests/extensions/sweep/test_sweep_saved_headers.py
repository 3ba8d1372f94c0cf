"""A file that a test saved may have any header: it costs neither the sweep nor memory."""

from __future__ import annotations

import io
import struct
import tempfile
import zipfile
from collections.abc import Mapping

import pytest

from pytest_multihost.extensions.sweep.saved.formats import Format, problem_of

pytestmark = pytest.mark.unit


def archive(files: Mapping[str, bytes], kind: int = zipfile.ZIP_DEFLATED) -> bytes:
    """Return a zip archive."""
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w", kind) as written:
        for name, data in files.items():
            written.writestr(name, data)
    return held.getvalue()


def npy(header: bytes, *, data: bytes = b"", version: int = 2) -> bytes:
    """Return an npy file."""
    length = struct.pack("<I" if version > 1 else "<H", len(header))
    return b"\x93NUMPY" + bytes((version, 0)) + length + header + data


HEADER_OF_TWO = b"{'descr': '<f8', 'fortran_order': False, 'shape': (2,), }"


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (npy(b"-" * 200_000 + b"1"), "cannot be read"),
        (npy(b"-" * 60_000 + b"1"), "cannot be read"),
        (npy(b"(" * 60_000), "cannot be read"),
        (npy(b"[" * 150), "cannot be read"),
        (npy(b"{'descr': '<f8', 'shape': (1000000000, 'a')}"), "cannot be read"),
        (npy(b"{'descr': '<f8', 'shape': (1000000000, [0])}"), "cannot be read"),
        (npy(b"{'descr': '<f8', 'shape': (" + b"9" * 5000 + b",)}"), "cannot be read"),
        (npy(b"{'descr': '<f8', 'shape': (-1,)}"), "cannot be read"),
        (npy(b"7"), "cannot be read"),
        (npy(b"")[:9], "cannot be read"),
        (npy(b"{'descr': '<f8', 'shape': (2,)}"), "bytes of"),
        (npy(HEADER_OF_TWO, data=bytes(16)), ""),
        (npy(HEADER_OF_TWO, data=bytes(16), version=1), ""),
        (npy(HEADER_OF_TWO.ljust(60_000) + b"\n", data=bytes(16)), ""),
        (npy(b"{'descr': [('a', '<f8')], 'shape': (2,)}"), ""),
    ],
)
def test_the_header_of_an_array_is_a_short_literal(content: bytes, problem: str) -> None:
    """Its depth, its length and its numbers cost neither the sweep nor memory."""
    assert problem in told(content, "npy")
    assert bool(problem) == bool(told(content, "npy"))


def told(content: bytes, form: Format) -> str:
    """Return why a file with this content cannot be loaded."""
    with tempfile.TemporaryFile() as file:
        file.write(content)
        file.flush()
        return problem_of(file, form)


@pytest.mark.parametrize(
    ("content", "form", "problem"),
    [
        (b"PK\x03\x04" + b"PK\x01\x02" * 20_000, "zip", "is not a complete archive"),
        (archive({"a": b"x" * 100})[:80], "zip", "is not a complete archive"),
        (archive({"a": b"x" * 100}), "zip", ""),
        (struct.pack("<Q", 4_000_000) + b"[" * 4_000_000, "safetensors", "cannot be read"),
        (struct.pack("<Q", 2) + b"[]", "safetensors", "cannot be read"),
        (b"[" * 3_000_000, "json", ""),
        (b"[" * 100_000, "json", "cannot be read"),
        (b"[1]", "json", ""),
    ],
    # An archive holds the time at which it was made, so its bytes are no name.
    ids=[
        "many entries",
        "archive that is cut off",
        "archive",
        "long header",
        "short header",
        "long list",
        "deep list",
        "list",
    ],
)
def test_saved_files_of_other_formats_cost_no_memory(
    content: bytes, form: Format, problem: str
) -> None:
    """Those with countless values count as loadable, like very large ones."""
    assert problem in told(content, form)
