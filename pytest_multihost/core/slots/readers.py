"""Read what a rank has recorded: its operations, its history, which of its threads wait."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from operator import itemgetter
from pathlib import Path

from pytest_multihost.core.model.hazard import Launch, RankRecord
from pytest_multihost.core.model.operation import CallSite, GroupKey, History
from pytest_multihost.core.model.stack import Frame
from pytest_multihost.core.slots.page import (
    ARCHIVED,
    CALL,
    ENDED,
    ENTRIES,
    ENTRY,
    FIRST_WORD,
    FOR_CPU,
    HAVE_HISTORY,
    KINDS,
    RECORD,
    RECORDS,
    RECORDS_AT,
    RING,
    RINGS,
    SINK_AT,
    STRIDE,
    THREAD,
    WAITED,
    WORDS,
    Record,
    archive_path,
    history_path,
    operation_of,
    parse_group,
    read_page,
    read_slots,
    texts_of,
)

__all__ = [
    "archive_path",
    "history_path",
    "plain_calls",
    "read_histories",
    "read_record",
]


# Reads all operations of a rank: those that its slot page still has, and its archive.


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


def plain_calls(page: Path, *, since_s: float) -> tuple[tuple[str, int], ...] | None:
    """Return the groups and sequences of a rank's operations, if there is nothing else to tell.

    That is so if they are all collectives that one thread has launched and waited for. Ranks of
    which these are equal have launched all in one order. It takes a tenth of the time of
    `read_record`.

    Args:
        page: Its slot page.
        since_s: Operations that began earlier are left out.
    """
    data = read_page(page)
    if data is None or archive_path(page).exists():
        return None
    since_ns = since_s * 1e9
    used = [each for each in _used(data[RECORDS_AT:SINK_AT]) if each[0] >= since_ns]
    calls = {(each[2] > 0, each[5] == each[15], each[15], each[11]) for each in used}
    if len(calls) == 0 or len(used) == RECORDS or len({each[2] for each in calls}) > 1:
        return None
    is_plain = all(
        is_waited and is_same_thread and KINDS[kind % FOR_CPU] == "collective"
        for is_waited, is_same_thread, _, kind in calls
    )
    texts = texts_of(data)
    used.sort(key=itemgetter(-1))
    return tuple((texts[each[12]], each[3]) for each in used) if is_plain else None


def _used(data: bytes) -> Iterator[Record]:
    whole = data[: len(data) // STRIDE * STRIDE]
    return (record for record in RECORD.iter_unpack(whole) if record[0])


def _launch(rank: int, record: Record, texts: Mapping[int, str]) -> Launch:
    thread, file, line, function = record[_LAUNCH]
    frame = Frame(texts[file], line, texts[function]) if file else None
    return Launch(rank, record[-1], thread, frame, operation_of(record, texts))


# Reads a rank's history: the last collectives that it has entered in each of its groups.


Entry = tuple[int, int, tuple[int, ...]]
"""Sequence, when it began (ns), and what identifies its call: numbers of texts, line and root."""


def read_histories(page: Path, *, rank: int) -> tuple[History, ...]:
    """Return the histories beside a slot page; empty ones for groups that were not used."""
    data = read_page(page)
    if data is None:
        return ()
    texts = texts_of(data)
    counted = read_slots(page, rank=rank).entered
    found = {key: History(rank, key) for key in counted if key[2].kind in HAVE_HISTORY}
    for key, entries in _rings(history_path(page), texts):
        found[key] = _history(rank, key, entries, texts)
    return tuple(found.values())


def _rings(path: Path, texts: Mapping[int, str]) -> Iterator[tuple[GroupKey, list[Entry]]]:
    """Yield each group with its entries, oldest first; the first is written at index 1."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return
    try:
        for start in range(0, RINGS * RING, RING):
            if not any(os.pread(descriptor, ENTRY.size, start + ENTRY.size)):
                continue
            ring = ENTRY.iter_unpack(os.pread(descriptor, RING, start))
            entries = [
                (sequence, began, (detail, *frame, *CALL.unpack(call)))
                for began, sequence, detail, *frame, call in ring
                if sequence
            ]
            entries.sort()
            yield parse_group(texts[entries[0][2][-3]]), entries
    finally:
        os.close(descriptor)


def _history(rank: int, group: GroupKey, entries: list[Entry], texts: Mapping[int, str]) -> History:
    # Only what has no gap to the last one: the rank may have been writing.
    last = entries[-1][0]
    known = [each for each in entries if each[0] > last - ENTRIES]
    while known[-1][0] - known[0][0] != len(known) - 1:
        del known[0]
    sites = {call: index for index, call in enumerate(dict.fromkeys(each[2] for each in known))}
    return History(
        rank,
        group,
        first=known[0][0],
        sites=tuple(_site(call, texts) for call in sites),
        order=tuple(sites[each[2]] for each in known),
        times_s=tuple(each[1] / 1e9 for each in known),
    )


def _site(call: tuple[int, ...], texts: Mapping[int, str]) -> CallSite:
    detail, file, line, function, name, _, _, _, root = call
    frames = (Frame(texts[file], line, texts[function]),) if file else ()
    return CallSite(texts[name], root if root >= 0 else None, texts[detail], frames)


# Which threads of a rank wait for operations: all that is read of its page, so that it is fast.


def read_waiting(path: Path) -> tuple[bytes, frozenset[int]]:
    """Return a page's counts and records, and the threads that wait for operations; fastest.

    The former are equal in two readings if the rank has written nothing in between.
    """
    try:
        with path.open("rb", buffering=0) as file:
            data = file.read(SINK_AT)
    except OSError:
        data = b""
    if len(data) < SINK_AT:
        return b"", frozenset()
    words = memoryview(data).cast("Q")
    ended = words[FIRST_WORD + ENDED :: WORDS].tolist()
    records = (RECORD.unpack_from(data, RECORDS_AT + i * STRIDE) for i in _zeros(ended))
    threads = (each[THREAD] for each in records if each[0] and each[WAITED])
    return data, frozenset(threads)


def _zeros(values: list[int]) -> Iterator[int]:
    """Yield the places of zeros: of records that are open, of which there are few."""
    at = -1
    with suppress(ValueError):
        while True:
            yield (at := values.index(0, at + 1))
