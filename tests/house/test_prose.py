"""The prose of README, ARCHITECTURE and the guide avoids the habits in docs/words.toml."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "ARCHITECTURE.md", *sorted((ROOT / "docs").rglob("*.md"))]
HABITS = tomllib.loads((ROOT / "docs" / "words.toml").read_text(encoding="utf-8"))["habit"]
NO_PROSE = re.compile(r"(?ms)^ *```.*?^ *```|<!--.*?-->|`[^`]*`|^#.*?$|^(?: {4}|\|).*?$")


def prose(text: str) -> str:
    """Return a page without code, comments, headings and tables; each line keeps its number."""
    return NO_PROSE.sub(lambda found: "X" + "\n" * found[0].count("\n"), text)


def habits_in(text: str) -> list[str]:
    """Return the advice for each habit in a text, with the line."""
    return [
        f"line {text[: found.start()].count(chr(10)) + 1}: {found[0]!r}: {each['advice']}"
        for each in HABITS
        for found in re.finditer(each["pattern"], text, re.MULTILINE)
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_avoids_the_habits(page: Path) -> None:
    """Each one has advice; a page that needs such a word can put it into code."""
    assert habits_in(prose(page.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize(
    "sentence",
    [
        "It fails. What hangs is a weakness.",
        "Weaknesses are told at the end.",
        "The rank has left the test.",
        "This is simply a barrier.",
        "A stack shows a futex.",
    ],
)
def test_a_habit_is_found(sentence: str) -> None:
    """A pattern that finds nothing would keep nothing out."""
    assert len(habits_in(prose(sentence))) == 1


@pytest.mark.parametrize(
    "text",
    ["What is a rank? A process.", "Run `futex`.", "```\nvery\n```", "| what | simply |", "## Who"],
)
def test_questions_code_tables_and_headings_are_free(text: str) -> None:
    """They are not sentences of the guide."""
    assert habits_in(prose(text)) == []
