"""Reads a rank's history: the last collectives that it has entered in each of its groups."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from pytest_multihost.core.model.foreign_bytes import UnreadableError, parsing
from pytest_multihost.core.model.history import CallSite, History
from pytest_multihost.core.model.operation import GroupKey
from pytest_multihost.core.model.stack import Frame
from pytest_multihost.core.slots.page import (
    CALL,
    ENTRIES,
    ENTRY,
    HAVE_HISTORY,
    RING,
    RINGS,
    entered_of,
    groups_of,
    history_path,
    parse_group,
    read_page,
    texts_of,
)

Entry = tuple[int, int, tuple[int, ...]]
"""Sequence, when it began (ns), and the identity of its call: numbers of texts, line and root."""


def read_histories(page: Path, *, rank: int) -> tuple[History, ...]:
    """Return the histories beside a slot page; empty ones for groups that were not used.

    There are none if the page is broken.
    """
    with suppress(UnreadableError), parsing("a slot page"):  # its rank may have spoilt it
        return _read_histories(page, rank)
    return ()


def _read_histories(page: Path, rank: int) -> tuple[History, ...]:
    data = read_page(page)
    if data is None:
        return ()
    texts = texts_of(data)
    counted = entered_of(data, texts)
    found = {key: History(rank, key) for key in counted if key[2].kind in HAVE_HISTORY}
    for key, entries in _rings(history_path(page), texts, most=groups_of(data)):
        found[key] = _history(rank, key, entries, texts)
    return tuple(found.values())


def _rings(
    path: Path, texts: Mapping[int, str], *, most: int
) -> Iterator[tuple[GroupKey, list[Entry]]]:
    """Yield each group with its entries, oldest first; the first is written at index 1."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return
    try:
        for start in range(0, min(RINGS, most) * RING, RING):
            if not any(os.pread(descriptor, ENTRY.size, start + ENTRY.size)):
                continue
            ring = _used(os.pread(descriptor, RING, start))
            entries = [
                (sequence, began, (detail, *frame, *CALL.unpack(call)))
                for began, sequence, detail, *frame, call in ENTRY.iter_unpack(ring)
                if sequence
            ]
            entries.sort()
            yield parse_group(texts[entries[0][2][-3]]), entries
    finally:
        os.close(descriptor)


def _used(ring: bytes) -> bytes:
    """Return a ring up to its last entry that is used: mostly a small part of it."""
    count = -(-len(ring.rstrip(b"\0")) // ENTRY.size)
    return ring[: count * ENTRY.size]


def _history(rank: int, group: GroupKey, entries: list[Entry], texts: Mapping[int, str]) -> History:
    # Keep only entries without a gap to the last one, because the rank may have been writing.
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
