"""README, the guide and the messages of the package avoid the habits in docs/words.toml."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "ARCHITECTURE.md", *sorted((ROOT / "docs").rglob("*.md"))]
WORDS = tomllib.loads((ROOT / "docs" / "words.toml").read_text(encoding="utf-8"))
HABITS = WORDS["habit"]
GUIDE = [page for page in PAGES if page.name not in {"ARCHITECTURE.md", "changelog.md"}]
PACKAGE = ROOT / "pytest_multihost"
FREE_IN_MESSAGES = "just", "very", "futex"
"""Words that a message may have: "has just ended", and the names of system calls in tables."""
NO_PROSE = re.compile(r"(?ms)^ *```.*?^ *```|<!--.*?-->|`[^`]*`|\]\([^)]*\)|^#.*?$|^ {4}.*?$")
RULE = re.compile(r"(?m)^\|[-| ]*$|^\| *|(?<!\\)\|")


def prose(text: str) -> str:
    """Return a page without code, comments, headings and links; each line keeps its number.

    The bars of tables are gone, too: what stands between them is read like any other sentence.
    """
    without = NO_PROSE.sub(lambda found: "X" + "\n" * found[0].count("\n"), text)
    return RULE.sub("", without)


def habits_in(text: str, habits: Sequence[Mapping[str, str]] = HABITS) -> list[str]:
    """Return the advice for each habit in a text, with the line."""
    return [
        f"line {text[: found.start()].count(chr(10)) + 1}: {found[0]!r}: {each['advice']}"
        for each in habits
        for found in re.finditer(each["pattern"], text, re.MULTILINE)
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_avoids_the_habits(page: Path) -> None:
    """Each one has advice; a page that needs such a word can put it into code."""
    assert habits_in(prose(page.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize("page", GUIDE, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_has_the_words_of_the_field(page: Path) -> None:
    """One word for each thing, which people who search for it know; reports stand in code."""
    assert habits_in(prose(page.read_text(encoding="utf-8")), WORDS["term"]) == []


@pytest.mark.parametrize("page", [page for page in GUIDE if page.parent.name == "docs"], ids=str)
def test_a_page_says_for_whom_it_is(page: Path) -> None:
    """In its first sentence; the pages about other people's suites say it in their own way."""
    own = {"adopt.md", "coming-from.md", "watch.md"}
    first = page.read_text(encoding="utf-8").split("\n\n")[1]
    assert page.name in own or first.startswith("For ")


def messages(source: str) -> list[str]:
    """Return the texts of at least three words in a program, without its docstrings."""
    nodes = list(ast.walk(ast.parse(source)))
    parts = {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
    parts |= {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    texts = [
        "".join(str(p.value) if isinstance(p, ast.Constant) else "X" for p in node.values)
        if isinstance(node, ast.JoinedStr)
        else str(node.value)
        for node in nodes
        if isinstance(node, ast.JoinedStr | ast.Constant) and id(node) not in parts
    ]
    return [text for text in texts if len(text.split()) >= 3]


@pytest.mark.parametrize("room", ["core", "extensions", "."])
def test_the_messages_of_the_package_avoid_the_habits(room: str) -> None:
    """A help text or an error is read more often than a page."""
    files = (PACKAGE / room).rglob("*.py") if room != "." else PACKAGE.glob("*.py")
    found = [
        f"{path.relative_to(ROOT)}: {text[:80]!r}: {habit}"
        for path in sorted(files)
        for text in messages(path.read_text(encoding="utf-8"))
        for habit in habits_in(prose(f"{text}."))
        if not any(repr(free) in habit for free in FREE_IN_MESSAGES)
    ]
    assert found == []


def test_a_message_is_found() -> None:
    """In a call, in a formatted text; a docstring is for developers."""
    source = 'def f(x):\n    """The GIL is told."""\n    raise E(f"{x} is told so", "it is told")\n'
    assert messages(source) == ["X is told so", "it is told"]


@pytest.mark.parametrize(
    "sentence",
    [
        "It fails. What hangs is a weakness.",
        "Weaknesses are told at the end.",
        "The rank has left the test.",
        "This is simply a barrier.",
        "A stack shows a futex.",
        "Its last words are in the log.",
        "The file is no folder.",
        "| `x` | it is simply so |",
        "These are no options.",
    ],
)
def test_a_habit_is_found(sentence: str) -> None:
    """A pattern that finds nothing would keep nothing out."""
    assert len(habits_in(prose(sentence))) == 1


@pytest.mark.parametrize(
    "text",
    [
        "There is no folder.",
        "It is no longer so.",
        "What is a rank? A process.",
        "Run `futex`.",
        "```\nvery\n```",
        "## Who",
    ],
)
def test_questions_code_and_headings_are_free(text: str) -> None:
    """They are not sentences of the guide."""
    assert habits_in(prose(text)) == []
