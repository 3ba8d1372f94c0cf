"""Markdown in which the text of tests stays text, cut to a maximum size.

GitHub Flavored Markdown, in which HTML is allowed. Punctuation is written as character references;
see `escaped`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_MAX_CELL = 300
_PUNCTUATION = re.compile(r"[\\`*_{}\[\]()#+.!|~<>&@:\"'=$-]")
"""Characters with a meaning in Markdown, in HTML, or to GitHub, such as @ and #."""

CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")
"""Control characters except tab and line feed, and what cannot be encoded as UTF-8."""


def escaped(value: object, limit: int = _MAX_CELL) -> str:
    """Return a text escaped so that Markdown and HTML show it literally, on one line.

    A character that is written as a reference has no meaning in Markdown: it neither ends a table's
    cell, nor begins a link, a mention of a user or an element. A backslash is not enough: tables
    and autolinks are parsed before backslashes.
    """
    line = " ".join(CONTROLS.sub(" ", str(value)).split())
    shown = line if len(line) <= limit else f"{line[: limit - 1]}…"
    return _PUNCTUATION.sub(lambda found: f"&#{ord(found[0])};", shown)


def fitted(parts: Iterable[str], left_out: str, max_bytes: int) -> str:
    """Return as many of the first parts as fit, with a note if some do not.

    Args:
        parts: Parts of a page.
        left_out: The note; it is left out, too, where not even it fits.
        max_bytes: The maximum size of the page.
    """
    text, left = "", max_bytes - len(left_out.encode())
    for part in parts:
        left -= len(part.encode())
        if left < 0:
            return text + (left_out if max_bytes >= len(left_out.encode()) else "")
        text += part
    return text
