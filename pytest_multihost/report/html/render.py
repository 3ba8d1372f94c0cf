"""Render values as HTML: the templates' environment, and text that is safe in a page.

All output of a template is made readable by `display_text` and then escaped by Jinja2. So no text
or name from a test can become an element, a script, a terminal's escape sequence, or a character
that reverses the order of letters. The only strings that are printed unescaped: the plugin's style
sheet, its script, and the JSON that `script_json` has made safe.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_multihost.model.operation import rank_set
from pytest_multihost.report.html.sections import folded

if TYPE_CHECKING:
    import jinja2

_TEMPLATES = Path(__file__).with_name("templates")

_ESCAPE_SEQUENCE = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # colours, cursor movements
    r"|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?"  # titles, links
    r"|\x1b[ -/]*[0-~]"
)
_UNSEEN = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""Control characters except tab and line feed, and those that change the order of letters."""


@dataclass(frozen=True, slots=True)
class Assets:
    """Style and script of a page.

    Attributes:
        style: CSS.
        script: JavaScript.
    """

    style: str
    script: str

    @property
    def policy(self) -> str:
        """A Content-Security-Policy: the page loads nothing and runs only this script."""
        return (
            f"default-src 'none'; img-src data:; style-src '{_hash(self.style)}';"
            f" script-src '{_hash(self.script)}'; base-uri 'none'; form-action 'none'"
        )


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"


def display_text(text: str) -> str:
    """Return a text without terminal escape sequences, other control characters made visible."""
    return _UNSEEN.sub(_visible, _ESCAPE_SEQUENCE.sub("", text))


def _visible(found: re.Match[str]) -> str:
    code = ord(found[0])
    # Unicode has a visible symbol for each ASCII control character.
    return chr(0x2400 + code) if code < 0x20 else f"\\u{code:04x}"  # noqa: PLR2004


def script_json(value: object) -> str:
    """Return JSON that is safe in a script element: nothing in it can end the element."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    for sign in "<>&\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text


def render(template: str, assets: Assets, **values: object) -> str:
    """Return a page: a template's file, filled with values."""
    return _environment().get_template(template).render(assets=assets, **values)


@cache
def _environment() -> jinja2.Environment:
    # Imported when the first page is written: most runs of pytest write none.
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=_finalized,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    environment.filters["rank_set"] = rank_set
    environment.globals["folded"] = folded
    return environment


def _finalized(value: object) -> object:
    """Return a value as a template prints it; text that is markup already is unchanged."""
    if isinstance(value, str) and not hasattr(value, "__html__"):
        return display_text(value)
    return value
