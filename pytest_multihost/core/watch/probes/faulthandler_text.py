"""The text in which CPython's faulthandler writes the stacks of a process."""

from __future__ import annotations

import re
from dataclasses import replace

from pytest_multihost.core.model.stack import Dump, Frame, ThreadStack

FAULTHANDLER = "faulthandler"
"""The source of a dump that it has written."""

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
    is_cut, last = False, "first"
    for line in text.splitlines():
        if head := _THREAD.match(line):
            if last:  # another answer begins
                threads, is_cut = [], False
            name = head[3] or head[2] or "MainThread"  # "Stack" heads the only thread asked for
            threads.append(ThreadStack(name=name, current=head[1] == "Current thread"))
        elif threads and (found := _FRAME.match(line)):
            number = int(found[2]) if found[2].isdigit() else 0
            frame = Frame(_unescaped(found[1]), number, _unescaped(found[3]))
            threads[-1] = replace(threads[-1], frames=(*threads[-1].frames, frame))
        is_cut = is_cut or line == "..."
        last = line
    return Dump(rank, FAULTHANDLER, tuple(threads), lacks_main=is_cut)


def _unescaped(name: str) -> str:
    """Undo how faulthandler writes what is not ASCII; it may not allocate memory."""
    return _ESCAPE.sub(lambda found: chr(int(found[1][1:], 16)), name)
