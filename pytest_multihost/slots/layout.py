"""The layout of a slot page: the one place that writer and reader agree on.

A file of fixed size, in native byte order (it never leaves the architecture it was written on):

    header     magic number, number of texts
    counts     one word for each group: its last sequence, and the number of its text
    records    a ring of the last `RECORDS` operations
    sink       one more record, which nobody reads: for what there is no room for
    texts      names, groups, files, functions: a length of two bytes and UTF-8, each written once

Records refer to texts by their number.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import get_args

from pytest_multihost.model.operation import OperationKind

RECORDS = 1024
"""How many operations of a rank are remembered."""

GROUPS = 1024
"""How many groups of a rank are counted."""

HEADER = struct.Struct("<QQ")
"""The magic number, and how many texts there are."""

MAGIC = 0x315453484D  # "MHST1"

RECORD = struct.Struct("<QQQIIIIIIIIIIiiQ")
"""began, ended, waited (ns); sequence, detail; thread, file, line, function; flags; name, kind,
group; peer; root, or the tag of a transfer; its own number."""

CALL = struct.Struct("<IIIii")
"""The part of a record that is the same for all operations of one call: name to root."""

SOURCE_AT = 32
"""Where in a record the thread and its line in the source begin, in bytes."""

FLAGS_AT = 48
ENDED, WAITED = 1, 2
"""Where in a record its second and third time are, in words of eight bytes."""

FAILED, HAS_TIMEOUT, VALUE_SHIFT, TICKS_PER_S = 1, 2, 2, 100
"""Flags: left by an exception, with the number of its text above them; or has a timeout, with that
in ticks above them."""

STRIDE = RECORD.size
COUNTS_AT = HEADER.size
RECORDS_AT = COUNTS_AT + 8 * GROUPS
FIRST_WORD, WORDS = RECORDS_AT // 8, STRIDE // 8
SINK_AT = RECORDS_AT + STRIDE * RECORDS
TEXTS_AT = SINK_AT + STRIDE
TEXT_BYTES = 1 << 18
DETAIL_BYTES = TEXT_BYTES // 2
"""How much of the texts may be details, of which there may be very many."""

SIZE = TEXTS_AT + TEXT_BYTES

NO_RECORD = SINK_AT // 8
"""Where an operation is noted for which there is no room: in the sink."""

KINDS: tuple[OperationKind, ...] = get_args(OperationKind)


def count_at(group: int) -> int:
    """Return where a group's last sequence is, in words of four bytes; behind it: its text."""
    return COUNTS_AT // 4 + 2 * group if group < GROUPS else NO_RECORD * 2


def slots_path(scratch: str | Path, rank: int) -> Path:
    """Return the path of a rank's slot page."""
    return Path(scratch, f"rank-{rank}.slots")
