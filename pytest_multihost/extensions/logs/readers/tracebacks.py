"""Python's tracebacks, by the rank that has printed each; those of several ranks may be mixed.

torchrun has them twice more if the program uses its `record`: in its summary, under the rank, and
in an error.json for each rank.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from pytest_multihost.core.model.stack import Frame
from pytest_multihost.extensions.logs.lines import Line
from pytest_multihost.extensions.logs.readers.reader import Parse, Reader
from pytest_multihost.extensions.logs.said import Raised, Said

START = "Traceback (most recent call last):"
_FRAME = re.compile(r'^\s{0,12}File "([^"]{1,500})", line (\d{1,9}), in (.{1,200})$')
_ERROR = re.compile(r"^(?:E\s+)?([A-Za-z_][\w.]{0,150}?)(?:: (.*))?$")
_CHAINED = re.compile(
    r"^(?:During handling of the above exception|The above exception was the direct cause)"
)
_THREAD = re.compile(r"^Exception in thread")
_CHAIN = "chained"
_SUMMARY_RANK = re.compile(r"^  rank {1,9}: (\d{1,7}) \(local_rank: ")
_SUMMARY_START = f"  traceback : {START}"
_INDENT = "  "
"""torchrun's text before each line of a traceback in its summary."""

_STORED = re.compile(r'"message": "((?:[^"\\]|\\.){1,4000})", "extraInfo": \{"py_callstack": "')
_STORED_FRAME = re.compile(
    r' File \\"((?:[^"\\]|\\[^"]){1,500})\\", line (\d{1,9}), in ([^\\"]{1,200})\\n'
)
_NOT_ERRORS = frozenset({"Traceback", "Exception ignored in", "Root Cause"})
_MOST_FRAMES = 400
_MOST_TEXT = 200
_MOST_OPEN = 2000
_BEHIND = 120
_ENDS_WITHIN = 12
"""A process that ends after an exception prints fewer lines than this behind it."""


@dataclass(slots=True)
class _OpenTraceback:
    """A traceback whose end has not been read.

    Attributes:
        found: The exception, once it is known; its text may go on.
        behind: How many lines of the same writer followed.
    """

    at: str
    rank: int | None
    lines: list[str] = field(default_factory=list)
    frames: list[Frame] = field(default_factory=list)
    found: Raised | None = None
    behind: int = 0
    causes: tuple[str, ...] = ()
    is_thread: bool = False


def _stored(line: Line) -> Raised | None:
    """Return the exception of a rank's error.json; None if a line is not such a file."""
    found = _STORED.search(line.text)
    if found is None:
        return None
    name, _, message = found[1].partition(": ")
    frames = [Frame(e[1], int(e[2]), e[3]) for e in _STORED_FRAME.finditer(line.text)]
    message = message.replace('\\"', '"').replace("\\n", " ")[:2000]
    text = f"{name}: {message}".rstrip(": ")
    frames = frames[:_MOST_FRAMES][::-1]
    return Raised(line.at, line.rank, line.stream, name, message, text, line.order, tuple(frames))


def _of_summary(line: Line, ranks: dict[str, int]) -> Line:
    """Return a line of torchrun's summary as one of the rank that it is about.

    Args:
        ranks: By stream, the rank that the summary has named last.
    """
    if rank := _SUMMARY_RANK.match(line.text):
        ranks.clear()
        ranks[line.stream] = int(rank[1])
        return line
    told = ranks.get(line.stream)
    if told is None or (line.text and not line.text.startswith(_INDENT)):
        return line
    is_start = line.text.startswith(_SUMMARY_START)
    text = START if is_start else line.text.removeprefix(_INDENT)
    return replace(line, text=text, rank=told, stream=f"{line.stream} summary of {told}")


def _begin() -> Parse:
    open_ones: dict[str, _OpenTraceback] = {}
    threads: set[str] = set()
    summary: dict[str, int] = {}

    def parse(line: Line, say: Callable[[Said], None]) -> int:
        if '"py_callstack"' in line.text and (stored := _stored(line)):
            say(stored)
            return 0
        return taken(_of_summary(line, summary), say)

    def taken(line: Line, say: Callable[[Said], None]) -> int:
        one, text = open_ones.get(line.stream), line.text
        if text.rstrip().endswith(START):
            if len(open_ones) >= _MOST_OPEN:
                open_ones.clear()
            is_thread = line.stream in threads
            threads.discard(line.stream)
            causes = _causes(one) if one is not None else ()
            open_ones[line.stream] = _OpenTraceback(
                line.at, line.rank, [text], causes=causes, is_thread=is_thread
            )
            return _BEHIND
        if _THREAD.match(text):
            threads.add(line.stream)
        if one is None:
            return 0
        if one.found is not None:
            return _after(one, line, say)
        if not _take(one, line, say):
            del open_ones[line.stream]
            return 0
        return _BEHIND

    return parse


def _causes(one: _OpenTraceback) -> tuple[str, ...]:
    """Return the exceptions from which the next one is raised, if the last one is one of them."""
    known = one.found
    if known is None or one.causes[-1:] != (_CHAIN,):
        return ()
    return (f"{known.type}: {known.message}", *one.causes[:-1])


def _take(one: _OpenTraceback, line: Line, say: Callable[[Said], None]) -> bool:
    """Take a line of a traceback; return whether it may go on."""
    text = line.text
    one.lines.append(text[:500])
    if frame := _FRAME.match(text):
        one.frames.append(Frame(frame[1], int(frame[2]), frame[3]))
        return True
    error = _ERROR.match(text) if one.frames else None
    if error is None or error[1] in _NOT_ERRORS:
        return len(one.lines) <= _MOST_FRAMES
    one.found = Raised(
        one.at,
        one.rank,
        line.stream,
        error[1],
        (error[2] or "")[:2000],
        "\n".join(one.lines[-_MOST_TEXT:]),
        line.order,
        tuple(reversed(one.frames)),
        causes=one.causes,
        is_thread=one.is_thread,
    )
    say(one.found)
    return True


def _after(one: _OpenTraceback, line: Line, say: Callable[[Said], None]) -> int:
    """Take a line behind an exception: its text goes on, another one follows, or the program."""
    found, text = one.found, line.text
    if found is None:
        return 0
    if _CHAINED.match(text):
        one.causes = (*one.causes, _CHAIN)
        return _BEHIND
    one.behind += bool(text.strip()) and not text.startswith(
        (" ", "[W", "[E", "W0", "E0", "frame #")
    )
    if one.behind == 1 and not found.message:
        one.found = found = replace(found, message=text.strip()[:2000])
        say(found)
    if one.behind >= _ENDS_WITHIN and not found.went_on:
        one.found = found = replace(found, went_on=True)
        say(found)
    return 0 if found.went_on else 1


TRACEBACKS = Reader("tracebacks", (START.encode(), b"Exception in thread"), _begin)
