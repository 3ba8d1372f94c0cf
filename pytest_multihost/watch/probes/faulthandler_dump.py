"""Read what faulthandler writes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from pytest_multihost.model.stack import Dump, Frame, ThreadStack

_THREAD = re.compile(
    r"(Current thread|Thread|Stack)(?: (0x[0-9a-f]+)(?: \[(.*)\])?)? \(most recent call first\):"
)
_ESCAPE = re.compile(r"\\(x[0-9a-f]{2}|u[0-9a-f]{4}|U[0-9a-f]{8})")
_FRAME = re.compile(r'  File "(.*)", line (\d+|\?\?\?) in (.*)')


def parse_faulthandler(text: str, *, rank: int) -> Dump:
    """Read what `faulthandler` wrote.

    Follows CPython's Python/traceback.c, 3.11 to 3.14: a thread's name in brackets is new in 3.14;
    after 100 frames comes an indented line with dots, after 100 threads one that is not indented;
    lines that are none of these (``<no Python frame>``, ``Garbage-collecting``) carry no frame.
    If the rank was asked several times, the last answer counts: within one, an empty line parts the
    threads, and between two there is none.

    Args:
        text: The file's content, possibly cut off at the end.
        rank: Whose it is.
    """
    threads: list[ThreadStack] = []
    is_cut = False
    for head, lines, begins in _blocks(text):
        if begins:
            threads, is_cut = [], False
        threads.append(_thread(head, lines))
        is_cut = is_cut or "..." in lines
    return Dump(rank, "faulthandler", tuple(threads), lacks_main=is_cut)


def _blocks(text: str) -> Iterator[tuple[re.Match[str], list[str], bool]]:
    """Yield each thread's head line, taken apart, the lines under it, and whether a dump begins."""
    head, lines, begins, last = None, list[str](), True, "first"
    for line in text.splitlines():
        found = _THREAD.match(line)
        if found is None:
            lines.append(line)
        else:
            if head is not None:
                yield head, lines, begins
            head, lines, begins = found, [], last != ""
        last = line
    if head is not None:
        yield head, lines, begins


def _thread(head: re.Match[str], lines: Sequence[str]) -> ThreadStack:
    frames = (_frame(found) for line in lines if (found := _FRAME.match(line)))
    return ThreadStack(
        name=head[3] or head[2] or "MainThread",  # "Stack" heads the only thread asked for
        frames=tuple(frames),
        current=head[1] == "Current thread",
        truncated="  ..." in lines,
    )


def _frame(found: re.Match[str]) -> Frame:
    line = int(found[2]) if found[2].isdigit() else 0
    return Frame(_unescaped(found[1]), line, _unescaped(found[3]))


def _unescaped(name: str) -> str:
    """Undo how faulthandler writes what is not ASCII; it may not allocate memory."""
    return _ESCAPE.sub(lambda found: chr(int(found[1][1:], 16)), name)
