"""Bytes that somebody else made choose no size: they are read, or cannot be read."""

from __future__ import annotations

import io
import os
import random
import struct
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

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
from pytest_multihost.core.slots import SlotPage, check_page, parse_group, read_slots, slots_path
from pytest_multihost.core.slots.history import read_histories
from pytest_multihost.core.slots.page import (
    COUNTS_AT,
    GROUP_AT,
    HEADER,
    KIND_AT,
    MAGIC,
    RECORDS_AT,
    SIZE,
    TEXTS_AT,
    read_open_operations,
    shift_times,
)
from pytest_multihost.core.watch.kernel import elf
from pytest_multihost.extensions.engines.attach.world import MAX_FILE, unpack, write_files
from pytest_multihost.extensions.hazards.read_record import read_record
from pytest_multihost.extensions.sweep.saved.formats import Format, problem_of

GB = 1 << 30


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


BOMB = archive({"rank-1.log": bytes(MAX_FILE + 1)})
SOUND = archive({"rank-1.log": b"log", "rank-1.stacks": b""})


@pytest.mark.parametrize(
    "payload",
    [
        pytest.param(BOMB, id="a file that is larger unpacked"),
        pytest.param(b"no archive", id="no archive"),
        pytest.param(SOUND[:60], id="a part of an archive"),
        pytest.param(archive({"rank-0.log": b"x"}), id="a file of another rank"),
        pytest.param(archive({"verdict.json": b"{}"}), id="a file that the controller writes"),
        pytest.param(archive({"../rank-1.log": b"x"}), id="a name with a folder"),
        pytest.param(archive({"x/..": b"x"}), id="the folder above"),
        pytest.param(archive({"rank-01.log": b"x"}), id="another way to write the number"),
        pytest.param(
            archive({"rank-1.log": b"x"}, zipfile.ZIP_LZMA), id="a dictionary of any size"
        ),
        pytest.param(archive({f"rank-1.x{n}": b"" for n in range(21)}), id="too many files"),
        pytest.param(SOUND.replace(b"rank-1.stacks", b"rank-1.log\0\0\0"), id="a name with zeros"),
        pytest.param(SOUND.replace(b"log", b"lag", 1), id="a name that differs in the directory"),
    ],
)
def test_an_archive_of_a_node_has_what_was_asked_for_or_cannot_be_read(
    payload: bytes, tmp_path: Path
) -> None:
    """Neither a size nor a name in it is the node's choice, and nothing is written of it."""
    with pytest.raises(UnreadableError):
        write_files(payload, tmp_path, [1])
    assert {path.name for path in tmp_path.iterdir()} <= {"rank-1.log"} | {
        f"rank-1.x{n}" for n in range(21)
    }


def test_the_same_file_twice_is_no_archive_of_ours() -> None:
    """The second would replace the first after it was checked."""
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as files:
        files.writestr("rank-1.log", b"one")
        with pytest.warns(UserWarning, match="Duplicate"):
            files.writestr("rank-1.log", b"two")
    with pytest.raises(UnreadableError, match="same name"):
        unpack(held.getvalue(), [1])


def test_a_file_is_not_written_through_a_link(tmp_path: Path) -> None:
    """The file that the link leads to stays as it is."""
    precious = tmp_path / "precious"
    precious.write_text("precious")
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "rank-1.log").symlink_to(precious)
    write_files(SOUND, folder, [1])
    assert precious.read_text() == "precious"
    assert (folder / "rank-1.log").read_bytes() == b"log"


def test_sound_archives_are_read(tmp_path: Path) -> None:
    """An empty one, one without files, and one with a log of the longest size."""
    assert unpack(b"", [1]) == {}
    assert unpack(archive({}), [1]) == {}
    assert unpack(SOUND, [0, 1]) == {"rank-1.log": b"log", "rank-1.stacks": b""}
    long = archive({"rank-1.log": bytes(MAX_FILE)})
    write_files(long, tmp_path, [1])
    assert (tmp_path / "rank-1.log").stat().st_size == MAX_FILE


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
        (b"PK\x03\x04" + b"PK\x01\x02" * 20_000, "zip", "is no whole archive"),
        (archive({"a": b"x" * 100})[:80], "zip", "is no whole archive"),
        (archive({"a": b"x" * 100}), "zip", ""),
        (struct.pack("<Q", 4_000_000) + b"[" * 4_000_000, "safetensors", "cannot be read"),
        (struct.pack("<Q", 2) + b"[]", "safetensors", "cannot be read"),
        (b"[" * 3_000_000, "json", ""),
        (b"[" * 100_000, "json", "cannot be read"),
        (b"[1]", "json", ""),
    ],
)
def test_saved_files_of_other_formats_cost_no_memory(
    content: bytes, form: Format, problem: str
) -> None:
    """Those with countless values count as loadable, like very large ones."""
    assert problem in told(content, form)


def test_a_literal_is_read() -> None:
    """A sound one, and one of the longest length."""
    assert read_literal(b"{'a': (1, 2)}") == {"a": (1, 2)}
    assert read_literal(b"7".ljust(foreign_bytes.MAX_LITERAL)) == 7
    with pytest.raises(UnreadableError, match="65537 bytes"):
        read_literal(b"7".ljust(foreign_bytes.MAX_LITERAL + 1))


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


@pytest.fixture
def page(tmp_path: Path) -> bytearray:
    """The bytes of a page with one operation."""
    made = SlotPage.create(slots_path(tmp_path / "..", random.randrange(10**9)))
    call = made.call("all_reduce", "collective", made.group((0, 1)))
    made.begin(call, 5_000_000_000, 7, (0, 0, 0))
    content = made.path.read_bytes()
    made.path.unlink()
    return bytearray(content)


def _texts(page: bytearray) -> None:
    HEADER.pack_into(page, 0, MAGIC, 0xFFFFFFFF)


def _text_size(page: bytearray) -> None:
    struct.pack_into("<QQ", page, 0, MAGIC, 131_000)
    page[TEXTS_AT:] = b"\xff" * (SIZE - TEXTS_AT)


def _kind(page: bytearray) -> None:
    struct.pack_into("<I", page, RECORDS_AT + KIND_AT, 200)


def _group(text: bytes) -> Callable[[bytearray], None]:
    def change(page: bytearray) -> None:
        HEADER.pack_into(page, 0, MAGIC, 1)
        page[TEXTS_AT:] = (
            struct.pack("<H", len(text)) + text + bytes(SIZE - TEXTS_AT - 2 - len(text))
        )
        struct.pack_into("<I", page, RECORDS_AT + GROUP_AT, 0)

    return change


def _longer(page: bytearray) -> None:
    page += b"x"


@pytest.mark.parametrize(
    "spoil",
    [
        _texts,
        _text_size,
        _kind,
        _longer,
        _group(b"7"),
        _group(b'[[[0, 100000000000]], 0, "runtime"]'),
        _group(b'[[["a", "b"]], 0, "runtime"]'),
        _group(b'[[[0, 1]], "x", "runtime"]'),
        _group(b'[[[0, 1e999]], 0, "runtime"]'),
        _group(b"{}"),
    ],
)
def test_a_page_that_its_rank_has_spoilt_is_no_page(
    page: bytearray, spoil: Callable[[bytearray], None], tmp_path: Path
) -> None:
    """The watchdog goes on without it; a node that sends one has sent what cannot be read."""
    spoil(page)
    with pytest.raises(UnreadableError):
        check_page(bytes(page))
    path = slots_path(tmp_path, 0)
    path.write_bytes(page)
    read_slots(path, rank=0)
    read_open_operations(path, rank=0)
    read_histories(path, rank=0)
    read_record(path, rank=0)


def test_a_sound_page_passes(page: bytearray, tmp_path: Path) -> None:
    """Also one that is not whole yet, one without records, and one of a thousand ranks."""
    check_page(bytes(page))
    check_page(bytes(page[:1000]))
    check_page(b"")
    empty = SlotPage.create(tmp_path / "rank-0.slots")
    empty.group(tuple(range(1000)))
    check_page(empty.path.read_bytes())
    slots_path(tmp_path, 1).write_bytes(page)
    assert [each.name for each in read_slots(slots_path(tmp_path, 1), rank=1).recent] == [
        "all_reduce"
    ]
    assert shift_times(bytes(page), 7) != bytes(page)


def test_a_group_has_as_many_ranks_as_a_world_may_have() -> None:
    """A text that was cut has no members; one of ten thousand ranks has them all."""
    assert len(parse_group('[[[0, 9999]], 0, "runtime"]')[0]) == 10_000
    assert parse_group("[[[0, 99")[0] == ()
    assert parse_group("")[0] == ()
    with pytest.raises(UnreadableError):
        parse_group('[[[0, 10000]], 0, "runtime"]')


def test_a_count_beyond_a_page_is_not_followed(page: bytearray) -> None:
    """The number of a text may be one that the page does not have: it is empty."""
    struct.pack_into("<II", page, COUNTS_AT + 8, 1, 60_000)
    check_page(bytes(page))
