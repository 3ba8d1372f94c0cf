"""Renders values as HTML: the environment of the templates, and text that is safe in a page.

`display_text` makes all output of a template readable, and Jinja2 then escapes it. Therefore no
text or name from a test can become an element, a script, a terminal escape sequence, or a character
that reverses the order of letters. The only unescaped strings are the style sheets, the scripts,
the JSON that `script_json` has made safe, and parts that such a template has rendered.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from pytest_multihost.core.model.printable import visible
from pytest_multihost.core.report.html.sections import folded

if TYPE_CHECKING:
    import jinja2

_ASSETS = Path(__file__).with_name("assets")
_TEMPLATES = Path(__file__).with_name("templates")

_ESCAPE_SEQUENCE = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # colours, cursor movements
    r"|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?"  # titles, links
    r"|\x1b[ -/]*[0-~]"
)


def display_text(text: str) -> str:
    """Return a text without terminal escape sequences; other control characters become visible."""
    return visible(_ESCAPE_SEQUENCE.sub("", text))


def inside(path: str) -> str:
    """Return the address of a path below a folder for the attribute of a link.

    A path that leaves the folder leads nowhere: foreign artifacts may name it. No
    address begins with a scheme, since a colon is quoted, or with an empty part, as "//host" does.
    """
    parts = path.split("/")
    if {"", ".", ".."} & {*parts}:
        return "#"
    return "/".join(quote(each, errors="replace", safe="") for each in parts)


def script_json(value: object) -> str:
    """Return JSON that is safe in a script element, because nothing in it can end the element."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    for sign in "<>&\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text


def render(
    template: str, scripts: Iterable[str], *, folder: Path | None = None, **values: object
) -> str:
    """Return a page: a template filled with values, with its styles and scripts.

    Args:
        template: The name of the template's file.
        scripts: Names of the script files, in order.
        folder: An extension's folder with its own `templates` and `assets`; the page also gets all
            style sheets there.
    """
    assets = [_ASSETS] if folder is None else [folder / "assets", _ASSETS]
    own = sorted(assets[0].glob("*.css")) if folder is not None else []
    style = "".join(path.read_text("utf-8") for path in (_ASSETS / "report.css", *own))
    paths = [next(each / name for each in assets if (each / name).exists()) for name in scripts]
    script = "\n".join(path.read_text("utf-8") for path in paths)
    found = environment(folder).get_template(template)
    return found.render(style=style, script=script, **values)


def render_part(folder: Path, template: str, **values: object) -> str:
    """Return a part of a page as HTML, which templates print unescaped.

    Args:
        folder: An extension's folder, with the template in `templates`.
        template: The file's name; the template can import the macros of ``macros.html.j2``.
    """
    import markupsafe

    found: jinja2.Template = environment(folder).get_template(template)
    return markupsafe.Markup(found.render(**values))  # noqa: S704 - the output of autoescape


def _digest(text: str) -> str:
    """Return a text's hash for the Content-Security-Policy, which lets only this script run."""
    digest = hashlib.sha256(text.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"


@cache
def environment(folder: Path | None = None) -> jinja2.Environment:
    """Return the environment of all templates, including those of an extension's folder."""
    # Imported with the first page, because most runs of pytest write none.
    import jinja2

    folders = [_TEMPLATES] if folder is None else [folder / "templates", _TEMPLATES]
    found = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folders),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        # Markup is printed unchanged.
        finalize=lambda value: (
            display_text(value)
            if isinstance(value, str) and not hasattr(value, "__html__")
            else value
        ),
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    found.filters["digest"] = _digest
    found.filters["inside"] = inside
    found.globals["folded"] = folded
    return found
