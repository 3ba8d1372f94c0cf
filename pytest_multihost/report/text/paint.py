"""The colours of a page on a terminal. Whether there are any is pytest's to decide."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

Markup = Mapping[str, bool]

_PLAIN: Markup = {}
_CULPRIT: Markup = {"red": True, "bold": True}
_WAITING: Markup = {"yellow": True}
_TITLE: Markup = {"cyan": True}
_FAINT: Markup = {"light": True}

_TITLED = re.compile(r"  (evidence|note|fault|replay|files)(?= )")
_WAITS = re.compile(r"    ranks? [\d,-]+ +waiting\b")
_SOURCE = re.compile(r"(?<=\d)  » .*")


def painted(line: str) -> Iterator[tuple[str, Markup]]:
    """Yield the parts of a line of a page, each with its markup for pytest's terminal writer."""
    if line.startswith("  ► "):
        yield line, _CULPRIT
    elif _WAITS.match(line):
        yield line, _WAITING
    elif titled := _TITLED.match(line):
        yield line[: titled.end()], _TITLE
        yield line[titled.end() :], _PLAIN
    elif source := _SOURCE.search(line):
        yield line[: source.start()], _PLAIN
        yield line[source.start() :], _FAINT
    else:
        yield line, _PLAIN
