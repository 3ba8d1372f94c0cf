"""A library that another user's process has mapped states no size that is believed."""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping
from pathlib import Path

import pytest

from pytest_multihost.core.watch.kernel import elf

GB = 1 << 30


def elf_file(**changes: int) -> bytes:
    """Return an ELF file with one function, `hello`, at 0x10 to 0x20."""
    symbols_at, strings_at, size = 64 + 56 + 3 * 64, 64 + 56 + 3 * 64 + 48, 48
    head = bytearray(64)
    head[:6] = b"\x7fELF\x02\x01"
    struct.pack_into("<QQ", head, 32, 64, changes.get("sections_at", 64 + 56))
    counts = 56, changes.get("segments", 1), changes.get("section_size", 64)
    struct.pack_into("<HHHH", head, 54, *counts, changes.get("sections", 3))
    segment = struct.pack("<IIQQQQQQ", 1, 0, 0, 0, 0, 1 << 20, 1 << 20, 0)
    where = changes.get("symbols_at", symbols_at), changes.get("symbols_size", size)
    link = changes.get("link", 2)
    sections = struct.pack("<IIQQQQIIQQ", *[0] * 10)
    sections += struct.pack("<IIQQQQIIQQ", 0, 2, 0, 0, *where, link, 0, 8, 24)
    strings = changes.get("strings_at", strings_at)
    sections += struct.pack("<IIQQQQIIQQ", 0, 3, 0, 0, strings, 7, 0, 0, 1, 0)
    symbol = struct.pack("<IBBHQQ", changes.get("name", 1), 2, 0, 1, changes.get("address", 16), 16)
    return bytes(head) + segment + sections + bytes(24) + symbol + b"\0hello\0"


@pytest.mark.parametrize(
    "changes",
    [
        {"symbols_size": 8 * GB},
        {"symbols_size": 1 << 63},
        {"symbols_at": 1 << 63},
        {"symbols_size": 47},
        {"sections": 65_535},
        {"section_size": 0},
        {"section_size": 65_535},
        {"sections_at": 1 << 62},
        {"segments": 65_535},
        {"link": 200},
        {"address": 1 << 50},
        {"strings_at": 1 << 63},
        {"name": (1 << 32) - 1},
    ],
    ids=str,
)
def test_a_library_states_no_size_that_is_believed(
    changes: Mapping[str, int], tmp_path: Path
) -> None:
    """A sparse file may state any: its functions have no names then."""
    path = tmp_path / "lib.so"
    path.write_bytes(elf_file(**changes))
    os.truncate(path, 8 * GB)
    assert elf.symbol_table(str(path)).name_at_offset(20) == ""
    assert not elf.exported_function(str(path), "hello")


def test_a_sound_library_has_names(tmp_path: Path) -> None:
    """Also one that grows, or becomes shorter, after it was read: that ends no process."""
    path = tmp_path / "lib.so"
    path.write_bytes(elf_file())
    table = elf.symbol_table(str(path))
    assert table.name_at_offset(20) == "hello"
    assert table.name_at_offset(40) == ""
    os.truncate(path, 10)
    assert table.name_at_offset(20) == ""


def test_all_libraries_together_have_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process may map thousands of large ones, each of which takes a tenth of a second."""
    monkeypatch.setattr(elf, "_known", {})
    monkeypatch.setattr(elf, "MAX_ALL_SYMBOLS", 5)
    for name in "abc":
        (tmp_path / name).write_bytes(elf_file())
    found = [elf.symbol_table(str(tmp_path / name)).name_at_offset(20) for name in "abc"]
    assert found == ["hello", "hello", ""]
