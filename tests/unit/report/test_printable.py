"""Text from elsewhere neither repaints a terminal nor is taken for a command of CI."""

from __future__ import annotations

import pytest
from foreign import CONTROL, TEXTS, require_printable

from pytest_multihost.core.report.layout import Section, Span
from pytest_multihost.core.report.live_line import overlay
from pytest_multihost.core.report.markdown import escaped
from pytest_multihost.testing import printable


@pytest.mark.parametrize(
    "text", [*TEXTS, *map(chr, range(32)), *map(chr, range(127, 160))], ids=ascii
)
def test_hostile_text_is_shown_and_does_nothing(text: str) -> None:
    """It is one line, or each of its lines does nothing; sections and live lines print it so."""
    assert "\n" not in printable(f"a{text}b")
    require_printable(printable(text))
    require_printable(printable(f"{text}\n{text}", keeps_lines=True))
    section = Section(text, ((Span(text), Span(text, "culprit")),))
    require_printable(section.text)
    assert not CONTROL.search(section.painted.replace("\x1b[31;1m", "").replace("\x1b[0m", ""))
    assert not CONTROL.search(escaped(text))
    assert not CONTROL.search(overlay(text, 80).replace("\x1b", ""))


@pytest.mark.parametrize(
    "text",
    [
        "tests/test_a.py::TestB::test_c[1-::x]",
        "all_reduce #20 (world group) » dist.all_reduce(x)  → ► …",
        "naïve 名前 שלום 🎉 e\u0301",
        "a\tb",
        "https://example.org/#a[0]",
        "",
    ],
)
def test_plain_text_is_unchanged(text: str) -> None:
    """Letters of all scripts, tabs and the signs of our own pages stay as they are."""
    assert printable(text) == text
    assert printable(f"{text}\n{text}", keeps_lines=True) == f"{text}\n{text}"
