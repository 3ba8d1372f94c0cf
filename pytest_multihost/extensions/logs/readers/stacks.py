"""Stacks of processes that hang: py-spy, faulthandler, gdb and pystack, of one or of many ranks."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from pytest_multihost.core.model.stack import Frame
from pytest_multihost.extensions.logs.lines import Line
from pytest_multihost.extensions.logs.readers.reader import Parse, Reader
from pytest_multihost.extensions.logs.readers.short_paths import full_path
from pytest_multihost.extensions.logs.said import ReadStack, Remark, Said

_PROCESS = re.compile(r"^Process (\d{1,9}): (.{0,2000})")
_PYSPY = re.compile(r'^Thread (\S{1,40}) \((\w{1,20})[^)]{0,20}\)(?:: "([^"]{0,200})")?$')
_PYSPY_FRAME = re.compile(r"^ {2,10}([\w<>.~ -]{1,200}) \((\S.{0,500}?):(\d{1,9})\)$")
_FAULT = re.compile(
    r"^(Thread|Current thread) (0x[0-9a-f]{1,16})(?: \[[^\]]{0,60}\])? \(most recent call first\):$"
)
_FAULT_ALONE = re.compile(r"^Stack \(most recent call first\):$")
_FAULT_FRAME = re.compile(r'^ {1,4}File "([^"]{1,500})", line (\d{1,9}) in (.{1,200})$')
_GDB = re.compile(r"^Thread (\d{1,9}) \(.{0,200}\):$")
_GDB_FRAME = re.compile(
    r"^#\d{1,5}\s{1,4}(?:0x[0-9a-f]{1,16} in )?([^\s(]{1,300}) ?\(.*?\)"
    r"(?: (?:at|from) (\S{1,400}))?$"
)
_PYSTACK = re.compile(
    r"^Traceback for thread (\d{1,9})(?: \(([^)]{0,60})\))?.{0,120}\(most recent call last\):$"
)
_PYSTACK_FRAME = re.compile(
    r'^ {3,5}\((Python|C)\) File "([^"]{1,500})", line (\d{1,9}), in (.{1,200})$'
)
_FAULTHANDLER = "faulthandler"
_GOES_ON = 12
"""A process that prints more lines than this behind its stacks has left them."""

_UNREAD = "Error: Failed to get stack traces"
_STOPPED = "unexpected waitpid result PtraceEvent"
"""py-spy's message on a process that a signal has stopped."""

_HEADING = re.compile(
    r"^[=#* -]{0,8}(?:TP|rank)[ _:#]?(\d{1,6})(?:[ -]{1,3}(\d{1,6}))?\b.{0,60}$", re.IGNORECASE
)
"""A line above a stack by which a person says whose it is: "rank 3:", "TP1-3"."""
_BARE_FRAME = re.compile(r"^\s{0,10}([\w<>.~:]{1,200}) \((\S.{0,500}?\.py):(\d{1,9})\)$")
_LEAST_BARE = 3
_DIGITS = 9
_MOST_RANKS = 255
_BEHIND = 150
_MOST_FRAMES = 400
_MOST_OPEN = 5000


BARE = "a pasted stack"


@dataclass(slots=True)
class _Stack:
    at: str
    tool: str
    thread: str
    is_main: bool
    rank: int | None
    frames: list[Frame] = field(default_factory=list)
    is_outermost_first: bool = False


@dataclass(slots=True)
class _ShownProcess:
    """The process whose stacks an input shows now.

    Attributes:
        printed: Stacks that the process has printed itself, and may have gone on since.
        lines: How many lines it has printed behind them.
    """

    name: str | None = None
    threads: int = 0
    stack: _Stack | None = None
    ranks: tuple[int, ...] = ()
    printed: list[ReadStack] = field(default_factory=list)
    lines: int = 0


def _header(line: Line, process: _ShownProcess) -> _Stack | None:
    """Return a stack without frames if a line begins one."""
    text, at, rank = line.text, line.at, line.rank
    if found := _PYSPY.match(text):
        is_main = found[3] == "MainThread" or (found[3] is None and process.threads == 0)
        return _Stack(at, "py-spy", found[3] or found[1], is_main, rank)
    if found := _FAULT.match(text):
        is_main = found[1] == "Current thread"
        return _Stack(at, _FAULTHANDLER, found[2], is_main, rank)
    if _FAULT_ALONE.match(text):
        return _Stack(at, _FAULTHANDLER, "main", is_main=True, rank=rank)
    if found := _GDB.match(text):
        return _Stack(at, "gdb", found[1], found[1] == "1", rank)
    if found := _PYSTACK.match(text):
        is_main = process.threads == 0
        return _Stack(at, "pystack", found[1], is_main, rank, is_outermost_first=True)
    return None


def _frame(tool: str, text: str) -> Frame | None:
    if tool == "py-spy" and (found := _PYSPY_FRAME.match(text)):
        return full_path(Frame(found[2], int(found[3]), found[1].strip()))
    if tool == BARE and (found := _BARE_FRAME.match(text)):
        return full_path(Frame(found[2], int(found[3]), found[1]))
    if tool == _FAULTHANDLER and (found := _FAULT_FRAME.match(text)):
        return Frame(found[1], int(found[2]), found[3])
    if tool == "pystack" and (found := _PYSTACK_FRAME.match(text)):
        return Frame(found[2], int(found[3]), found[4])
    if tool == "gdb" and (found := _GDB_FRAME.match(text)):
        file, _, number = (found[2] or "").rpartition(":")
        is_line = number.isdigit() and len(number) <= _DIGITS
        return Frame(file if is_line else found[2] or "??", int(number) if is_line else 0, found[1])
    return None


def _standing(stack: _Stack, process: _ShownProcess, stream: str) -> Iterator[ReadStack]:
    """Yield the facts in a stack so far, for each rank that its heading names."""
    if stack.tool == BARE and len(stack.frames) < _LEAST_BARE:
        return
    frames = stack.frames[::-1] if stack.is_outermost_first else stack.frames
    name = process.name if process.name is not None else stream
    for rank in process.ranks or (stack.rank,):
        yield ReadStack(
            stack.at, rank, name, stack.tool, stack.thread, stack.is_main, tuple(frames)
        )


def _begin() -> Parse:
    processes: dict[str, _ShownProcess] = {}

    def parse(line: Line, say: Callable[[Said], None]) -> int:
        text = line.text.rstrip()
        if len(processes) > _MOST_OPEN:
            processes.clear()
        if new := _new_process(text):
            processes[line.stream] = new
            return _BEHIND
        process = processes.get(line.stream)
        if process is None:
            process = _ShownProcess()
        if text == _UNREAD or _STOPPED in text:
            who = f"rank {line.rank}" if line.rank is not None else process.name or "a process"
            why = ": it was stopped by a signal" if _STOPPED in text else ""
            say(Remark(line.at, f"the tool could not read the stacks of {who}{why}"))
            return _BEHIND
        if stack := _header(line, process) or _bare(line, process):
            process.stack, process.threads = stack, process.threads + 1
            processes[line.stream] = process
        elif process.printed and process.stack is None:
            return _after(process, text, say)
        return _take(process, line, say)

    return parse


def _new_process(text: str) -> _ShownProcess | None:
    """Return a process without stacks if a line says whose stacks follow."""
    if found := _PROCESS.match(text):
        return _ShownProcess(f"process {found[1]}")
    if heading := _HEADING.match(text):
        first, last = int(heading[1]), int(heading[2] or heading[1])
        return _ShownProcess(text, ranks=tuple(range(first, min(last, first + _MOST_RANKS) + 1)))
    return None


def _bare(line: Line, process: _ShownProcess) -> _Stack | None:
    """Return a stack that has no header, if a line is a frame and it is known whose it is."""
    is_known = process.stack is None and bool(process.ranks or line.is_sure)
    if not is_known or not _BARE_FRAME.match(line.text.rstrip()):
        return None
    return _Stack(line.at, BARE, "main", is_main=True, rank=line.rank)


def _after(process: _ShownProcess, text: str, say: Callable[[Said], None]) -> int:
    """Take a line behind stacks of a process; if it prints more, it has left them.

    Returns:
        How many lines behind it are wanted.
    """
    process.lines += bool(text) and not text.startswith((" ", "[", "Traceback", "Timeout"))
    if process.lines < _GOES_ON:
        return 1
    for each in process.printed:
        say(replace(each, frames=()))
    process.printed.clear()
    return 0


def _take(process: _ShownProcess, line: Line, say: Callable[[Said], None]) -> int:
    """Take a line of a stack; return how many lines behind it are wanted."""
    stack, text = process.stack, line.text.rstrip()
    if stack is None:
        return 0
    if frame := _frame(stack.tool, text):
        if len(stack.frames) < _MOST_FRAMES:
            stack.frames.append(frame)
        for each in _standing(stack, process, line.stream):
            say(each)  # one with more frames replaces it
    elif text and not text.startswith((" ", "\t")) and stack.frames:
        if stack.tool == _FAULTHANDLER and len(process.printed) < _MOST_OPEN:
            process.printed += _standing(stack, process, line.stream)
        process.stack, process.lines = None, 0
        return int(bool(process.printed))
    return _BEHIND


STACKS = Reader(
    "stacks",
    (
        b"\nProcess ",
        b"(most recent call first):",
        b"\nThread ",
        b"Traceback for thread ",
    ),
    _begin,
)
