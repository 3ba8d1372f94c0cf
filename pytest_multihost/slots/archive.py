"""Reads all operations of a rank: those that its slot page still has, and its archive."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from pytest_multihost.model.hazard import Launch, RankRecord
from pytest_multihost.model.stack import Frame
from pytest_multihost.slots.page import (
    ARCHIVED,
    RECORD,
    RECORDS,
    RECORDS_AT,
    SINK_AT,
    STRIDE,
    Record,
    archive_path,
    operation_of,
    read_page,
    texts_of,
)

__all__ = ["archive_path", "read_record"]

_LAUNCH = slice(15, 19)
"""Of a record: thread, file, line and function of the call that launched the operation."""


def read_record(page: Path, *, rank: int) -> RankRecord:
    """Return everything that a rank has launched; it must write no more.

    Args:
        page: Its slot page.
        rank: The rank.
    """
    data = read_page(page)
    if data is None:
        return RankRecord(rank)
    texts = texts_of(data)
    try:
        archive = archive_path(page).read_bytes()
    except OSError:
        archive = b""
    archived, recent = list(_used(archive)), list(_used(data[RECORDS_AT:SINK_AT]))
    is_full = len(archived) >= ARCHIVED
    # What has no room in the archive is lost: the last operations follow upon a gap.
    records = archived if is_full else [*archived, *recent]
    records.sort(key=lambda each: each[-1])
    launches = tuple(_launch(rank, each, texts) for each in records)
    is_lost = len(recent) == RECORDS and not archived and min(each[-1] for each in recent) > 1
    return RankRecord(rank, launches, is_truncated=is_full or is_lost)


def _used(data: bytes) -> Iterator[Record]:
    whole = data[: len(data) // STRIDE * STRIDE]
    return (record for record in RECORD.iter_unpack(whole) if record[0])


def _launch(rank: int, record: Record, texts: Mapping[int, str]) -> Launch:
    thread, file, line, function = record[_LAUNCH]
    frame = Frame(texts[file], line, texts[function]) if file else None
    return Launch(rank, record[-1], thread, frame, operation_of(record, texts))
