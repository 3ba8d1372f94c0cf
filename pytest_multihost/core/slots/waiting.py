"""A fast reader of slot pages: which threads of a rank wait for operations."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from pytest_multihost.core.slots.page import (
    ENDED,
    FIRST_WORD,
    RECORD,
    RECORDS_AT,
    SINK_AT,
    STRIDE,
    THREAD,
    WAITED,
    WORDS,
)


def read_waiting(path: Path) -> tuple[bytes, frozenset[int]]:
    """Return a page's counts and records as bytes, and the threads that wait for operations.

    The bytes of two readings are equal if the rank has written nothing in between.
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
    """Yield the indices of zeros: those of the few open records."""
    at = -1
    with suppress(ValueError):
        while True:
            yield (at := values.index(0, at + 1))
