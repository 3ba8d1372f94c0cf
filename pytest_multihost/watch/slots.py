"""The slot page: shared memory in which a rank keeps what it is doing with other ranks.

A rank writes it at each operation, in well under a microsecond; the controller reads it whenever
it likes: while the rank holds the interpreter, is stopped, or is dead. So it is a file of fixed
size that both have mapped.

Records are a ring: the last `RECORDS` operations, except that an open one is never overwritten.
Names, groups, files and functions are written once into a table of texts and referred to by their
number. Nothing is locked: a record carries its own number at its end, and a reader takes only what
it has read twice alike.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count, islice
from pathlib import Path
from typing import Any, get_args

from pytest_multihost.model.operation import GroupKey, Operation, OperationKind, Operations
from pytest_multihost.model.rank_set import spans
from pytest_multihost.model.stack import Frame
from pytest_multihost.watch.shared_memory import call_in_children, new_map, nowhere

RECORDS = 1024
"""How many operations of a rank are remembered."""

GROUPS = 1024
"""How many groups of a rank are counted."""

_TEXT_BYTES = 1 << 18
_DETAIL_BYTES = _TEXT_BYTES // 2
_HEADER = struct.Struct("<QQ")  # magic, number of texts
_MAGIC = 0x315453484D  # "MHST1"
RECORD = struct.Struct("<QQQIIIIIIIIIIiiQ")
"""began, ended, waited (ns); sequence, detail; thread, file, line, function; flags; name, kind,
group; peer, root; its own number."""

_CALL = struct.Struct("<IIIii")
_pack_record = struct.Struct("<QQQIIIIIII20sQ").pack_into
_WHERE = struct.Struct("<IIII")
_WHERE_AT, _FLAGS_AT = 32, 48
_ENDED, _WAITED = 1, 2  # in words of eight bytes
_STRIDE = RECORD.size
_COUNTS_AT = _HEADER.size
_RECORDS_AT = _COUNTS_AT + 8 * GROUPS
_FIRST, _WORDS = _RECORDS_AT // 8, _STRIDE // 8
_NOWHERE_AT = _RECORDS_AT + _STRIDE * RECORDS
_TEXTS_AT = _NOWHERE_AT + _STRIDE
_SIZE = _TEXTS_AT + _TEXT_BYTES
_FAILED, _LIMITED, _ABOVE, _TICKS_PER_S = 1, 2, 2, 100
"""Flags: left by an exception, and above them the number of its text; or limited, and the ticks."""

_UNUSED = struct.pack("<QQ", 0, 1).ljust(_STRIDE, b"\0") * RECORDS
"""The records of a new page: every one may be used, since it has an end and no beginning."""

_KINDS: tuple[OperationKind, ...] = get_args(OperationKind)
_READS = 20

Record = tuple[Any, ...]
Where = tuple[int, int, int]
"""Number of the user's file, line in it, number of its function; zeros where it is not known."""
NO_RECORD = _NOWHERE_AT // 8
"""Where an operation is noted for which there is no room: in a record that nobody reads."""


def slots_path(scratch: str | Path, rank: int) -> Path:
    """Return where a rank's slot page lies."""
    return Path(scratch, f"rank-{rank}.slots")


@dataclass(frozen=True, slots=True)
class Call:
    """What is the same whenever a rank begins the same operation: made once, used often.

    Attributes:
        data: What every record of it holds.
        sequence: Tells the place of the group's next collective.
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

    A new one is nowhere: what is written is read by nobody. Wrappers can be bound to it before
    there is a rank; the rank then opens it, and they stay as they are.
    """

    path: Path = Path(os.devnull)
    _map: mmap.mmap = field(default_factory=partial(nowhere, _SIZE))
    _texts: dict[str, int] = field(default_factory=dict)
    _end_of_texts: int = _TEXTS_AT
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
        head, texts = bytearray(self._map[:_RECORDS_AT]), self._map[_TEXTS_AT : self._end_of_texts]
        _HEADER.pack_into(head, 0, _MAGIC, len(self._texts))
        self._map = new_map(path, _SIZE, (head, _UNUSED, bytes(_STRIDE), texts))
        self.path = path
        self._view()
        call_in_children(self.forget)

    def forget(self) -> None:
        """Write to nowhere from now on: what a forked child does is not what the rank does."""
        self._map = nowhere(_SIZE)
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
        if number is None and self._end_of_texts < _TEXTS_AT + _DETAIL_BYTES:
            return self._add_text(text)
        return number or 0

    def _add_text(self, text: str) -> int:
        data = text.encode("utf-8", "backslashreplace")[:1000]
        with self._lock:
            if text in self._texts:
                return self._texts[text]
            end = self._end_of_texts + 2 + len(data)
            if end > _SIZE:
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
                    self._halves[_count_at(number) + 1] = text
        return number

    def reach(self, group: int, sequence: int) -> None:
        """Note how far a group has got, without an operation."""
        self._halves[_count_at(group)] = sequence

    def call(
        self, name: str, kind: OperationKind, group: int, *, peer: int = -1, root: int = -1
    ) -> Call:
        """Prepare what `begin` writes.

        Args:
            name: As the runtime's users call it.
            kind: Who must do something for it to end.
            group: Number of its group.
            peer: Other rank of a transfer.
            root: Rank that sends or receives for all.
        """
        text = self._group_texts[group]
        data = _CALL.pack(self.text(name), _KINDS.index(kind), text, peer, root)
        return Call(data, self._sequences[group], _count_at(group))

    def begin(
        self,
        call: Call,
        now_ns: int,
        waited_ns: int,
        thread: int,
        where: Where,
        sequence: int = 0,
        detail: int = 0,
    ) -> int:
        """Note that an operation begins, and return where it is noted, for `wait` and `end`.

        Args:
            call: Which operation.
            now_ns: The time.
            waited_ns: The time, if the calling thread waits for it from now on, else 0.
            thread: Native id of the calling thread.
            where: The user's line.
            sequence: Its place among its like; 0: the group's next collective.
            detail: Number of a text for the reader.
        """
        if not sequence:
            self._halves[call.count_at] = sequence = next(call.sequence)
        number = next(self._numbers)
        at = _FIRST + number % RECORDS * _WORDS
        if not self._words[at + _ENDED]:
            if (number := self._free_number()) < 0:
                return NO_RECORD
            at = _FIRST + number % RECORDS * _WORDS
        _pack_record(
            self._map, at * 8, now_ns, 0, waited_ns, sequence, detail, thread, *where, 0, call.data,
            number + 1,
        )  # fmt: skip
        return at

    def _free_number(self) -> int:
        """Return the number of the next record whose place is not taken by an open operation."""
        ended, ahead = self._words[_FIRST + _ENDED :: _WORDS], islice(self._numbers, RECORDS)
        return next((number for number in ahead if ended[number % RECORDS]), -1)

    def wait(self, at: int, now_ns: int, thread: int, where: Where) -> None:
        """Note that a thread waits from now on for the operation noted at `at`."""
        _WHERE.pack_into(self._map, at * 8 + _WHERE_AT, thread, *where)
        self._words[at + _WAITED] = now_ns

    def leave(self, at: int) -> None:
        """Note that nobody waits any more for the operation noted at `at`, which is still open."""
        self._words[at + _WAITED] = 0

    def end(self, at: int, now_ns: int) -> None:
        """Note that the operation noted at `at` is over."""
        self._words[at + _ENDED] = now_ns

    def limit(self, at: int, seconds: float) -> None:
        """Note how long the operation noted at `at` may take, as its caller has set."""
        ticks = min(max(round(seconds * _TICKS_PER_S), 0), (1 << 30) - 1)
        self._halves[at * 2 + _FLAGS_AT // 4] = _LIMITED | ticks << _ABOVE

    def began_ns(self, at: int) -> int:
        """Return when the operation noted at `at` began."""
        return int(self._words[at])

    def fail(self, at: int, now_ns: int, error: str = "") -> None:
        """Note that the operation noted at `at` was left by an exception, and by which."""
        self._halves[at * 2 + _FLAGS_AT // 4] = _FAILED | self.detail(error) << _ABOVE
        self._words[at + _ENDED] = now_ns


def _count_at(group: int) -> int:
    return _COUNTS_AT // 4 + 2 * group if group < GROUPS else NO_RECORD * 2


def read_slots(path: Path, *, rank: int) -> Operations:
    """Return what is on the slot page at `path`; nothing where there is none."""
    try:
        data = path.read_bytes()
    except OSError:
        return Operations(rank)
    if len(data) < _SIZE or _HEADER.unpack_from(data)[0] != _MAGIC:
        return Operations(rank)
    again = path.read_bytes()
    records = list(_stable_records(data, again, path))
    texts = _texts(path.read_bytes())  # after the records: each text is there before its number is
    return _operations(rank, records, again, texts)


def shift(page: bytes, by_ns: int) -> bytes:
    """Return a copy of a page from another machine with its times moved to our clock."""
    if not by_ns or len(page) < _SIZE:
        return page
    shifted = bytearray(page)
    words = memoryview(shifted)[:_NOWHERE_AT].cast("Q")
    for word in (each for place in range(3) for each in range(_FIRST + place, len(words), _WORDS)):
        if words[word] > 1:  # neither empty nor the mark of a place that may be used
            words[word] = max(2, words[word] + by_ns)
    return bytes(shifted)


def read_open_operations(path: Path, *, rank: int) -> tuple[Operations, float]:
    """Return quickly what a rank has open, and when it last began, awaited or ended anything."""
    try:
        data = path.read_bytes()
    except OSError:
        return Operations(rank), 0.0
    if len(data) < _SIZE or _HEADER.unpack_from(data)[0] != _MAGIC:
        return Operations(rank), 0.0
    words = memoryview(data[:_NOWHERE_AT]).cast("Q")
    began, ended, waited = (words[_FIRST + each :: _WORDS].tolist() for each in range(3))
    last_s = max(*began, *ended, *waited) / 1e9
    places = [place for place in range(RECORDS) if began[place] and not ended[place]]
    texts = _texts(data) if places or any(words[_COUNTS_AT // 8 : _FIRST]) else []
    records = [RECORD.unpack_from(data, _RECORDS_AT + place * _STRIDE) for place in places]
    return _operations(rank, records, data, texts), last_s


def _texts(data: bytes) -> list[str]:
    texts, at = [], _TEXTS_AT
    for _ in range(_HEADER.unpack_from(data)[1]):
        (size,) = struct.unpack_from("<H", data, at)
        texts.append(data[at + 2 : at + 2 + size].decode("utf-8", "backslashreplace"))
        at += 2 + size
    return texts


def _text(texts: Sequence[str], number: int) -> str:
    """Return a text; one that was written while the page was read is empty."""
    return texts[number] if number < len(texts) else ""


def _stable_records(data: bytes, again: bytes, path: Path) -> Iterator[Record]:
    """Yield each record in use, read until twice alike: its rank may be writing it."""
    for at in range(_RECORDS_AT, _NOWHERE_AT, _STRIDE):
        one, two = data[at : at + _STRIDE], again[at : at + _STRIDE]
        for _ in range(_READS):
            if one == two:
                break
            with path.open("rb", buffering=0) as file:
                one, two = two, os.pread(file.fileno(), _STRIDE, at)
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
    return Operations(rank, recent, dict(_entered(data, texts)))


def _operation(record: Record, texts: Sequence[str]) -> Operation:
    began, ended, waited, sequence, detail, thread, file, line, function, flags = record[:10]
    name, kind, group, peer, root = record[10:15]
    ranks, ordinal, scope = _group(_text(texts, group))
    return Operation(
        name=_text(texts, name),
        kind=_KINDS[kind],
        group=ranks,
        ordinal=ordinal,
        scope=scope,
        sequence=sequence,
        peer=peer if peer >= 0 else None,
        root=root if root >= 0 else None,
        detail=_text(texts, detail),
        since_s=began / 1e9,
        ended_s=ended / 1e9 if ended else None,
        waited_s=waited / 1e9 if waited else None,
        failed=bool(flags & _FAILED),
        error=_text(texts, flags >> _ABOVE) if flags & _FAILED else "",
        limit_s=(flags >> _ABOVE) / _TICKS_PER_S if flags & _LIMITED else None,
        thread=thread,
        frame=Frame(_text(texts, file), line, _text(texts, function)) if file else None,
    )


def _entered(data: bytes, texts: Sequence[str]) -> Iterator[tuple[GroupKey, int]]:
    words = memoryview(data)[_COUNTS_AT:_RECORDS_AT].cast("Q").tolist()
    for word in filter(None, words):  # few of them are in use
        yield _group(_text(texts, word >> 32)), word & 0xFFFFFFFF
