"""The layout of text for the terminal: lines with roles for colours, titled facts, tables."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from pytest_multihost.model.operation import rank_set

Role = Literal[
    "plain",
    "culprit",  # a row of the table: the culprit, or the rank that decided
    "waiting",  # a row of the table: ranks that wait for another
    "title",  # the title of the text to its right
    "source",  # a line of the user's code
    "good",  # that nothing is wrong
]

COLOURS: Mapping[Role, Mapping[str, bool]] = {
    "plain": {},
    "culprit": {"red": True, "bold": True},
    "waiting": {"yellow": True},
    "title": {"cyan": True},
    "source": {"light": True},
    "good": {"green": True},
}
"""Arguments for pytest's terminal writer by role; it decides whether to use colours."""


_CODES = {"bold": "1", "light": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}
"""Numbers of escape sequences for the names in `COLOURS`."""


class Span(NamedTuple):
    """A part of a line, with the role that determines its colour."""

    text: str
    role: Role = "plain"


Line = tuple[Span, ...]

WIDTHS = (80, 160)
"""The minimum and maximum width of a page; only text to be copied may exceed it."""

INDENT = Span("  ")
MARGIN = 10  # columns for a title, left of its facts

_MAX_ROWS = 6
_LEAST_ROOM = 16
_USUAL = 48  # a longer text moves only its own place to the right
_BETWEEN = 8  # columns between the cells of a row, and for the mark


def text_of(lines: Iterable[Line]) -> str:
    """Return lines without their roles."""
    return "\n".join("".join(span.text for span in line) for line in lines)


def clip(text: str, width: int) -> str:
    """Return as much of a text as fits, with a mark where it is cut."""
    return text if len(text) <= width else text[: width - 1] + "…"


def clip_line(line: Line, width: int) -> Line:
    """Return as much of a line as fits, with a mark where it is cut."""
    if sum(len(span.text) for span in line) <= width:
        return line
    spans, room = [], width - 1
    for span in line:
        spans.append(span._replace(text=span.text[:room]))
        room -= len(spans[-1].text)
    return (*(span for span in spans if span.text), Span("…"))


@dataclass(frozen=True, slots=True)
class Section:
    """A titled part of the report."""

    title: str
    lines: tuple[Line, ...]

    @property
    def text(self) -> str:
        """The lines without colours."""
        return text_of(self.lines)

    @property
    def painted(self) -> str:
        """The lines with the escape sequences of their colours."""
        return "\n".join("".join(map(_painted, line)) for line in self.lines)


def _painted(span: Span) -> str:
    codes = ";".join(_CODES[name] for name in COLOURS[span.role])
    return f"\x1b[{codes}m{span.text}\x1b[0m" if codes and span.text else span.text


# Facts under a title


def titled(title: str, facts: Iterable[str], width: int) -> Iterator[Line]:
    """Yield facts under their title, each folded to the width."""
    margin = " " * MARGIN
    for fact in facts:
        folded = textwrap.wrap(
            fact,
            width,
            initial_indent=margin,
            subsequent_indent=f"{margin}  ",
            break_long_words=False,
            break_on_hyphens=False,
        )
        yield titled_line(title, folded[0].strip() if folded else "")
        yield from ((Span(line),) for line in folded[1:])
        title = ""


def titled_line(title: str, text: str) -> Line:
    """Return one line with its title."""
    return (Span(title, "title"), Span(" " * (MARGIN - len(title)) + text))


# Rows in columns


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the table: a group of ranks.

    Attributes:
        ranks: The members.
        role: "culprit" if one of them is a culprit, or decided the outcome.
        state: One word.
        details: Details of the state.
        place: A line of code.
        source: Its text; empty where that is not to be shown.
    """

    ranks: tuple[int, ...]
    role: Role
    state: str
    details: str
    place: str
    source: str = ""


def table(rows: Sequence[Row], width: int) -> Iterator[Line]:
    """Yield rows in columns; details are cut if they do not fit."""
    shown = rows[:_MAX_ROWS]
    names = [rank_set(row.ranks) for row in shown]
    name, state, place = (
        max(map(len, column), default=0)
        for column in (names, [row.state for row in shown], [row.place for row in shown])
    )
    room = max(_LEAST_ROOM, width - name - state - place - _BETWEEN)
    details = min(room, _USUAL, max((len(row.details) for row in shown), default=0))
    for title, row in zip(names, shown, strict=True):
        text = (
            f"{'►' if row.role == 'culprit' else ' '} {title:<{name}}  {row.state:<{state}}"
            f"  {clip(row.details, room):<{details}}  {row.place:<{place}}"
        )
        if row.source:
            yield (Span(text, row.role), Span(f"  » {row.source}", "source"))
        else:
            yield (Span(text.rstrip(), row.role),)
    if len(rows) > _MAX_ROWS:
        yield (Span(f"  and {len(rows) - _MAX_ROWS} more groups of ranks in verdict.json"),)
