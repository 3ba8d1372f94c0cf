"""Read dumps, and put ranks with equal stacks together."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pytest_multihost.model.stack import Dump, Frame, ThreadStack

_THREAD = re.compile(
    r"(Current thread|Thread) (0x[0-9a-f]+)(?: \[(.*)\])? \(most recent call first\):"
)
_FRAME = re.compile(r'  File "(.*)", line (\d+|\?\?\?) in (.*)')


def parse_faulthandler(text: str, *, rank: int) -> Dump:
    """Read what `faulthandler` wrote.

    Follows CPython's Python/traceback.c, 3.11 to 3.14: a thread's name in brackets is new in 3.14;
    after 100 frames comes a line with dots; lines that are none of these (``<no Python frame>``,
    ``Garbage-collecting``) carry no frame. If the rank was asked several times, the last answer
    counts.

    Args:
        text: The file's content, possibly cut off at the end.
        rank: Whose it is.
    """
    threads: list[ThreadStack] = []
    for block in re.split(r"\n(?=(?:Current thread|Thread) 0x)", "\n" + text):
        thread = _parse_thread(block.strip("\n").splitlines())
        if thread is None:
            continue
        if thread.current and any(each.current for each in threads):
            threads = []
        threads.append(thread)
    return Dump(rank, "faulthandler", tuple(threads))


def _parse_thread(lines: Sequence[str]) -> ThreadStack | None:
    head = _THREAD.match(lines[0]) if lines else None
    if head is None:
        return None
    frames = tuple(
        Frame(found[1], int(found[2]) if found[2].isdigit() else 0, found[3])
        for line in lines[1:]
        if (found := _FRAME.match(line))
    )
    return ThreadStack(
        name=head[3] or head[2],
        frames=frames,
        current=head[1] == "Current thread",
        truncated=any(line.strip() == "..." for line in lines[1:]),
    )


@dataclass(frozen=True, slots=True)
class StackGroup:
    """Ranks whose main threads have the same stack. Frames are innermost first."""

    ranks: tuple[int, ...]
    frames: tuple[Frame, ...]


def group_by_main_stack(dumps: Iterable[Dump]) -> tuple[StackGroup, ...]:
    """Return groups of ranks with equal main-thread stacks, the smallest group first.

    The odd one out is what the reader looks for. A rank that gave no answer has no frames.
    """
    groups: dict[tuple[Frame, ...], list[int]] = {}
    for dump in dumps:
        frames = dump.main.frames if dump.main else ()
        groups.setdefault(frames, []).append(dump.rank)
    found = [StackGroup(tuple(sorted(ranks)), frames) for frames, ranks in groups.items()]
    return tuple(sorted(found, key=lambda group: (len(group.ranks), group.ranks)))
