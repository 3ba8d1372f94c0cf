"""The interface of a reader: it turns the lines of a log that it knows into facts."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from pytest_multihost.extensions.logs.lines import Line
from pytest_multihost.extensions.logs.said import Said

Parse = Callable[[Line, Callable[[Said], None]], int]
"""Takes a line and a function for the facts; returns how many lines behind it are wanted, too."""


@dataclass(frozen=True, slots=True)
class Reader:
    """Reads one kind of text.

    Attributes:
        name: The kind, for the reader of the code.
        needles: Texts of which a line of this kind has one.
        begin: Returns a function that parses the lines of a job in order.
    """

    name: str
    needles: tuple[bytes, ...]
    begin: Callable[[], Parse]


def of_single_lines(
    name: str, needles: tuple[bytes, ...], read: Callable[[Line], Iterable[Said]]
) -> Reader:
    """Return a reader whose lines each say something by themselves."""
    texts = tuple(each.decode() for each in needles)

    def parse(line: Line, say: Callable[[Said], None]) -> int:
        if any(each in line.text for each in texts):
            for each in read(line):
                say(each)
        return 0

    return Reader(name, needles, lambda: parse)
