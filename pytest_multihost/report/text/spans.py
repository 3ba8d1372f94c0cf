"""Text whose parts have roles: pages are made of them, and roles determine the colours."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

Role = Literal[
    "plain",
    "culprit",  # a row of the table: the culprit, or the rank that decided
    "waiting",  # a row of the table: ranks that wait for another
    "title",  # the title of the text to its right
    "source",  # a line of the user's code
]

COLOURS: Mapping[Role, Mapping[str, bool]] = {
    "plain": {},
    "culprit": {"red": True, "bold": True},
    "waiting": {"yellow": True},
    "title": {"cyan": True},
    "source": {"light": True},
}
"""Arguments for pytest's terminal writer by role; it decides whether to use colours."""


class Span(NamedTuple):
    """A part of a line."""

    text: str
    role: Role = "plain"


Line = tuple[Span, ...]


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
