"""Text that is safe in a page: whatever is not known to be markup is escaped.

There is no way to put a string into a page unescaped but to say `Markup`, and only this module and
the assets' reader do. Nothing that a test has printed or named can become an element, a script, a
terminal's escape sequence, or a character that turns the order of letters around.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

_ESCAPE_SEQUENCE = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # colours, movements of the cursor
    r"|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?"  # titles, links
    r"|\x1b[ -/]*[0-~]"
)
_UNSEEN = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""Control characters but tab and line feed, and those that change the order of letters."""

_VOID = frozenset({"meta", "link", "br", "hr", "input"})


@dataclass(frozen=True, slots=True)
class Markup:
    """HTML that is right as it is."""

    text: str


Content = Markup | str | int | Iterable["Content"] | None
"""What an element may contain. Strings are escaped; None is nothing."""


def plain(text: str) -> str:
    """Return a text without a terminal's escape sequences, other control characters shown."""
    return _UNSEEN.sub(_shown, _ESCAPE_SEQUENCE.sub("", text))


def _shown(found: re.Match[str]) -> str:
    code = ord(found[0])
    return chr(0x2400 + code) if code < 0x20 else f"\\u{code:04x}"  # noqa: PLR2004 - ASCII's pictures


def escape(text: str) -> str:
    """Return a text as it is to stand in a page."""
    return html.escape(plain(text))


def element(tag: str, /, *content: Content, **attributes: str | int | bool | None) -> Markup:
    """Return an element.

    Args:
        tag: Its name.
        content: What it contains.
        attributes: Its attributes; a trailing underscore is dropped and others become hyphens. True
            stands alone, None and False are left out.
    """
    head = tag + "".join(
        f" {_attribute(name, value)}" for name, value in attributes.items() if _is_set(value)
    )
    return Markup(f"<{head}>" if tag in _VOID else f"<{head}>{joined(content).text}</{tag}>")


def _is_set(value: object) -> bool:
    return value is not None and value is not False


def _attribute(name: str, value: str | int | bool | None) -> str:  # noqa: FBT001 - an attribute's value
    name = name.rstrip("_").replace("_", "-")
    return name if value is True else f'{name}="{escape(str(value))}"'


def joined(content: Content) -> Markup:
    """Return several things as one."""
    return Markup("".join(_texts(content)))


def _texts(content: Content) -> Iterable[str]:
    if isinstance(content, Markup):
        yield content.text
    elif isinstance(content, str):
        yield escape(content)
    elif isinstance(content, int):
        yield str(content)
    elif content is not None:
        for each in content:
            yield from _texts(each)


def data_block(name: str, value: Any) -> Markup:  # noqa: ANN401 - JSON
    """Return an element that scripts read JSON from; nothing in it can end it."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    for sign in "<>&\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return Markup(f'<script type="application/json" id="{escape(name)}">{text}</script>')
