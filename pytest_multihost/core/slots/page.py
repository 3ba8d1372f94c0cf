"""The slot page: shared memory in which a rank records its operations with other ranks.

A rank writes it at each operation, in well under a microsecond. The controller can read it at any
time: while the rank holds the GIL, is stopped, or is dead. So it is a file of fixed size that the
rank maps, in native byte order (it is only read on the architecture it was written on):

    header     magic number, number of texts
    counts     one word for each group: its last sequence, and the number of its text
    records    a ring of the last `RECORDS` operations
    sink       one more record, never read: written when there is no room elsewhere
    texts      names, groups, files, functions: two bytes of length and UTF-8, each written once

Records refer to texts by their number. They are a ring: the last `RECORDS` operations, except that
an open one is never overwritten.

Beside it, in a sparse file, lies the rank's history: for each group a ring of the last `ENTRIES`
collectives, at the index that their sequence gives. It is read only when the world is judged.

If a rank keeps all its operations, a record that a new one overwrites moves to another sparse file,
the archive. So the record is complete, and the first `RECORDS` operations cost nothing more.

Only the rank's table of texts has a lock: a rank that dies or is stopped while it holds a lock in
shared memory would hold it for ever. Instead each record ends with its own number, and a reader
accepts a record only if two reads agree. The number of a text is written only after the text.
"""

from __future__ import annotations

import errno
import json
import mmap
import os
import struct
import threading
import weakref
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from itertools import count, islice
from pathlib import Path
from typing import get_args

from pytest_multihost.core.files import mode_in, naming
from pytest_multihost.core.model.foreign_bytes import UnreadableError, parsing
from pytest_multihost.core.model.operation import (
    PROGRAM_START,
    REQUEST_SCOPE,
    RUNTIME_SCOPE,
    GroupKey,
    Operation,
    OperationKind,
    Operations,
    Scope,
    Start,
)
from pytest_multihost.core.model.rank_names import spans
from pytest_multihost.core.model.setting_values import MAX_RANKS
from pytest_multihost.core.model.stack import Frame

RECORDS = 1024
"""How many operations of a rank are remembered."""

GROUPS = 1024
"""How many groups of a rank have a count."""

HAVE_HISTORY = frozenset({"", "operation", "harness", REQUEST_SCOPE.kind})
"""Kinds of scopes whose groups have a history: collectives that are counted in their group."""

HEADER = struct.Struct("<QQ")
"""The magic number, and how many texts there are."""

MAGIC = 0x315453484D  # "MHST1"

RECORD = struct.Struct("<QQQIIIIIIIIIIiiIIIIQ")
"""began, ended, waited (ns); sequence, detail; thread, file, line, function; flags; name, kind,
group; peer; root, or the tag of a transfer; thread, file, line and function of the call that
launched it; its own number."""

CALL = struct.Struct("<IIIii")
"""The part of a record that is the same for all operations of one call: name to root."""

ENTRY = struct.Struct("<QIIIII20s")
"""One entry of the history: began (ns); sequence, detail; file, line, function; its `CALL`."""

SEQUENCE_AT = 24
"""Byte offset in a record of its sequence."""

SOURCE_AT = 32
"""Byte offset in a record of the thread and its source line."""

FLAGS_AT = 48
KIND_AT, GROUP_AT = 56, 60
ENDED, WAITED = 1, 2
"""Offsets in a record of its second and third time, in words of eight bytes."""

THREAD = 5
"""The field of a record with the thread that waits for it, or began it."""

FAILED, HAS_TIMEOUT, FAILS_TEST, HANDED_ON, VALUE_SHIFT, TICKS_PER_S = 1, 2, 4, 8, 5, 100
"""Flag bits: left by an exception (the upper bits are the number of its text), or has a timeout
(the upper bits are its ticks), or an exception that leaves it fails the test; its end may be
noticed unrecorded."""

STRIDE = RECORD.size
COUNTS_AT = HEADER.size
RECORDS_AT = COUNTS_AT + 8 * GROUPS
FIRST_WORD, WORDS = RECORDS_AT // 8, STRIDE // 8
SINK_AT = RECORDS_AT + STRIDE * RECORDS
TEXTS_AT = SINK_AT + STRIDE
TEXT_BYTES = 1 << 18
_MOST_TEXTS = TEXT_BYTES // 2
SIZE = TEXTS_AT + TEXT_BYTES

_MAX_TEXT = 1000
_FEW_TEXTS = 1 << 13
_NO_TEXT = bytes(_MAX_TEXT + 2)
"""So many zeros follow only the last text: each other text begins with a length above 0."""

NO_RECORD = SINK_AT // 8
"""Position of an operation for which there is no room: the sink."""

ENTRIES = 1024
"""How many collectives of a group are remembered."""

RINGS = 64
"""How many groups of a rank have a history; one more ring, never read, is for all others."""

ARCHIVED = 20_000
"""How many operations of a rank the archive holds, in addition to the last `RECORDS`."""

_NEVER = 1 << 62
"""A number that no operation reaches."""

RING = ENTRY.size * ENTRIES
HISTORY_SIZE = RING * (RINGS + 1)

KINDS: tuple[OperationKind, ...] = get_args(OperationKind)
FOR_CPU = 1 << 8
"""Added to a kind's number if the group asks for gloo by name."""


def count_at(group: int) -> int:
    """Return the position of a group's last sequence, in words of four bytes; its text follows."""
    return COUNTS_AT // 4 + 2 * group if group < GROUPS else NO_RECORD * 2


def slots_path(scratch: str | Path, rank: int) -> Path:
    """Return the path of a rank's slot page."""
    return Path(scratch, f"rank-{rank}.slots")


def child_slots_path(page: Path, pid: int) -> Path:
    """Return the path of the slot page of a process that a rank has forked.

    Args:
        page: The path of the rank's own page.
    """
    return page.with_name(f"{page.stem}.child-{pid}.slots")


def children_of(page: Path) -> Iterator[tuple[int, Path]]:
    """Yield the slot pages of the processes that a rank has forked, with their process ids."""
    for each in sorted(page.parent.glob(f"{page.stem}.child-*.slots")):
        yield int(each.stem.rpartition("-")[2]), each


def history_path(page: Path) -> Path:
    """Return the path of the history beside a slot page."""
    return page.with_suffix(".history")


def archive_path(page: Path) -> Path:
    """Return the path of the archive beside a slot page."""
    return page.with_suffix(".archive")


_pack_entry = ENTRY.pack_into
_pack_record = struct.Struct("<QQQIIIIIII20sIIIIQ").pack_into  # RECORD, its CALL in one piece
_pack_source = struct.Struct("<IIII").pack_into

_UNUSED = struct.pack("<QQ", 0, 1).ljust(STRIDE, b"\0") * RECORDS
"""The records of a new page: all free, since they have an end and no beginning."""

SourceRef = tuple[int, int, int]
"""Number of the user's file, line in it, number of its function; zeros if unknown."""


@dataclass(frozen=True, slots=True)
class Call:
    """The constant part of an operation's records: made once, used for each call.

    Attributes:
        data: The fields common to its records, packed as `CALL`.
        sequence: Yields the sequence of the group's next collective.
        count_at: Position of the group's last sequence, in words of four bytes.
        ring_at: Position of the group's ring in the history, in bytes.
    """

    data: bytes
    sequence: Iterator[int]
    count_at: int
    ring_at: int


@dataclass(slots=True, weakref_slot=True)
class SlotPage:
    """A rank's own slot page, to write to.

    Texts and groups are referred to by number; obtain the numbers once, outside of hot paths.
    Every method is thread-safe.

    A new page has no file, so its content is not readable from outside. This lets the
    server bind wrappers to it before it forks a rank; the rank then opens the file.
    """

    path: Path = Path(os.devnull)
    _map: mmap.mmap = field(default_factory=partial(mmap.mmap, -1, SIZE))
    _history: mmap.mmap = field(default_factory=partial(mmap.mmap, -1, HISTORY_SIZE))
    _next_history: Path | None = None
    _of_parent: mmap.mmap | None = None
    _archive: mmap.mmap | None = None
    _archived: Iterator[int] = field(default_factory=count)
    _archive_from: int = _NEVER
    _texts: dict[str, int] = field(default_factory=dict)
    _end_of_texts: int = TEXTS_AT
    _groups: dict[GroupKey, int] = field(default_factory=dict)
    _group_texts: list[int] = field(default_factory=list)
    _sequences: list[Iterator[int]] = field(default_factory=list)
    _rings: list[int] = field(default_factory=list)
    _numbers: Iterator[int] = field(default_factory=count)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _words: memoryview = field(init=False)
    _halves: memoryview = field(init=False)

    def __post_init__(self) -> None:
        self._view()
        self.text("")

    def open(self, path: Path) -> None:
        """Create the page at `path`, or in an empty file there; drop earlier records.

        Numbers of texts and groups stay valid.
        """
        head = bytearray(self._map[:RECORDS_AT])
        texts = self._map[TEXTS_AT : self._end_of_texts]
        HEADER.pack_into(head, 0, MAGIC, len(self._texts))
        self._map = _new_map(path, SIZE, (head, _UNUSED, bytes(STRIDE), texts))
        self._next_history = history_path(path)
        self.path = path
        self._view()
        reference = weakref.WeakMethod(self.forget)  # a hook at fork is never removed
        os.register_at_fork(after_in_child=lambda: (forget := reference()) and forget())

    def forget(self) -> None:
        """Detach from the files: operations of a forked child are not the rank's."""
        self._of_parent = self._map
        self._map, self._history = mmap.mmap(-1, SIZE), mmap.mmap(-1, HISTORY_SIZE)
        self._next_history, self._archive_from = None, _NEVER
        self._view()

    def open_in_child(self, pid: int) -> None:
        """Write to a page of its own from now on, in a process that the rank has forked.

        Raises:
            OSError: It cannot be made.
        """
        if self._of_parent is not None:  # its texts and groups have numbers here
            self._map = self._of_parent
        self.open(child_slots_path(self.path, pid))

    def keep_all(self) -> None:
        """From now on, move records to the archive before new ones overwrite them."""
        self._archive_from = RECORDS

    def _keep(self, at: int) -> None:
        """Move the record at `at` to the archive, as long as that has room."""
        index = next(self._archived)
        if self._archive is None:
            with self._lock, suppress(OSError):
                if self._archive is None:
                    path = archive_path(self.path)
                    self._archive = _new_map(path, STRIDE * ARCHIVED)
        if self._archive is None or index >= ARCHIVED:
            self._archive_from = _NEVER
            return
        record = self._map[at * 8 : at * 8 + STRIDE]
        self._archive[index * STRIDE : index * STRIDE + STRIDE] = record

    def _view(self) -> None:
        self._words = memoryview(self._map).cast("Q")
        self._halves = memoryview(self._map).cast("I")

    @classmethod
    def create(cls, path: Path) -> SlotPage:
        """Create the page at `path`, or in an empty file there."""
        page = cls()
        page.open(path)
        return page

    def text(self, text: str, *, room_to: int = SIZE) -> int:
        """Return the number of `text`; 0, that of the empty text, if there is no room."""
        if (number := self._texts.get(text)) is not None:
            return number
        data = text.encode("utf-8", "backslashreplace")[:_MAX_TEXT]
        with self._lock:
            if text in self._texts:
                return self._texts[text]
            end = self._end_of_texts + 2 + len(data)
            if end > room_to:
                return 0
            struct.pack_into("<H", self._map, self._end_of_texts, len(data))
            self._map[self._end_of_texts + 2 : end] = data
            self._end_of_texts = end
            self._texts[text] = number = len(self._texts)
            self._words[1] = number + 1
        return number

    def detail(self, text: str) -> int:
        """Return the number of a text of a numerous kind; such texts get half of the room."""
        return self.text(text, room_to=TEXTS_AT + TEXT_BYTES // 2)

    def group(self, ranks: tuple[int, ...], ordinal: int = 0, scope: Scope = RUNTIME_SCOPE) -> int:
        """Return the number of the group with these members; see `Operation`."""
        key = (ranks, ordinal, scope)
        number = self._groups.get(key)
        if number is None:
            # as spans: a thousand consecutive ranks must fit into one text
            text = self.text(json.dumps([spans(ranks), ordinal, str(scope)]))
            with self._lock:
                number = self._groups.setdefault(key, len(self._groups))
                if number == len(self._group_texts):
                    self._group_texts.append(text)
                    self._sequences.append(count(1))
                    used = sum(each < RINGS for each in self._rings)
                    self._rings.append(used if scope.kind in HAVE_HISTORY else RINGS)
                    self._halves[count_at(number) + 1] = text
        return number

    def reach(self, group: int, sequence: int) -> None:
        """Set a group's last sequence without recording an operation."""
        self._halves[count_at(group)] = sequence

    def reached(self, group: int) -> int:
        """Return a group's last sequence."""
        return int(self._halves[count_at(group)])

    def call(
        self,
        name: str,
        kind: OperationKind,
        group: int,
        *,
        peer: int = -1,
        root: int = -1,
        tag: int = 0,
        is_for_cpu: bool = False,
    ) -> Call:
        """Prepare the constant part of a record of `begin`.

        Args:
            kind: Determines which ranks must take part for it to end.
            root: Rank that sends or receives for all.
            is_for_cpu: Whether its group asks for gloo by name.
        """
        if self._rings[group] < RINGS and self._next_history is not None:
            self._open_history()
        text, last = self._group_texts[group], tag if kind == "transfer" else root
        number = KINDS.index(kind) + (FOR_CPU if is_for_cpu else 0)
        data = CALL.pack(self.text(name), number, text, peer, last)
        return Call(data, self._sequences[group], count_at(group), self._rings[group] * RING)

    def _open_history(self) -> None:
        """Create the history: only when a group has one, because it costs each rank pages."""
        with self._lock:
            path, self._next_history = self._next_history, None
            if path is not None:
                with suppress(OSError):  # a world without histories is judged by its slot pages
                    self._history = _new_map(path, HISTORY_SIZE)

    def begin(
        self,
        call: Call,
        now_ns: int,
        thread: int,
        source: SourceRef,
        sequence: int = 0,
        detail: int = 0,
    ) -> int:
        """Record that an operation begins and the thread waits for it; return its position.

        Args:
            thread: Native id of the calling thread.
            sequence: Its sequence number; 0: the group's next collective.
            detail: Number of a text shown in reports.
        """
        if not sequence:
            self._halves[call.count_at] = sequence = next(call.sequence)
            at = call.ring_at + sequence % ENTRIES * ENTRY.size
            _pack_entry(self._history, at, now_ns, sequence, detail, *source, call.data)
        number = next(self._numbers)
        at = FIRST_WORD + number % RECORDS * WORDS
        if not self._words[at + ENDED]:
            # The next record that holds no open operation.
            ended, ahead = self._words[FIRST_WORD + ENDED :: WORDS], islice(self._numbers, RECORDS)
            if (number := next((each for each in ahead if ended[each % RECORDS]), -1)) < 0:
                return NO_RECORD
            at = FIRST_WORD + number % RECORDS * WORDS
        if number >= self._archive_from:
            self._keep(at)
        _pack_record(
            self._map, at * 8, now_ns, 0, now_ns, sequence, detail, thread, *source, 0,
            call.data, thread, *source, number + 1,
        )  # fmt: skip
        return at

    def note(self, call: Call, now_ns: int, source: SourceRef, detail: int) -> None:
        """Record a group's next collective in the history alone: no thread ever waits in it."""
        self._halves[call.count_at] = sequence = next(call.sequence)
        at = call.ring_at + sequence % ENTRIES * ENTRY.size
        _pack_entry(self._history, at, now_ns, sequence, detail, *source, call.data)

    def wait(self, at: int, now_ns: int, thread: int, source: SourceRef) -> None:
        """Record that a thread waits from now on for the operation at `at`."""
        _pack_source(self._map, at * 8 + SOURCE_AT, thread, *source)
        self._words[at + WAITED] = now_ns

    def is_awaited(self, at: int) -> bool:
        """Return whether a thread waits for the operation at `at`."""
        return self._words[at + WAITED] != 0

    def leave(self, at: int) -> None:
        """Record that no thread waits any more for the operation at `at`, which is still open."""
        self._words[at + WAITED] = 0

    def resume(self, at: int, now_ns: int) -> None:
        """Record that the thread which waited for the operation at `at` waits for it again."""
        self._words[at + WAITED] = now_ns

    def end(self, at: int, now_ns: int) -> None:
        """Record that the operation at `at` has ended."""
        self._words[at + ENDED] = now_ns

    def hand_on(self, at: int) -> None:
        """Record that the end of the operation at `at` may be noticed without a record."""
        self._halves[at * 2 + FLAGS_AT // 4] |= HANDED_ON

    def count(self, at: int, began_ns: int, now_ns: int, sequence: int) -> bool:
        """Record a new end and number of the operation at `at`, if that operation began then.

        Returns:
            Whether it is; False if another operation has taken its room.
        """
        if self._words[at] != began_ns:
            return False
        self._halves[at * 2 + SEQUENCE_AT // 4] = sequence
        self._words[at + ENDED] = now_ns
        return True

    def set_timeout(self, at: int, seconds: float) -> None:
        """Record the timeout that the caller has set for the operation at `at`."""
        ticks = min(max(round(seconds * TICKS_PER_S), 0), (1 << 32 - VALUE_SHIFT) - 1)
        self._halves[at * 2 + FLAGS_AT // 4] = HAS_TIMEOUT | ticks << VALUE_SHIFT

    def set_fails_test(self, at: int) -> None:
        """Record that an error of the operation at `at` certainly fails the test."""
        self._halves[at * 2 + FLAGS_AT // 4] = FAILS_TEST

    def sequence(self, at: int) -> int:
        """Return the number of the operation at `at`."""
        return int(self._halves[at * 2 + SEQUENCE_AT // 4])

    def began_ns(self, at: int) -> int:
        """Return when the operation at `at` began."""
        return int(self._words[at])

    def fail(self, at: int, now_ns: int, error: str = "") -> None:
        """Record that an exception, and which one, ended the operation at `at`."""
        self._halves[at * 2 + FLAGS_AT // 4] = FAILED | self.detail(error) << VALUE_SHIFT
        self._words[at + ENDED] = now_ns


def _new_map(path: Path, size: int, begin: Sequence[bytes | bytearray] = ()) -> mmap.mmap:
    """Return a mapping of a file of `size` bytes, created at `path` or empty there.

    Uses bare system calls: Python's file objects would make every rank copy more memory pages.
    The content is written, not assigned, since each page touched through the mapping faults.

    Raises:
        OSError: The file has content, or the disk is full.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(path, flags, mode_in(path.parent))
    try:
        with naming(path):
            if os.fstat(descriptor).st_size:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
            if begin and os.writev(descriptor, begin) != sum(map(len, begin)):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.ftruncate(descriptor, size)
            found = mmap.mmap(descriptor, size)
    finally:
        os.close(descriptor)
    # Without this, the first write to each hole of the file makes the kernel read ahead, that is,
    # fill hundreds of kilobytes with zeros.
    found.madvise(mmap.MADV_RANDOM)
    return found


Record = tuple[int, ...]
"""The fields of `RECORD`."""


def read_slots(path: Path, *, rank: int) -> Operations:
    """Return the operations on the slot page at `path`; none if there is no page, or it is broken.

    The starts of programs are skipped, because they matter only while open, for a proof.
    """
    with suppress(UnreadableError), parsing("a slot page"):  # its rank may have spoilt it
        return _read_slots(path, rank)
    return Operations(rank)


def _read_slots(path: Path, rank: int) -> Operations:
    data = read_page(path)
    if data is None:
        return Operations(rank)
    again = read_page(path) or data
    records = list(_stable_records(data, again, path))
    texts = texts_of(read_page(path) or again)  # last: a text is written before its number
    found = _operations(rank, records, again, texts)
    recent = tuple(each for each in found.recent if each.name != PROGRAM_START)
    return replace(found, recent=recent)


def read_page(path: Path) -> bytes | None:
    """Return a page's content, at least up to its last text; None if it is missing or incomplete.

    Most of a page is room for texts, and zero.
    """
    try:
        with path.open("rb", buffering=0) as file:
            data = file.read(TEXTS_AT + _FEW_TEXTS)
            if not data.endswith(_NO_TEXT):
                data += file.read()
            is_whole = os.fstat(file.fileno()).st_size >= SIZE
    except OSError:
        return None
    return data if is_whole and HEADER.unpack_from(data)[0] == MAGIC else None


def shift_times(page: bytes, by_ns: int) -> bytes:
    """Return a page, or history, from another machine with its times on this machine's clock."""
    if not by_ns or len(page) < SIZE:
        return page
    shifted = bytearray(page)
    if HEADER.unpack_from(page)[0] != MAGIC:
        words = memoryview(shifted).cast("Q")
        for entry in range(0, len(words), ENTRY.size // 8):
            words[entry] = max(1, words[entry] + by_ns) if words[entry] else 0
        return bytes(shifted)
    words = memoryview(shifted)[:SINK_AT].cast("Q")
    for record in range(FIRST_WORD, len(words), WORDS):
        for word in range(record, record + 3):  # began, ended, waited
            if words[word] > 1:  # neither empty nor the mark of a free record
                words[word] = max(2, words[word] + by_ns)
    return bytes(shifted)


def move_files(page: bytes, there: str, here: str) -> bytes:
    """Return a page from another machine that names a folder as it is called on this machine.

    Texts for which there is no more room are omitted. A history has no texts, and is not changed.
    """
    if len(page) != SIZE or HEADER.unpack_from(page)[0] != MAGIC:
        return page
    moved = bytearray(page[:TEXTS_AT])
    for text in texts_of(page).values():
        is_inside = text.startswith(f"{there}/")
        data = (here + text.removeprefix(there) if is_inside else text).encode()
        if len(moved) + 2 + len(data) > SIZE:
            break
        moved += struct.pack("<H", len(data)) + data
    return bytes(moved).ljust(SIZE, b"\0")


OpenOperations = tuple[bytes | None, Operations, float]
"""A slot page, its rank's open operations, and when the rank last began, awaited or ended any."""


def read_open_operations(
    path: Path, *, rank: int, before: OpenOperations | None = None
) -> OpenOperations:
    """Return a rank's open operations, none of a page that is broken; fast.

    Args:
        before: The previous result. An unchanged page, as of a rank that waits, is not parsed
            again.
    """
    data = read_page(path)
    if before is not None and before[0] == data:
        return before
    with suppress(UnreadableError), parsing("a slot page"):  # its rank may have spoilt it
        return data, *_open_operations(data, rank)
    return data, Operations(rank), 0.0


def _open_operations(data: bytes | None, rank: int) -> tuple[Operations, float]:
    if data is None:
        return Operations(rank), 0.0
    words = memoryview(data[:SINK_AT]).cast("Q")
    began, ended, waited = (words[FIRST_WORD + each :: WORDS].tolist() for each in range(3))
    last_s = max(map(max, (began, ended, waited))) / 1e9
    ats = [RECORDS_AT + i * STRIDE for i in range(RECORDS) if began[i] and not ended[i]]
    texts = texts_of(data) if ats or any(words[COUNTS_AT // 8 : FIRST_WORD]) else {}
    records = [RECORD.unpack_from(data, at) for at in ats]
    return _operations(rank, records, data, texts), last_s


def texts_of(data: bytes) -> Mapping[int, str]:
    """Return the texts by number; empty for a text written after the page was read.

    Raises:
        UnreadableError, struct.error: The page is broken.
    """
    texts, at = defaultdict[int, str](str), TEXTS_AT
    count = HEADER.unpack_from(data)[1]
    if count > _MOST_TEXTS:
        raise UnreadableError(f"it has {count} texts, and there is room for {_MOST_TEXTS}")
    for number in range(count):
        (size,) = struct.unpack_from("<H", data, at)
        texts[number] = data[at + 2 : at + 2 + size].decode("utf-8", "backslashreplace")
        at += 2 + size
    return texts


def _stable_records(data: bytes, again: bytes, path: Path) -> Iterator[Record]:
    """Yield each used record, read until two reads agree: its rank may be writing it."""
    size = written_size(memoryview(again)[RECORDS_AT:SINK_AT])
    for at in range(RECORDS_AT, RECORDS_AT + size, STRIDE):
        one, two = data[at : at + STRIDE], again[at : at + STRIDE]
        for _ in range(20):  # then a record that still changes is taken as it is
            if one == two:
                break
            with path.open("rb", buffering=0) as file:
                one, two = two, os.pread(file.fileno(), STRIDE, at)
        if (record := RECORD.unpack(two))[0]:
            yield record


def written_size(records: bytes | memoryview) -> int:
    """Return the size of the records up to the last used one: a small part of a page."""
    whole = memoryview(records)[: len(records) // STRIDE * STRIDE]
    began = whole.cast("Q")[::WORDS].tolist()
    count = began.index(0) if 0 in began else len(began)
    while any(began[count:]):  # only for a moment: another thread is writing the record before
        count += 1
    return count * STRIDE


@lru_cache(maxsize=GROUPS)  # thousands of records name the same few groups
def parse_group(text: str) -> GroupKey:
    """Parse a group; it has no members if its text was cut or had no room.

    Raises:
        UnreadableError: No page has this text.
    """
    try:
        found = json.loads(text)
    except ValueError:
        return (), 0, Scope.parse(text)
    with parsing("a group"):
        spans, ordinal, scope = found
        if sum(last + 1 - first for first, last in spans) > MAX_RANKS or type(ordinal) is not int:
            raise UnreadableError(f"it has more than {MAX_RANKS} ranks, or no number of its own")
        ranks = tuple(rank for first, last in spans for rank in range(first, last + 1))
        return ranks, ordinal, Scope.parse(scope)


def check_page(data: bytes) -> None:
    """Check the page of a rank of another machine; an incomplete page passes.

    Raises:
        UnreadableError: It is broken.
    """
    with parsing("a slot page"):
        if len(data) > SIZE or (len(data) >= HEADER.size and HEADER.unpack_from(data)[0] != MAGIC):
            raise UnreadableError("it is none")
        if len(data) < SIZE:
            return
        texts = texts_of(data)
        entered_of(data, texts)
        halves = memoryview(data)[RECORDS_AT:SINK_AT].cast("I")
        kinds, groups = (set(halves[at // 4 :: STRIDE // 4].tolist()) for at in (KIND_AT, GROUP_AT))
        for kind in kinds:
            KINDS[kind % FOR_CPU]
        for group in groups:
            parse_group(texts[group])


def _operations(
    rank: int, records: Sequence[Record], data: bytes, texts: Mapping[int, str]
) -> Operations:
    in_order = sorted(records, key=lambda record: record[-1])
    recent = tuple(operation_of(each, texts) for each in in_order)
    return Operations(rank, recent, entered_of(data, texts))


def groups_of(data: bytes) -> int:
    """Return the number of groups on a page."""
    return sum(map(bool, memoryview(data)[COUNTS_AT:RECORDS_AT].cast("Q").tolist()))


def entered_of(data: bytes, texts: Mapping[int, str]) -> dict[GroupKey, int]:
    """Return by group the sequence of the last collective that the rank of a page has entered."""
    counts = memoryview(data)[COUNTS_AT:RECORDS_AT].cast("Q").tolist()
    used = filter(None, counts)  # few
    return {parse_group(texts[word >> 32]): word & 0xFFFFFFFF for word in used}


def operation_of(record: Record, texts: Mapping[int, str]) -> Operation:
    """Return the operation of a record."""
    began, ended, waited, sequence, detail, thread, file, line, function, flags = record[:10]
    name, kind, group, peer, root = record[10:15]
    by, by_file, by_line, by_function = record[15:19]
    ranks, ordinal, scope = parse_group(texts[group])
    value = flags >> VALUE_SHIFT
    is_for_cpu, kind = kind >= FOR_CPU, kind % FOR_CPU
    is_transfer = KINDS[kind] == "transfer"
    return Operation(
        name=texts[name],
        kind=KINDS[kind],
        group=ranks,
        ordinal=ordinal,
        scope=scope,
        sequence=sequence,
        peer=peer if peer >= 0 else None,
        tag=root if is_transfer and root >= 0 else 0,
        root=root if root >= 0 and not is_transfer else None,
        detail=texts[detail],
        since_s=began / 1e9,
        ended_s=ended / 1e9 if ended else None,
        waited_s=waited / 1e9 if waited else None,
        failed=bool(flags & FAILED),
        error=texts[value] if flags & FAILED else "",
        timeout_s=value / TICKS_PER_S if flags & HAS_TIMEOUT else None,
        fails_test=bool(flags & FAILS_TEST),
        is_handed_on=bool(flags & HANDED_ON),
        is_for_cpu=is_for_cpu,
        thread=thread,
        frame=_frame(file, line, function, texts),
        start=Start(by, _frame(by_file, by_line, by_function, texts))
        if by not in (0, thread)
        else None,
    )


def _frame(file: int, line: int, function: int, texts: Mapping[int, str]) -> Frame | None:
    return Frame(texts[file], line, texts[function]) if file else None
