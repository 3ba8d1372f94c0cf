"""A slot page that its rank, or another machine, has spoilt is no page."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

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
from pytest_multihost.testing import UnreadableError


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
