"""The colours of a page: the culprit stands out, and no letter is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_multihost.report.text.paint import painted

GOLDEN = Path(__file__).parent.parent / "golden"
PAGE = (GOLDEN / "straggler.txt").read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize("line", PAGE)
def test_painting_loses_no_letter(line: str) -> None:
    """Without colours the page reads the same."""
    assert "".join(part for part, _ in painted(line)) == line


def test_the_culprit_stands_out() -> None:
    """It is what the reader looks for."""
    [line] = [line for line in PAGE if "►" in line]
    assert list(painted(line)) == [(line, {"red": True, "bold": True})]


def test_who_waits_is_told_from_who_does_not() -> None:
    """Between the culprit and the rest."""
    [line] = [line for line in PAGE if line.startswith("    ranks 1-3")]
    assert list(painted(line)) == [(line, {"yellow": True})]


def test_titles_are_told_from_what_they_stand_for() -> None:
    """They are the same on every page."""
    [line] = [line for line in PAGE if line.startswith("  files")]
    (title, markup), (rest, plain) = painted(line)
    assert (title, markup, plain) == ("  files", {"cyan": True}, {})
    assert rest.strip().startswith(".pytest_multihost/")
