"""The slot page: shared memory in which a rank keeps what it is doing with other ranks.

A rank writes it at each operation, in well under a microsecond; the controller reads it whenever
it likes: while the rank holds the GIL, is stopped, or is dead. So it is a file of fixed size that
both have mapped, in native byte order (it never leaves the architecture it was written on):

    header     magic number, number of texts
    counts     one word for each group: its last sequence, and the number of its text
    records    a ring of the last `RECORDS` operations
    sink       one more record, which nobody reads: for what there is no room for
    texts      names, groups, files, functions: a length of two bytes and UTF-8, each written once

Records refer to texts by their number. They are a ring: the last `RECORDS` operations, except that
an open one is never overwritten.

Nothing is locked but the table of texts: a lock in shared memory would be held for ever by a rank
that dies or is stopped inside it. Instead each record carries its own number at its end, and a
reader takes only what it has read twice alike. A number of a text is written only after the text.
"""

from __future__ import annotations

import errno
import json
import mmap
import os
import struct
import threading
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count, islice
from pathlib import Path
from typing import get_args

from pytest_multihost.model.operation import GroupKey, Operation, OperationKind, Operations, spans
from pytest_multihost.model.stack import Frame

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


_pack_record = struct.Struct("<QQQIIIIIII20sQ").pack_into  # RECORD with its CALL in one piece
_pack_source = struct.Struct("<IIII").pack_into

_UNUSED = struct.pack("<QQ", 0, 1).ljust(STRIDE, b"\0") * RECORDS
"""The records of a new page: every one may be used, since it has an end and no beginning."""

SourceRef = tuple[int, int, int]
"""Number of the user's file, line in it, number of its function; zeros where it is not known."""


@dataclass(frozen=True, slots=True)
class Call:
    """What is the same whenever a rank begins the same operation: made once, used often.

    Attributes:
        data: What every record of it holds.
        sequence: Yields the sequence of the group's next collective.
        count_at: Where the group's last collective is counted, in words of four bytes.
    """

    data: bytes
    sequence: Iterator[int]
    count_at: int


@dataclass(slots=True, weakref_slot=True)
class SlotPage:
    """A rank's own slot page, to write to.

    Numbers stand for texts and groups; ask for them once, outside of what is measured in
    nanoseconds. Every method may be called from several threads.

    A new one has no file: what is written is read by nobody. So wrappers can be bound to it in the
    server, before there is a rank; the rank then opens it, and they stay as they are.
    """

    path: Path = Path(os.devnull)
    _map: mmap.mmap = field(default_factory=partial(mmap.mmap, -1, SIZE))
    _texts: dict[str, int] = field(default_factory=dict)
    _end_of_texts: int = TEXTS_AT
    _groups: dict[GroupKey, int] = field(default_factory=dict)
    _group_texts: list[int] = field(default_factory=list)
    _sequences: list[Iterator[int]] = field(default_factory=list)
    _numbers: Iterator[int] = field(default_factory=count)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _words: memoryview = field(init=False)
    _halves: memoryview = field(init=False)

    def __post_init__(self) -> None:
        self._view()
        self.text("")

    def open(self, path: Path) -> None:
        """Be the page at `path` from now on, which must not exist; what was noted is left behind.

        Numbers of texts and groups stay what they are.
        """
        head = bytearray(self._map[:RECORDS_AT])
        texts = self._map[TEXTS_AT : self._end_of_texts]
        HEADER.pack_into(head, 0, MAGIC, len(self._texts))
        self._map = _new_map(path, SIZE, (head, _UNUSED, bytes(STRIDE), texts))
        self.path = path
        self._view()
        reference = weakref.WeakMethod(self.forget)  # a hook at fork is never removed
        os.register_at_fork(after_in_child=lambda: (forget := reference()) and forget())

    def forget(self) -> None:
        """Let go of the file: what a forked child does is not what the rank does."""
        self._map = mmap.mmap(-1, SIZE)
        self._view()

    def _view(self) -> None:
        self._words = memoryview(self._map).cast("Q")
        self._halves = memoryview(self._map).cast("I")

    @classmethod
    def create(cls, path: Path) -> SlotPage:
        """Make the page at `path`; it must not exist."""
        page = cls()
        page.open(path)
        return page

    def text(self, text: str) -> int:
        """Return the number of `text`; 0, the empty one, when there is no room for more."""
        number = self._texts.get(text)
        return self._add_text(text) if number is None else number

    def detail(self, text: str) -> int:
        """Return the number of a text that may be one of very many: they get half of the room."""
        number = self._texts.get(text)
        if number is None and self._end_of_texts < TEXTS_AT + DETAIL_BYTES:
            return self._add_text(text)
        return number or 0

    def _add_text(self, text: str) -> int:
        data = text.encode("utf-8", "backslashreplace")[:1000]
        with self._lock:
            if text in self._texts:
                return self._texts[text]
            end = self._end_of_texts + 2 + len(data)
            if end > SIZE:
                return 0
            struct.pack_into("<H", self._map, self._end_of_texts, len(data))
            self._map[self._end_of_texts + 2 : end] = data
            self._end_of_texts = end
            self._texts[text] = number = len(self._texts)
            self._words[1] = number + 1
        return number

    def group(self, ranks: tuple[int, ...], ordinal: int = 0, scope: str = "") -> int:
        """Return the number of the group with these members; see `Operation`."""
        key = (ranks, ordinal, scope)
        number = self._groups.get(key)
        if number is None:
            # as spans: a thousand ranks in a row must fit into one text
            text = self.text(json.dumps([spans(ranks), ordinal, scope]))
            with self._lock:
                number = self._groups.setdefault(key, len(self._groups))
                if number == len(self._group_texts):
                    self._group_texts.append(text)
                    self._sequences.append(count(1))
                    self._halves[count_at(number) + 1] = text
        return number

    def reach(self, group: int, sequence: int) -> None:
        """Note how far a group has got, without an operation."""
        self._halves[count_at(group)] = sequence

    def call(
        self,
        name: str,
        kind: OperationKind,
        group: int,
        *,
        peer: int = -1,
        root: int = -1,
        tag: int = 0,
    ) -> Call:
        """Prepare what `begin` writes.

        Args:
            name: As the runtime's users call it.
            kind: Who must do something for it to end.
            group: Number of its group.
            peer: Other rank of a transfer.
            root: Rank that sends or receives for all.
            tag: Of a transfer.
        """
        text, last = self._group_texts[group], tag if kind == "transfer" else root
        data = CALL.pack(self.text(name), KINDS.index(kind), text, peer, last)
        return Call(data, self._sequences[group], count_at(group))

    def begin(
        self,
        call: Call,
        now_ns: int,
        thread: int,
        source: SourceRef,
        sequence: int = 0,
        detail: int = 0,
    ) -> int:
        """Note that an operation begins and the thread waits for it; return where it is noted.

        Args:
            call: Which operation.
            now_ns: The time.
            thread: Native id of the calling thread.
            source: The user's line.
            sequence: Which it is among its like; 0: the group's next collective.
            detail: Number of a text for the reader.
        """
        if not sequence:
            self._halves[call.count_at] = sequence = next(call.sequence)
        number = next(self._numbers)
        at = FIRST_WORD + number % RECORDS * WORDS
        if not self._words[at + ENDED]:
            if (number := self._free_number()) < 0:
                return NO_RECORD
            at = FIRST_WORD + number % RECORDS * WORDS
        _pack_record(
            self._map, at * 8, now_ns, 0, now_ns, sequence, detail, thread, *source, 0,
            call.data, number + 1,
        )  # fmt: skip
        return at

    def _free_number(self) -> int:
        """Return the number of the next record that is not taken by an open operation."""
        ended, ahead = self._words[FIRST_WORD + ENDED :: WORDS], islice(self._numbers, RECORDS)
        return next((number for number in ahead if ended[number % RECORDS]), -1)

    def wait(self, at: int, now_ns: int, thread: int, source: SourceRef) -> None:
        """Note that a thread waits from now on for the operation noted at `at`."""
        _pack_source(self._map, at * 8 + SOURCE_AT, thread, *source)
        self._words[at + WAITED] = now_ns

    def leave(self, at: int) -> None:
        """Note that nobody waits any more for the operation noted at `at`, which is still open."""
        self._words[at + WAITED] = 0

    def end(self, at: int, now_ns: int) -> None:
        """Note that the operation noted at `at` is over."""
        self._words[at + ENDED] = now_ns

    def set_timeout(self, at: int, seconds: float) -> None:
        """Note how long the operation noted at `at` may take, as its caller has set."""
        ticks = min(max(round(seconds * TICKS_PER_S), 0), (1 << 30) - 1)
        self._halves[at * 2 + FLAGS_AT // 4] = HAS_TIMEOUT | ticks << VALUE_SHIFT

    def began_ns(self, at: int) -> int:
        """Return when the operation noted at `at` began."""
        return int(self._words[at])

    def fail(self, at: int, now_ns: int, error: str = "") -> None:
        """Note that the operation noted at `at` was left by an exception, and by which."""
        self._halves[at * 2 + FLAGS_AT // 4] = FAILED | self.detail(error) << VALUE_SHIFT
        self._words[at + ENDED] = now_ns


def _new_map(path: Path, size: int, begin: Sequence[bytes | bytearray]) -> mmap.mmap:
    """Make a file of `size` bytes at `path`, which must not exist; return a mapping of it.

    By bare system calls: Python's files would have every rank make copies of memory. And what it
    begins with is written, not assigned: each page that is touched through a mapping is a fault.

    Raises:
        OSError: It exists, or the disk is full.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
    try:
        if os.writev(descriptor, begin) != sum(map(len, begin)):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        os.ftruncate(descriptor, size)
        return mmap.mmap(descriptor, size)
    finally:
        os.close(descriptor)


_READS = 20
"""How often a record is read that its rank may be writing, before it is taken as it is."""

Record = tuple[int, ...]
"""The fields of `RECORD`."""


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
    is_whole = len(data) >= SIZE and HEADER.unpack_from(data)[0] == MAGIC
    return data if is_whole else None


def shift_times(page: bytes, by_ns: int) -> bytes:
    """Return a copy of a page from another machine with its times moved to our clock."""
    if not by_ns or len(page) < SIZE:
        return page
    shifted = bytearray(page)
    words = memoryview(shifted)[:SINK_AT].cast("Q")
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
    words = memoryview(data[:SINK_AT]).cast("Q")
    began, ended, waited = (words[FIRST_WORD + each :: WORDS].tolist() for each in range(3))
    last_s = max(*began, *ended, *waited) / 1e9
    ats = [RECORDS_AT + i * STRIDE for i in range(RECORDS) if began[i] and not ended[i]]
    texts = _texts(data) if ats or any(words[COUNTS_AT // 8 : FIRST_WORD]) else []
    records = [RECORD.unpack_from(data, at) for at in ats]
    return _operations(rank, records, data, texts), last_s


def _texts(data: bytes) -> list[str]:
    texts, at = [], TEXTS_AT
    for _ in range(HEADER.unpack_from(data)[1]):
        (size,) = struct.unpack_from("<H", data, at)
        texts.append(data[at + 2 : at + 2 + size].decode("utf-8", "backslashreplace"))
        at += 2 + size
    return texts


def _text(texts: Sequence[str], number: int) -> str:
    """Return a text; one that was written while the page was read is empty."""
    return texts[number] if number < len(texts) else ""


def _stable_records(data: bytes, again: bytes, path: Path) -> Iterator[Record]:
    """Yield each record in use, read until twice alike: its rank may be writing it."""
    for at in range(RECORDS_AT, SINK_AT, STRIDE):
        one, two = data[at : at + STRIDE], again[at : at + STRIDE]
        for _ in range(_READS):
            if one == two:
                break
            with path.open("rb", buffering=0) as file:
                one, two = two, os.pread(file.fileno(), STRIDE, at)
        if (record := RECORD.unpack(two))[0]:
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
    counts = memoryview(data)[COUNTS_AT:RECORDS_AT].cast("Q").tolist()
    used = filter(None, counts)  # few of them
    entered = {_group(_text(texts, word >> 32)): word & 0xFFFFFFFF for word in used}
    return Operations(rank, recent, entered)


def _operation(record: Record, texts: Sequence[str]) -> Operation:
    began, ended, waited, sequence, detail, thread, file, line, function, flags = record[:10]
    name, kind, group, peer, root = record[10:15]
    ranks, ordinal, scope = _group(_text(texts, group))
    value = flags >> VALUE_SHIFT
    is_transfer = KINDS[kind] == "transfer"
    return Operation(
        name=_text(texts, name),
        kind=KINDS[kind],
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
        failed=bool(flags & FAILED),
        error=_text(texts, value) if flags & FAILED else "",
        timeout_s=value / TICKS_PER_S if flags & HAS_TIMEOUT else None,
        thread=thread,
        frame=Frame(_text(texts, file), line, _text(texts, function)) if file else None,
    )
