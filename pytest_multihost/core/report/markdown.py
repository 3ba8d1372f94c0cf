"""Writes text from tests as literal text in GitHub Flavored Markdown, and fits parts to a size."""

from __future__ import annotations

import re
from collections.abc import Iterable

from pytest_multihost.core.model.printable import visible

_MAX_CELL = 300
_PUNCTUATION = re.compile(r"[\\`*{}\[\]()#+.!|~<>&@:\"'=$-]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")
"""Characters with a meaning in Markdown, in HTML, or to GitHub, such as @ and #.

An underscore within a word has none.
"""

_BEGINS = re.compile(r"[\\`*\[\]<>&@!|~]|(?<=www)\.|(?<=:)/(?=/)")
"""Characters that begin an element, a link, or a mention of a user."""

CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")
"""Control characters except tab and line feed, and surrogates, which UTF-8 cannot encode."""


def escaped(value: object, limit: int = _MAX_CELL) -> str:
    """Return a text escaped so that Markdown and HTML show it literally, on one line.

    Punctuation becomes character references, which have no meaning in Markdown: they neither end a
    table cell nor begin a link, a mention of a user or an HTML element. A backslash is not enough,
    because tables and autolinks are parsed before backslashes.
    """
    line = visible(" ".join(CONTROLS.sub(" ", str(value)).split()))
    shown = line if len(line) <= limit else f"{line[: limit - 1]}…"
    return _PUNCTUATION.sub(lambda found: f"&#{ord(found[0])};", shown)


def quoted(text: str) -> str:
    """Return a text for a document that people also read as it is: it cannot begin an element.

    `escaped` is for tables, whose source people do not read; here letters and full stops stay.
    """
    line = visible(" ".join(CONTROLS.sub(" ", text).split()))
    return _BEGINS.sub(lambda found: f"&#{ord(found[0])};", line)


def code(text: str) -> str:
    """Return a text as code within a line, whatever it holds."""
    line = visible(" ".join(CONTROLS.sub(" ", text).split()))
    fence = "`" * (1 + max((len(each) for each in re.findall("`+", line)), default=0))
    space = " " if "`" in line[:1] + line[-1:] else ""
    return f"{fence}{space}{line}{space}{fence}" if line else ""


def block(text: str, language: str = "") -> str:
    """Return lines as a block of code that they cannot end."""
    shown = visible(text.rstrip())
    fence = "`" * max(3, 1 + max((len(each) for each in re.findall("`+", shown)), default=0))
    return f"{fence}{language}\n{shown}\n{fence}"


def fitted(parts: Iterable[str], left_out: str, max_bytes: int) -> str:
    """Return as many of the first parts as fit, with a note if some do not.

    Args:
        left_out: The note; skipped if even the note alone does not fit.
        max_bytes: The maximum size of the returned text.
    """
    text, left = "", max_bytes - len(left_out.encode())
    for part in parts:
        left -= len(part.encode())
        if left < 0:
            return text + (left_out if max_bytes >= len(left_out.encode()) else "")
        text += part
    return text
