"""Reads all operations that a rank launched, from its slot page and the archive of that page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from operator import itemgetter
from pathlib import Path

from pytest_multihost.core.model.foreign_bytes import UnreadableError, parsing
from pytest_multihost.core.model.stack import Frame
from pytest_multihost.core.slots.page import (
    ARCHIVED,
    FOR_CPU,
    KINDS,
    RECORD,
    RECORDS,
    RECORDS_AT,
    SINK_AT,
    Record,
    archive_path,
    operation_of,
    read_page,
    texts_of,
    written_size,
)
from pytest_multihost.extensions.hazards.model import Launch, RankRecord

_LAUNCH = slice(15, 19)
"""The fields of a record for the launching call: its thread, file, line and function."""


def read_record(page: Path, *, rank: int) -> RankRecord:
    """Return all operations that a rank launched; none if it has spoilt its page.

    The rank must no longer write to the page.
    """
    with suppress(UnreadableError), parsing("a slot page"):
        return _read_record(page, rank)
    return RankRecord(rank)


def _read_record(page: Path, rank: int) -> RankRecord:
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
    # A full archive loses operations, so the recent ones come after a gap and are not used.
    records = archived if is_full else [*archived, *recent]
    records.sort(key=lambda each: each[-1])
    launches = tuple(_launch(rank, each, texts) for each in records)
    is_lost = len(recent) == RECORDS and not archived and min(each[-1] for each in recent) > 1
    return RankRecord(rank, launches, is_truncated=is_full or is_lost)


def plain_calls(page: Path, *, since_s: float) -> tuple[tuple[str, int], ...] | None:
    """Return the group and sequence number of each operation of a plain rank; otherwise None.

    A rank is plain if all its operations are collectives that one thread launched and waited for.
    Ranks with equal results launched the same operations in the same order. This takes a tenth of
    the time of `read_record`.

    Args:
        since_s: Operations that began earlier are skipped.
    """
    with suppress(UnreadableError), parsing("a slot page"):
        return _plain_calls(page, since_s)
    return None


def _plain_calls(page: Path, since_s: float) -> tuple[tuple[str, int], ...] | None:
    data = read_page(page)
    if data is None or archive_path(page).exists():
        return None
    since_ns = since_s * 1e9
    used = [each for each in _used(data[RECORDS_AT:SINK_AT]) if each[0] >= since_ns]
    if not used:
        return ()
    calls = {(each[2] > 0, each[5] == each[15], each[15], each[11]) for each in used}
    if len(used) == RECORDS or len({each[2] for each in calls}) > 1:
        return None
    is_plain = all(
        is_waited and is_same_thread and KINDS[kind % FOR_CPU] == "collective"
        for is_waited, is_same_thread, _, kind in calls
    )
    texts = texts_of(data)
    used.sort(key=itemgetter(-1))
    return tuple((texts[each[12]], each[3]) for each in used) if is_plain else None


def _used(data: bytes) -> Iterator[Record]:
    return (record for record in RECORD.iter_unpack(data[: written_size(data)]) if record[0])


def _launch(rank: int, record: Record, texts: Mapping[int, str]) -> Launch:
    thread, file, line, function = record[_LAUNCH]
    frame = Frame(texts[file], line, texts[function]) if file else None
    return Launch(rank, record[-1], thread, frame, operation_of(record, texts))


def of_test(record: RankRecord, go_s: float) -> RankRecord:
    """Return the operations launched since the test began, counted by name as points are."""
    counts = Counter[str]()
    launches = []
    for each in record.launches:
        if each.operation.since_s >= go_s:
            counts[each.operation.name] += 1
            launches.append(replace(each, nth=counts[each.operation.name]))
    return replace(record, launches=tuple(launches))
