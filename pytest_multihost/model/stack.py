"""What a rank was doing at one instant."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Frame:
    """One Python frame. `line` is 0 where the dumper could not tell."""

    file: str
    line: int
    function: str


@dataclass(frozen=True, slots=True)
class ThreadStack:
    """Frames of one thread, innermost first.

    Attributes:
        name: The thread's name where the dumper knows it, else its identifier.
        frames: Innermost first.
        current: Whether this thread held the interpreter when the dump was taken.
        truncated: Whether the dumper left outer frames out.
    """

    name: str
    frames: tuple[Frame, ...]
    current: bool = False
    truncated: bool = False


@dataclass(frozen=True, slots=True)
class Dump:
    """All stacks of one rank at one instant.

    Attributes:
        rank: Whose.
        source: Which dumper made it, e.g. ``faulthandler``.
        threads: As the dumper ordered them; empty when the rank gave no answer.
        lacks_main: Whether the dumper left threads out, the oldest and so the main one first.
        has_moved: Whether the main thread was elsewhere when it was asked the first time.
        tasks: What asyncio's tasks wait for: a line for each, outermost first.
        is_deaf: Whether the main thread, asked for that, did not come back from native code.
    """

    rank: int
    source: str
    threads: tuple[ThreadStack, ...]
    lacks_main: bool = False
    has_moved: bool = False
    tasks: tuple[str, ...] = ()
    is_deaf: bool = False

    @property
    def main(self) -> ThreadStack | None:
        """The main thread: the oldest one, which faulthandler prints last, if it does."""
        return self.threads[-1] if self.threads and not self.lacks_main else None


@dataclass(frozen=True, slots=True)
class NativeThread:
    """Native frames of one thread at one instant, of Python or not.

    Attributes:
        thread: Its native id; that of the main thread is the process id.
        symbols: Plain names of the functions, innermost first.
    """

    thread: int
    symbols: tuple[str, ...]


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
