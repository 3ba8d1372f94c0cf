"""The slot page: shared memory in which a rank keeps what it is doing with other ranks.

A rank writes it at each operation, in well under a microsecond; the controller reads it whenever
it likes: while the rank holds the GIL, is stopped, or is dead. So it is a file of fixed size that
both have mapped; `layout` says what is where.

Records are a ring: the last `RECORDS` operations, except that an open one is never overwritten.

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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count, islice
from pathlib import Path

from pytest_multihost.model.operation import GroupKey, OperationKind
from pytest_multihost.model.rank_set import spans
from pytest_multihost.slots import layout
from pytest_multihost.slots.layout import (  # by name where nanoseconds count
    ENDED,
    FIRST_WORD,
    FLAGS_AT,
    NO_RECORD,
    RECORDS,
    SOURCE_AT,
    WAITED,
    WORDS,
    count_at,
)

_pack_record = struct.Struct("<QQQIIIIIII20sQ").pack_into  # RECORD with its CALL in one piece
_pack_source = struct.Struct("<IIII").pack_into

_UNUSED = struct.pack("<QQ", 0, 1).ljust(layout.STRIDE, b"\0") * RECORDS
"""The records of a new page: every one may be used, since it has an end and no beginning."""

SourceRef = tuple[int, int, int]
"""Number of the user's file, line in it, number of its function; zeros where it is not known."""


def _anonymous_map(size: int) -> mmap.mmap:
    """Return memory of `size` bytes without a file."""
    return mmap.mmap(-1, size)


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
    _map: mmap.mmap = field(default_factory=partial(_anonymous_map, layout.SIZE))
    _texts: dict[str, int] = field(default_factory=dict)
    _end_of_texts: int = layout.TEXTS_AT
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
        head = bytearray(self._map[: layout.RECORDS_AT])
        texts = self._map[layout.TEXTS_AT : self._end_of_texts]
        layout.HEADER.pack_into(head, 0, layout.MAGIC, len(self._texts))
        self._map = _new_map(path, layout.SIZE, (head, _UNUSED, bytes(layout.STRIDE), texts))
        self.path = path
        self._view()
        _call_in_children(self.forget)

    def forget(self) -> None:
        """Let go of the file: what a forked child does is not what the rank does."""
        self._map = _anonymous_map(layout.SIZE)
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
        if number is None and self._end_of_texts < layout.TEXTS_AT + layout.DETAIL_BYTES:
            return self._add_text(text)
        return number or 0

    def _add_text(self, text: str) -> int:
        data = text.encode("utf-8", "backslashreplace")[:1000]
        with self._lock:
            if text in self._texts:
                return self._texts[text]
            end = self._end_of_texts + 2 + len(data)
            if end > layout.SIZE:
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
        data = layout.CALL.pack(self.text(name), layout.KINDS.index(kind), text, peer, last)
        return Call(data, self._sequences[group], count_at(group))

    def begin(
        self,
        call: Call,
        now_ns: int,
        waited_ns: int,
        thread: int,
        source: SourceRef,
        sequence: int = 0,
        detail: int = 0,
    ) -> int:
        """Note that an operation begins, and return where it is noted, for `wait` and `end`.

        Args:
            call: Which operation.
            now_ns: The time.
            waited_ns: The time, if the calling thread waits for it from now on, else 0.
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
            self._map, at * 8, now_ns, 0, waited_ns, sequence, detail, thread, *source, 0,
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
        ticks = min(max(round(seconds * layout.TICKS_PER_S), 0), (1 << 30) - 1)
        self._halves[at * 2 + FLAGS_AT // 4] = layout.HAS_TIMEOUT | ticks << layout.VALUE_SHIFT

    def began_ns(self, at: int) -> int:
        """Return when the operation noted at `at` began."""
        return int(self._words[at])

    def fail(self, at: int, now_ns: int, error: str = "") -> None:
        """Note that the operation noted at `at` was left by an exception, and by which."""
        self._halves[at * 2 + FLAGS_AT // 4] = (
            layout.FAILED | self.detail(error) << layout.VALUE_SHIFT
        )
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


def _call_in_children(method: Callable[[], None]) -> None:
    """Call a bound method in every forked child of this process, while its object is alive."""
    reference = weakref.WeakMethod(method)
    os.register_at_fork(after_in_child=lambda: _call_if_alive(reference))


def _call_if_alive(method: weakref.WeakMethod[Callable[[], None]]) -> None:
    call = method()
    if call is not None:
        call()
