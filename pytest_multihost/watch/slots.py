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

import itertools
import json
import mmap
import os
import struct
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

from pytest_multihost.model.operation import GroupKey, Operation, OperationKind, Operations
from pytest_multihost.model.stack import Frame

RECORDS = 1024
"""How many operations of a rank are remembered."""

GROUPS = 1024
"""How many groups of a rank are counted."""

_TEXT_BYTES = 1 << 18
_DETAIL_BYTES = _TEXT_BYTES // 2
_HEADER = struct.Struct("<QQ")  # magic, number of texts
_MAGIC = 0x315453484D  # "MHST1"
_RECORD = struct.Struct("<QQQIIIIIIIIIIiiQ")
"""began, ended, waited (ns); sequence, detail; thread, file, line, function; flags; name, kind,
group; peer, root; its own number."""

_CALL = struct.Struct("<IIIii")
_NEW_RECORD = struct.Struct("<QQQIIIIIII20sQ")
_WHERE = struct.Struct("<IIII")
_ENDED_AT, _WAITED_AT, _WHERE_AT, _FLAGS_AT = 8, 16, 32, 48
_STRIDE = _RECORD.size
_COUNTS_AT = _HEADER.size
_RECORDS_AT = _COUNTS_AT + 8 * GROUPS
_TEXTS_AT = _RECORDS_AT + _STRIDE * RECORDS
_SIZE = _TEXTS_AT + _TEXT_BYTES
_FAILED = 1
_KINDS: tuple[OperationKind, ...] = get_args(OperationKind)
_READS = 20

Where = tuple[int, int, int]
"""Number of the user's file, line in it, number of its function; zeros where it is not known."""

NO_PLACE = -1
"""Where an operation is noted for which there is no room: nowhere."""


def slots_path(scratch: str | Path, rank: int) -> Path:
    """Return where a rank's slot page lies."""
    return Path(scratch, f"rank-{rank}.slots")


@dataclass(frozen=True, slots=True)
class Call:
    """What is the same whenever a rank begins the same operation: made once, used often.

    Attributes:
        group: Number of its group.
        data: The rest, as records hold it.
    """

    group: int
    data: bytes


@dataclass(slots=True, weakref_slot=True)
class SlotPage:
    """A rank's own slot page, to write to.

    Numbers stand for texts and groups; ask for them once, outside of what is measured in
    nanoseconds. Every method may be called from several threads.
    """

    path: Path
    _map: mmap.mmap
    _texts: dict[str, int] = field(default_factory=dict)
    _end_of_texts: int = _TEXTS_AT
    _groups: dict[GroupKey, int] = field(default_factory=dict)
    _group_texts: list[int] = field(default_factory=list)
    _sequences: list[itertools.count[int]] = field(default_factory=list)
    _numbers: itertools.count[int] = field(default_factory=itertools.count)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _words: memoryview = field(init=False)

    def __post_init__(self) -> None:
        self._words = memoryview(self._map).cast("Q")
        in_child = weakref.WeakMethod(self.forget)
        os.register_at_fork(after_in_child=lambda: _call_if_alive(in_child))

    def forget(self) -> None:
        """Write to nowhere from now on: what a forked child does is not what the rank does."""
        self._map = mmap.mmap(-1, _SIZE)
        self._words = memoryview(self._map).cast("Q")

    @classmethod
    def create(cls, path: Path) -> SlotPage:
        """Make the page at `path`; it must not exist."""
        with path.open("x+b") as file:
            file.truncate(_SIZE)
            page = cls(path, mmap.mmap(file.fileno(), _SIZE))
        _HEADER.pack_into(page._map, 0, _MAGIC, 0)
        page.text("")
        return page

    def text(self, text: str) -> int:
        """Return the number of `text`; 0, the empty one, when there is no room for more."""
        number = self._texts.get(text)
        return self._add_text(text) if number is None else number

    def detail(self, text: str) -> int:
        """Return the number of a text that may be one of very many: they get half of the room."""
        number = self._texts.get(text)
        if number is None:
            is_room = self._end_of_texts < _TEXTS_AT + _DETAIL_BYTES
            return self._add_text(text) if is_room else 0
        return number

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
            text = self.text(json.dumps([list(ranks), ordinal, scope]))
            with self._lock:
                number = self._groups.setdefault(key, len(self._groups))
                if number == len(self._group_texts):
                    self._group_texts.append(text)
                    self._sequences.append(itertools.count(1))
                    if number < GROUPS:
                        self._words[_COUNTS_AT // 8 + number] = text << 32
        return number

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
        return Call(group, _CALL.pack(self.text(name), _KINDS.index(kind), text, peer, root))

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
            group = call.group
            sequence = next(self._sequences[group])
            if group < GROUPS:
                self._words[_COUNTS_AT // 8 + group] = self._group_texts[group] << 32 | sequence
        number = next(self._numbers)
        at = _RECORDS_AT + (number % RECORDS) * _STRIDE
        if self._words[at >> 3] and not self._words[(at >> 3) + 1]:
            number = self._free_number()
            if number < 0:
                return NO_PLACE
            at = _RECORDS_AT + (number % RECORDS) * _STRIDE
        _NEW_RECORD.pack_into(
            self._map, at, now_ns, 0, waited_ns, sequence, detail, thread, *where, 0, call.data,
            number + 1,
        )  # fmt: skip
        return at

    def _free_number(self) -> int:
        """Return the number of the next record whose place is not taken by an open operation."""
        for _ in range(RECORDS):
            number = next(self._numbers)
            at = (_RECORDS_AT + (number % RECORDS) * _STRIDE) // 8
            if self._words[at] == 0 or self._words[at + 1] != 0:
                return number
        return NO_PLACE

    def wait(self, at: int, now_ns: int, thread: int, where: Where) -> None:
        """Note that a thread waits from now on for the operation noted at `at`."""
        if at != NO_PLACE:
            _WHERE.pack_into(self._map, at + _WHERE_AT, thread, *where)
            self._words[(at + _WAITED_AT) // 8] = now_ns

    def leave(self, at: int) -> None:
        """Note that nobody waits any more for the operation noted at `at`, which is still open."""
        if at != NO_PLACE:
            self._words[(at + _WAITED_AT) // 8] = 0

    def end(self, at: int, now_ns: int) -> None:
        """Note that the operation noted at `at` is over."""
        if at != NO_PLACE:
            self._words[(at + _ENDED_AT) // 8] = now_ns

    def fail(self, at: int, now_ns: int) -> None:
        """Note that the operation noted at `at` was left by an exception."""
        if at != NO_PLACE:
            struct.pack_into("<I", self._map, at + _FLAGS_AT, _FAILED)
            self._words[(at + _ENDED_AT) // 8] = now_ns


def _call_if_alive(method: weakref.WeakMethod[Callable[[], None]]) -> None:
    call = method()
    if call is not None:
        call()


def read_slots(path: Path, *, rank: int) -> Operations:
    """Return what is on the slot page at `path`; nothing where there is none."""
    try:
        data = path.read_bytes()
    except OSError:
        return Operations(rank)
    if len(data) < _SIZE or _HEADER.unpack_from(data)[0] != _MAGIC:
        return Operations(rank)
    again = path.read_bytes()
    texts = _texts(again)
    records = sorted(_stable_records(data, again, path), key=lambda record: record[-1])
    recent = tuple(_operation(record, texts) for record in records)
    return Operations(rank, recent, dict(_entered(again, texts)))


def _texts(data: bytes) -> list[str]:
    texts, at = [], _TEXTS_AT
    for _ in range(_HEADER.unpack_from(data)[1]):
        (size,) = struct.unpack_from("<H", data, at)
        texts.append(data[at + 2 : at + 2 + size].decode("utf-8", "backslashreplace"))
        at += 2 + size
    return texts


def _stable_records(data: bytes, again: bytes, path: Path) -> Iterator[tuple[Any, ...]]:
    """Yield each record in use, read until twice alike: its rank may be writing it."""
    for at in range(_RECORDS_AT, _TEXTS_AT, _STRIDE):
        one, two = data[at : at + _STRIDE], again[at : at + _STRIDE]
        for _ in range(_READS):
            if one == two:
                break
            one, two = two, _reread(path, at)
        record = _RECORD.unpack(two)
        if record[0]:
            yield record


def _reread(path: Path, at: int) -> bytes:
    with path.open("rb") as file:
        file.seek(at)
        return file.read(_STRIDE)


def _operation(record: tuple[Any, ...], texts: list[str]) -> Operation:
    began, ended, waited, sequence, detail, thread, file, line, function, flags = record[:10]
    name, kind, group, peer, root = record[10:15]
    ranks, ordinal, scope = json.loads(texts[group])
    return Operation(
        name=texts[name],
        kind=_KINDS[kind],
        group=tuple(ranks),
        ordinal=ordinal,
        scope=scope,
        sequence=sequence,
        peer=peer if peer >= 0 else None,
        root=root if root >= 0 else None,
        detail=texts[detail],
        since_s=began / 1e9,
        ended_s=ended / 1e9 if ended else None,
        waited_s=waited / 1e9 if waited else None,
        failed=bool(flags & _FAILED),
        thread=thread,
        frame=Frame(texts[file], line, texts[function]) if file else None,
    )


def _entered(data: bytes, texts: list[str]) -> Iterator[tuple[GroupKey, int]]:
    for (word,) in struct.iter_unpack("<Q", data[_COUNTS_AT:_RECORDS_AT]):
        if word:
            ranks, ordinal, scope = json.loads(texts[word >> 32])
            yield (tuple(ranks), ordinal, scope), word & 0xFFFFFFFF
