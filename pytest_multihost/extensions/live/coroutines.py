"""Read the awaits of an event loop's tasks from the memory of a process that does not cooperate.

A coroutine that awaits is on no thread's stack: the stack ends in the event loop. But a loop was
run for a task, whose address py-spy prints, and later tasks follow it in the lists of the garbage
collector. Each task has its coroutine, and each coroutine has its awaited object on top of its
stack.

The process may change its objects meanwhile. So every object's type is checked by its name, each
number is bounded, and a value that does not fit is left out.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from pytest_multihost.core.cpython_private import CoroutineLayout, coroutine_layout
from pytest_multihost.core.model.stack import Frame, TaskState, short_path, task_state
from pytest_multihost.core.watch.kernel.memory import Memory
from pytest_multihost.core.watch.probes.py_spy import SpiedThread

_LOOP = re.compile(r"/python(\d)\.(\d+)/asyncio/(?:runners|base_events)\.py$")
_TASK = re.compile(r"<_asyncio\.Task at 0x([0-9a-f]{1,16})>")
_TASKS = frozenset({"_asyncio.Task", "Task"})
_COROUTINES = frozenset({"coroutine", "generator", "async_generator"})
_WRAPPERS = frozenset({"async_generator_asend", "async_generator_athrow", "coroutine_wrapper"})
"""Objects that hold a coroutine in their first field."""

_MAX_DEPTH, _MAX_TASKS = 100, 1000
_MAX_OBJECTS = 100_000
_MAX_STRING, _MAX_TABLE = 4096, 1 << 20
_MAX_STACK = 1 << 16
_YOUNGER = 2
"""Generations of the garbage collector that may have younger objects."""

_WORD, _INT = 8, 4
_TYPE_AT, _SIZE_AT, _HEAD = 8, 16, 16
_NAME_AT, _BASIC_SIZE_AT, _MAX_BASIC = 24, 32, 4096
_BYTES_AT = 32
_ONE_DIGIT, _DIGIT_AT = 8, 24
"""The size of a small number, and where it is, in CPython 3.12 and later: it numbers a task."""
_GENERATION = 24
"""Size of a generation: the head of its list, and two numbers."""


def awaited_by(pid: int, thread: SpiedThread, root: str) -> tuple[TaskState, ...]:
    """Return the states of the tasks of a thread's event loop; none if they are unknown.

    Args:
        root: Directory against which paths are shown.
    """
    for frame, values in zip(thread.frames, thread.values, strict=False):
        version = _LOOP.search(frame.file)
        layout = coroutine_layout(int(version[1]), int(version[2])) if version else None
        found = next((m for text in values.values() if (m := _TASK.fullmatch(text))), None)
        if layout is not None and found is not None:
            memory = Memory(pid)
            try:
                return tuple(_Objects(memory, layout).tasks(int(found[1], 16), root))
            finally:
                memory.close()
    return ()


@dataclass(frozen=True, slots=True)
class _Objects:
    """The objects of a process.

    Attributes:
        kinds: Whether an address is that of a type, as far as that was asked.
    """

    memory: Memory
    layout: CoroutineLayout
    kinds: dict[int, bool] = field(default_factory=dict)

    def tasks(self, first: int, root: str) -> Iterator[TaskState]:
        """Yield the states of a task and of all younger ones."""
        for address in (first, *self._younger(first)):
            chain = list(self._chain(self._coroutine(address)))
            if chain:
                texts = [f"{name} {short_path(root, f.file)}:{f.line}" for name, f in chain]
                frames = [frame for _, frame in chain]
                yield task_state(self._name(address), texts, frames, is_first=address == first)

    def _younger(self, first: int) -> Sequence[int]:
        """Return the tasks that are younger than one, as the garbage collector lists them.

        It lists each generation by age. The list ends at its head, which lies beside the heads of
        the younger generations.
        """
        type_of = self._word(first + _TYPE_AT)
        found: list[int] = []
        head = self._walk(first, first - _HEAD, type_of, found)
        for number in range(1, _YOUNGER + 1) if head else ():
            at = head - number * _GENERATION
            after = self._word(at)
            if (
                not after
                or self._word(after + _WORD) & ~3 != at
                or self._walk(0, at, type_of, found) != at
            ):
                break
        return found[:_MAX_TASKS]

    def _walk(self, first: int, start: int, type_of: int, found: list[int]) -> int:
        """Add the tasks of a list; return the address of its head, 0 if it has too many objects.

        Args:
            first: A task of the list; 0 if `start` is its head.
            start: The entry in the list at which to begin.
        """
        entry, head = start, 0 if first else start
        for _ in range(_MAX_OBJECTS):
            before, entry = entry, self._word(entry)
            if not entry or self._word(entry + _WORD) & ~3 != before:
                return 0
            if entry == head or (not head and not self._is_object(entry + _HEAD)):
                return entry
            if self._word(entry + _HEAD + _TYPE_AT) == type_of:
                found.append(entry + _HEAD)
        return 0

    def _is_object(self, address: int) -> bool:
        """Return whether there is an object, whose class may have a metaclass."""
        kind = self._word(address + _TYPE_AT)
        if kind not in self.kinds:
            meta = self._word(kind + _TYPE_AT)
            above = (meta, self._word(meta + _TYPE_AT))
            self.kinds[kind] = "type" in map(self._type_name_of, above)
        return self.kinds[kind]

    def _coroutine(self, task: int) -> int:
        """Return the coroutine of a task; 0 unless it has exactly one."""
        if self._type_name(task) not in _TASKS:
            return 0
        found = [each for each in self._fields(task) if self._type_name(each) in _COROUTINES]
        return found[0] if len(found) == 1 else 0

    def _fields(self, address: int) -> Sequence[int]:
        size = self._word(self._word(address + _TYPE_AT) + _BASIC_SIZE_AT)
        data = self.memory.read(address, size) if 0 < size <= _MAX_BASIC else None
        count = len(data or b"") // _WORD
        return struct.unpack(f"={count}Q", (data or b"")[: count * _WORD])

    def _name(self, task: int) -> str:
        """Return the name of a task, which comes after its coroutine."""
        fields, coroutine = self._fields(task), self._coroutine(task)
        after = fields.index(coroutine) + 1 if coroutine in fields else len(fields)
        name = fields[after] if after < len(fields) else 0
        if self._type_name(name) == "int" and self._word(name + _SIZE_AT) == _ONE_DIGIT:
            return f"Task-{self._int(name + _DIGIT_AT)}"
        return self._text(name) or "task"

    def _chain(self, awaited: int) -> Iterator[tuple[str, Frame]]:
        """Yield name and line of each coroutine that a coroutine awaits, itself first."""
        for _ in range(_MAX_DEPTH):
            kind = self._type_name(awaited)
            if kind in _WRAPPERS:
                awaited = self._word(awaited + _HEAD)
                continue
            known = self._suspended(awaited) if kind in _COROUTINES else None
            if known is None:
                return
            name, frame, awaited = known
            yield name, frame

    def _suspended(self, coroutine: int) -> tuple[str, Frame, int] | None:
        """Return name, frame and the object that a coroutine awaits; None if it awaits nothing."""
        layout = self.layout
        state = self.memory.read(coroutine + layout.state, 1)
        if state is None or struct.unpack("=b", state)[0] != layout.awaits:
            return None
        at = coroutine + layout.frame
        code = self._word(at + layout.code)
        if self._type_name(code) != "code":
            return None
        begin = code + self._word(self._word(code + _TYPE_AT) + _BASIC_SIZE_AT)
        offset = self._word(at + layout.instruction) - begin
        line = self._line(code, offset)
        file, name = (self._text(self._word(code + each)) for each in (layout.file, layout.name))
        if not (file and name and line):
            return None
        top = self._int(at + layout.top)
        is_known = 0 < top <= _MAX_STACK
        inner = self._word(at + layout.stack + (top - 1) * _WORD) if is_known else 0
        qualified = self._text(self._word(code + layout.qualified_name)) or name
        return qualified, Frame(file, line, name), inner

    def _line(self, code: int, offset: int) -> int:
        """Return the line of an instruction of a code object; 0 if it has none."""
        table = self._word(code + self.layout.lines)
        size = self._word(table + _SIZE_AT)
        if self._type_name(table) != "bytes" or not 0 < size <= _MAX_TABLE or offset < 0:
            return 0
        data = self.memory.read(table + _BYTES_AT, size)
        return line_at(data or b"", self._int(code + self.layout.first_line), offset)

    def _text(self, address: int) -> str:
        """Return a string; empty if it is none, or long."""
        size = self._word(address + _SIZE_AT)
        if self._type_name(address) != "str" or not 0 < size <= _MAX_STRING:
            return ""
        state = self._int(address + 2 * _HEAD)
        kind, is_compact, is_ascii = state >> 2 & 7, state & 32, state & 64
        if not is_compact or kind not in _ENCODINGS:
            return ""
        at = self.layout.ascii_text if is_ascii else self.layout.other_text
        data = self.memory.read(address + at, size * kind)
        return (data or b"").decode(_ENCODINGS[kind], "replace")

    def _type_name(self, address: int) -> str:
        return self._type_name_of(self._word(address + _TYPE_AT)) if address else ""

    def _type_name_of(self, kind: int) -> str:
        return self.memory.text(self._word(kind + _NAME_AT)) if kind else ""

    def _word(self, address: int) -> int:
        """Return the word at an address; 0 if it cannot be read."""
        is_possible = _HEAD <= address < 1 << 47
        data = self.memory.read(address, _WORD) if is_possible else None
        return int.from_bytes(data or b"", "little")

    def _int(self, address: int) -> int:
        data = self.memory.read(address, _INT)
        return int.from_bytes(data or b"", "little", signed=True)


_ENCODINGS = {1: "latin-1", 2: "utf-16-le", 4: "utf-32-le"}

# The table of locations of CPython 3.11 and later: InternalDocs/code_objects.md.
_NO_LINE, _LONG, _NO_COLUMNS, _ONE_LINE = 15, 14, 13, 10


def line_at(table: bytes, first: int, offset: int) -> int:
    """Return the line of the instruction at an offset, by a code object's table; 0: it has none."""
    line, begin = first, 0
    starts = [at for at, byte in enumerate(table) if byte & 128]
    for at, after in zip(starts, [*starts[1:], len(table)], strict=True):
        kind, units = table[at] >> 3 & 15, (table[at] & 7) + 1
        if kind in {_LONG, _NO_COLUMNS}:
            line += _signed(table[at + 1 : after])
        elif _ONE_LINE <= kind < _NO_COLUMNS:
            line += kind - _ONE_LINE
        begin += 2 * units
        if offset < begin:
            return 0 if kind == _NO_LINE else max(line, 0)
    return 0


def _signed(data: bytes) -> int:
    """Return the first number of an entry: six bits in a byte, bit 6 set if another one follows."""
    number = 0
    for index, byte in enumerate(data):
        number |= (byte & 63) << 6 * index
        if not byte & 64:
            break
    return -(number >> 1) if number & 1 else number >> 1
