"""Read slot pages, while their ranks write them, or are stopped, or are dead."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

from pytest_multihost.model.operation import GroupKey, Operation, Operations
from pytest_multihost.model.stack import Frame
from pytest_multihost.slots import layout
from pytest_multihost.slots.layout import FIRST_WORD, RECORDS, STRIDE, WORDS

_READS = 20
"""How often a record is read that its rank may be writing, before it is taken as it is."""

Record = tuple[int, ...]
"""The fields of `layout.RECORD`."""


def read_slots(path: Path, *, rank: int) -> Operations:
    """Return what is on the slot page at `path`; nothing where there is none."""
    data = _read(path)
    if data is None:
        return Operations(rank)
    again = path.read_bytes()
    records = list(_stable_records(data, again, path))
    texts = _texts(path.read_bytes())  # after the records: each text is there before its number is
    return _operations(rank, records, again, texts)


def _read(path: Path) -> bytes | None:
    """Return a page's content; None where there is none, or no whole one."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    is_whole = len(data) >= layout.SIZE and layout.HEADER.unpack_from(data)[0] == layout.MAGIC
    return data if is_whole else None


def shift_times(page: bytes, by_ns: int) -> bytes:
    """Return a copy of a page from another machine with its times moved to our clock."""
    if not by_ns or len(page) < layout.SIZE:
        return page
    shifted = bytearray(page)
    words = memoryview(shifted)[: layout.SINK_AT].cast("Q")
    for record in range(FIRST_WORD, len(words), WORDS):
        for word in range(record, record + 3):  # began, ended, waited
            if words[word] > 1:  # neither empty nor the mark of a record that may be used
                words[word] = max(2, words[word] + by_ns)
    return bytes(shifted)


def read_open_operations(path: Path, *, rank: int) -> tuple[Operations, float]:
    """Return quickly what a rank has open, and when it last began, awaited or ended anything."""
    data = _read(path)
    if data is None:
        return Operations(rank), 0.0
    words = memoryview(data[: layout.SINK_AT]).cast("Q")
    began, ended, waited = (words[FIRST_WORD + each :: WORDS].tolist() for each in range(3))
    last_s = max(*began, *ended, *waited) / 1e9
    ats = [layout.RECORDS_AT + i * STRIDE for i in range(RECORDS) if began[i] and not ended[i]]
    texts = _texts(data) if ats or any(words[layout.COUNTS_AT // 8 : FIRST_WORD]) else []
    records = [layout.RECORD.unpack_from(data, at) for at in ats]
    return _operations(rank, records, data, texts), last_s


def _texts(data: bytes) -> list[str]:
    texts, at = [], layout.TEXTS_AT
    for _ in range(layout.HEADER.unpack_from(data)[1]):
        (size,) = struct.unpack_from("<H", data, at)
        texts.append(data[at + 2 : at + 2 + size].decode("utf-8", "backslashreplace"))
        at += 2 + size
    return texts


def _text(texts: Sequence[str], number: int) -> str:
    """Return a text; one that was written while the page was read is empty."""
    return texts[number] if number < len(texts) else ""


def _stable_records(data: bytes, again: bytes, path: Path) -> Iterator[Record]:
    """Yield each record in use, read until twice alike: its rank may be writing it."""
    for at in range(layout.RECORDS_AT, layout.SINK_AT, STRIDE):
        one, two = data[at : at + STRIDE], again[at : at + STRIDE]
        for _ in range(_READS):
            if one == two:
                break
            with path.open("rb", buffering=0) as file:
                one, two = two, os.pread(file.fileno(), STRIDE, at)
        if (record := layout.RECORD.unpack(two))[0]:
            yield record


def _group(text: str) -> GroupKey:
    """Read a group; one whose text was cut, or for which there was no room, has no members."""
    try:
        spans, ordinal, scope = json.loads(text)
    except ValueError:
        return (), 0, text
    ranks = tuple(rank for first, last in spans for rank in range(first, last + 1))
    return ranks, ordinal, scope


def _operations(
    rank: int, records: Sequence[Record], data: bytes, texts: Sequence[str]
) -> Operations:
    in_order = sorted(records, key=lambda record: record[-1])
    recent = tuple(_operation(each, texts) for each in in_order)
    return Operations(rank, recent, dict(_entered(data, texts)))


def _operation(record: Record, texts: Sequence[str]) -> Operation:
    began, ended, waited, sequence, detail, thread, file, line, function, flags = record[:10]
    name, kind, group, peer, root = record[10:15]
    ranks, ordinal, scope = _group(_text(texts, group))
    value = flags >> layout.VALUE_SHIFT
    is_transfer = layout.KINDS[kind] == "transfer"
    return Operation(
        name=_text(texts, name),
        kind=layout.KINDS[kind],
        group=ranks,
        ordinal=ordinal,
        scope=scope,
        sequence=sequence,
        peer=peer if peer >= 0 else None,
        tag=root if is_transfer and root >= 0 else 0,
        root=root if root >= 0 and not is_transfer else None,
        detail=_text(texts, detail),
        since_s=began / 1e9,
        ended_s=ended / 1e9 if ended else None,
        waited_s=waited / 1e9 if waited else None,
        failed=bool(flags & layout.FAILED),
        error=_text(texts, value) if flags & layout.FAILED else "",
        timeout_s=(flags >> layout.VALUE_SHIFT) / layout.TICKS_PER_S
        if flags & layout.HAS_TIMEOUT
        else None,
        thread=thread,
        frame=Frame(_text(texts, file), line, _text(texts, function)) if file else None,
    )


def _entered(data: bytes, texts: Sequence[str]) -> Iterator[tuple[GroupKey, int]]:
    words = memoryview(data)[layout.COUNTS_AT : layout.RECORDS_AT].cast("Q").tolist()
    for word in filter(None, words):  # few of them are in use
        yield _group(_text(texts, word >> 32)), word & 0xFFFFFFFF
