"""Pages, messages, docstrings and comments avoid the habits in docs/words.toml."""

from __future__ import annotations

import ast
import io
import re
import tokenize
import tomllib
from collections.abc import Iterator, Mapping, Sequence
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
FOLDERS = [*PACKAGE.iterdir(), *(PACKAGE / "extensions").iterdir()]
ROOMS = sorted(
    str(each.relative_to(PACKAGE)) for each in FOLDERS if (each / "__init__.py").exists()
)
"""The folders of the package and of its extensions."""
SYSTEM_CALLS = ("futex",)
"""The words that docstrings and comments may have, too: they explain code."""
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


def developer_texts(source: str) -> Iterator[tuple[int, str]]:
    """Yield each docstring and comment of a program with its line; paragraphs are one line each.

    A docstring may also stand below an assignment. Entries of Google style are sentences, too.
    """
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            text = re.sub(r"(?m)^ +", "", str(node.value.value)).replace("``", "`")
            yield node.lineno, re.sub(r"(?<!\n)\n(?=[^\n*-])", " ", text)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string.lstrip("# ")


def developer_habits(text: str) -> list[str]:
    """Return the advice for a docstring or a comment."""
    found = habits_in(prose(text), [*HABITS, *WORDS["docstring"]])
    return [each for each in found if not any(repr(call) in each for call in SYSTEM_CALLS)]


@pytest.mark.parametrize("room", [".", *ROOMS])
def test_docstrings_and_comments_avoid_the_habits(room: str) -> None:
    """The next developer reads them first."""
    is_flat = room in {".", "extensions"}  # their folders are rooms themselves
    files = (PACKAGE / room).glob("*.py") if is_flat else (PACKAGE / room).rglob("*.py")
    found = [
        f"{path.relative_to(ROOT)}:{line}: {habit}"
        for path in sorted(files)
        for line, text in developer_texts(path.read_text(encoding="utf-8"))
        for habit in developer_habits(text)
    ]
    assert found == []


@pytest.mark.parametrize(
    "text",
    [
        "Return what the call returns.",
        "The ranks, and those that wait.",
        "The one which waits.",
        "Says who waits.",
        "Who waits.",
        "Nobody is somebody.",
        "The file is no folder.",
    ],
)
def test_a_habit_of_docstrings_is_found(text: str) -> None:
    """In each place where a docstring can stand, and in a comment."""
    source = f'''"""{text}"""\nclass A:\n    """{text}\n\n    Args:\n        x: {text}\n    """
    x: int
    """{text}"""
    def f(self):
        """{text}"""
        pass  # {text}
'''
    texts = [each for _, each in developer_texts(source)]
    assert [bool(developer_habits(each)) for each in texts] == [True] * 5


@pytest.mark.parametrize(
    "text", ["A thread waits in futex.", "`what it is`", "The ranks who wait."]
)
def test_names_of_system_calls_and_code_are_free_in_docstrings(text: str) -> None:
    """A noun before "who" is enough."""
    assert developer_habits(text) == []


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
