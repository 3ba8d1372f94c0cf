"""README and the guide are in plain English: phrases that stopped readers stay out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "conftest_examples").glob("*/README.md")),
]
WORDS = Path(__file__).with_name("prose_words.txt")


def phrases() -> list[str]:
    """Return the regular expressions of the word list, without its comments."""
    lines = WORDS.read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def prose_of(text: str) -> str:
    """Return a page without its blocks of code and its code in lines."""
    without_blocks = re.sub(r"(?ms)^```.*?^```", "", text)
    return re.sub(r"`[^`]*`", "", without_blocks)


def found_in(text: str) -> list[str]:
    """Return the phrases of the word list that a page contains."""
    prose = " ".join(prose_of(text).split())
    return [each[0] for phrase in phrases() for each in re.finditer(phrase, prose)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_has_no_phrase_that_stopped_readers(page: Path) -> None:
    """The word list says why each phrase is on it, and what to write instead."""
    assert found_in(page.read_text(encoding="utf-8")) == []


def test_a_phrase_of_the_list_is_found_across_two_lines() -> None:
    """Code is exempt: an output of the plugin may be quoted."""
    assert found_in("An entry is\ntold to the reader.") == ["is told"]
    assert found_in("`is told`\n```\nis told\n```\n") == []
