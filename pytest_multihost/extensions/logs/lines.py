"""Finds the lines of a log that matter, in one pass and with bounded memory.

A log may have gigabytes, and almost none of its lines says anything about a hang. So blocks of
bytes are searched for a few texts, and only lines that have one, and some lines behind them, are
decoded. `normalised` takes off the prefixes that launchers put before lines, and learns the rank
from them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO

BLOCK = 1 << 20
MAX_LINE = 8192
"""A longer line is cut: the rest of it is not read."""

SHORT = 1 << 17
"""Of an input with no more bytes than this, each line is shown."""

MAX_SHOWN = 1_000_000
"""The most lines of all inputs that readers are shown."""

_CARRY = 1 << 16

_ESCAPE = re.compile(
    r"\x1b(?:\[[0-?]{0,32}[ -/]{0,8}[@-~]|\][^\x07\x1b]{0,200}(?:\x07|\x1b\\)|[@-Z\\-_])"
)

_PREFIXES: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"\[rank ?:? ?(\d{1,7})\]:?\s?", re.IGNORECASE), "rank"),
    (
        re.compile(r"\[[a-z_]*?(\d{1,7})\]:(?: (?! ))?", re.IGNORECASE),
        "local",
    ),  # torchrun: [default0]:
    (re.compile(r"\[([a-z][\w.-]{0,60})\|\d{1,7}\]:\s?"), "process"),  # [trainer2|6]:
    (re.compile(r"\[\d+,(\d{1,7})\]<(?:stdout|stderr)>:\s?"), "rank"),  # mpirun --tag-output
    (re.compile(r"\([\w.:<>-]{1,80} (pid=\d+[^)]{0,80})\)\s?"), "process"),  # Ray
    (re.compile(r"\[(pod/[^\]\s]{1,200})\]\s?"), "process"),  # kubectl logs --prefix
    (
        re.compile(
            r"[\[(]?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?"
            r"(?:Z|[+-]\d\d:?\d\d)?[\])]?:?\s+"
        ),
        "time",
    ),
    (re.compile(r"\[?\d\d:\d\d:\d\d(?:[.,]\d{1,9})?\]?\s+"), "time"),
    (re.compile(r"(?:stdout|stderr) F "), "time"),  # the container runtime's
    (re.compile(r"\s{0,3}(\d{1,7}):\s"), "task"),  # srun --label
)
_MOST_PREFIXES = 6
_INSIDE = re.compile(r"\[rank(\d{1,7})\]:(?=\[[EWIF]\d* | Traceback )\s?")
"""The prefix of a rank behind a bar of progress, or behind an unknown prefix."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line without its prefixes.

    Attributes:
        at: The input and the number of the line, as in "job.log:17".
        order: Its place among all lines of all inputs.
        rank: The rank that wrote it, as far as its prefix or its file say.
        is_sure: Whether that is a number in the world: not one on its machine only.
        stream: A name that distinguishes its writer from others.
    """

    at: str
    order: int
    rank: int | None
    is_sure: bool
    stream: str
    text: str


def normalised(text: str) -> tuple[str, int | None, int | None, str]:
    """Return a line without its prefixes, the rank that they name, that on a machine, their texts.

    A prefix that numbers the ranks of one machine says nothing of the ranks of the job.
    """
    text = _ESCAPE.sub("", text)
    rank: int | None = None
    local: int | None = None
    is_told, stream = False, ""
    for _ in range(_MOST_PREFIXES):
        matches = ((pattern.match(text), kind) for pattern, kind in _PREFIXES)
        found, kind = next(((match, kind) for match, kind in matches if match), (None, ""))
        if found is None:
            break
        if kind == "rank" or (kind == "task" and not is_told):
            rank, is_told = int(found[1]), kind == "rank"
        elif kind == "local" and local is None:
            local = int(found[1])
        if kind != "time":
            stream = f"{stream} {found[0].strip()}"
        text = text[found.end() :]
    if inside := _INSIDE.search(text):
        return text[inside.end() :], int(inside[1]), local, f"{stream} {inside[0].strip()}"
    return text, rank, local, stream


class _Ranks:
    """The known ranks of inputs that number them by machine."""

    def __init__(self) -> None:
        self._known: dict[str, dict[int, int]] = {}
        self._taken: dict[int, str] = {}

    def rank(self, place: str, local: int, told: int | None) -> int | None:
        """Return the rank of a line; None if it is unknown.

        A number of a machine is taken as the rank if no line shows another one, and no other
        machine has the same number.

        Args:
            place: The machine, as far as inputs show it.
            told: The rank that the line names.
        """
        known = self._known.setdefault(place, {})
        if told is not None:
            known[local] = told
            return told
        if local in known:
            return known[local]
        is_alike = all(key == value for key, value in known.items())
        if not is_alike or self._taken.setdefault(local, place) != place:
            return None
        return local


Show = Callable[[Line], int]
"""Takes a line, and returns how many lines behind it are wanted, too."""


class Search:
    """Searches inputs for lines that have one of some texts.

    Attributes:
        lines: How many lines of all inputs were read.
        shown: How many of them the readers have seen.
    """

    def __init__(
        self,
        needles: Sequence[bytes],
        show: Show,
        progress: Callable[[str, int], None] = lambda _name, _bytes: None,
    ) -> None:
        """Make one.

        Args:
            show: Takes each line that matters.
            progress: Takes the name of an input and how many more of its bytes have been read.
        """
        self.lines = 0
        self.shown = 0
        self._ranks, self._machine = _Ranks(), ""
        self._progress = progress
        self._needles = tuple(needles)
        self._show = show

    def read(self, stream: BinaryIO, name: str, rank: int | None, machine: str = "") -> None:
        """Read an input to its end.

        Args:
            rank: The rank that wrote it, if its name says so.
            machine: Of which machine that is the number; empty if it is that of the job.
        """
        self._machine = machine
        number, rest, wanted = 0, b"", 0
        is_first = True
        while True:
            block = stream.read(BLOCK)
            self._progress(name, len(block))
            data = rest + block
            end = data.rfind(b"\n") + 1 if block else len(data)
            if block and not end:
                rest = data if len(data) <= _CARRY else data[:_CARRY]  # a line without an end
                continue
            rest = data[end:]
            if is_first and len(data) <= SHORT:
                wanted = data.count(b"\n") + 1  # a short file is read as a whole
            is_first = False
            number, wanted = self._block(data[:end], name, rank, number, wanted)
            if not block:
                break
        self.lines += number

    def _block(
        self, data: bytes, name: str, rank: int | None, number: int, wanted: int
    ) -> tuple[int, int]:
        """Show the lines of a block that matter; return the number of lines, and of wanted ones."""
        at = 0
        hits = self._hits(data)
        hit = next(hits, None)
        while at < len(data):
            if not wanted:
                if hit is None:
                    break
                start = data.rfind(b"\n", 0, hit) + 1
                if start > at:
                    number += data.count(b"\n", at, start)
                    at = start
            end = data.find(b"\n", at)
            end = len(data) if end < 0 else end
            number += 1
            wanted = max(0, wanted - 1)
            if self.shown < MAX_SHOWN:
                wanted = max(
                    wanted, self._line(data[at : min(end, at + MAX_LINE)], name, rank, number)
                )
            else:
                wanted = 0
            at = end + 1
            while hit is not None and hit < at:
                hit = next(hits, None)
        if at < len(data):
            number += data.count(b"\n", at) + (not data.endswith(b"\n"))
        return number, wanted

    def _hits(self, data: bytes) -> Iterator[int]:
        """Yield the places of all texts in order."""
        places: list[int] = []
        for each in self._needles:
            own = each.lstrip(b"\n")
            behind = len(each) - len(own)  # a line feed in front: the text begins a line
            if behind and data.startswith(own):
                places.append(0)
            at = data.find(each)
            while at >= 0:
                places.append(at + behind)
                at = data.find(each, at + len(each))
        yield from sorted(places)

    def _line(self, raw: bytes, name: str, rank: int | None, number: int) -> int:
        self.shown += 1
        wanted = 0
        text = raw.decode("utf-8", "replace")
        for part in text.split("\r") if "\r" in text else (text,):  # bars of progress
            if part or "\r" not in text:
                plain, told, local, stream = normalised(part)
                own, local = (None, rank) if self._machine else (rank, local)
                known = told if told is not None else own
                if local is not None and (known is None or told is not None):
                    known = self._ranks.rank(self._machine or name, local, told)
                line = Line(
                    f"{name}:{number}",
                    self.lines + number,
                    known,
                    told is not None or own is not None,
                    f"{name} rank {known}" if known is not None else f"{name}{stream}",
                    plain,
                )
                wanted = max(wanted, self._show(line))
        return wanted
