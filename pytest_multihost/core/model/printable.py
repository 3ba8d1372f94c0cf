"""Makes text from elsewhere printable: file and frame names, command lines, titles, messages.

Such text may hold escape sequences that repaint a terminal, characters that reverse the order of
letters, or a line that a CI system takes for a command. Nothing of a dump, of another process or of
a file of another program is printed without `printable`.
"""

from __future__ import annotations

import re
from functools import cache


@cache  # every run of pytest imports this module, and most print no such text
def _unseen() -> re.Pattern[str]:
    """Match characters that are invisible, move the cursor, or change the order of letters."""
    return re.compile(
        "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad"  # control characters except tab and line feed
        "\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
        "\U000e0000-\U000e007f"
        "\ud800-\udfff]"  # halves of a character, which no encoding has
    )


@cache
def _command() -> re.Pattern[str]:
    """Match the beginning of a command of GitHub, Azure or TeamCity: ``::error``, ``##[error]``."""
    return re.compile(r"^([^\S\n]*):(?=:)|#(?=#\w*\[)", re.MULTILINE)


def visible(text: str) -> str:
    """Return a text whose control characters, except tab and line feed, are visible."""
    # Unicode has a visible symbol for each ASCII control character, from U+2400 on.
    return _unseen().sub(
        lambda found: chr(0x2400 + ord(found[0])) if found[0] < " " else _escaped(found[0]), text
    )


def printable(text: str, *, keeps_lines: bool = False) -> str:
    """Return a text from elsewhere that may be printed: no control characters, no CI command.

    Args:
        keeps_lines: Whether line feeds are kept; else the result is one line.
    """
    found = visible(text if keeps_lines else text.replace("\n", "\u240a"))
    return _command().sub(lambda sign: f"{sign[1] or ''}{_escaped(sign[0].lstrip())}", found)


MAX_TEXT = 8000
"""The maximum length of a text from elsewhere in one part of an error."""


def bounded(text: str) -> str:
    """Return a text, cut in the middle if it is longer than a reader would want."""
    half = MAX_TEXT // 2
    if len(text) <= MAX_TEXT:
        return text
    return f"{text[:half]} ... {len(text) - 2 * half} characters left out ... {text[-half:]}"


def _escaped(character: str) -> str:
    number = ord(character)
    return f"\\u{number:04x}" if number < 1 << 16 else f"\\U{number:08x}"
