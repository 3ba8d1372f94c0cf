"""Each name of a class has one meaning in the package."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "pytest_multihost"
TWICE = {
    "RanksMissingError": "two published fixes, each for itself: ranks that did not call in time",
    "Refused": "a message, whose name is in the protocol, and an answer of pytest_multihost_adopt",
}
"""The names that several classes have, with the reason."""


def class_names(source: str) -> list[str]:
    """Return the names of all classes in a program."""
    return [each.name for each in ast.walk(ast.parse(source)) if isinstance(each, ast.ClassDef)]


def test_each_class_has_a_name_of_its_own() -> None:
    """A reader who meets a name knows which class it is, also if it is private."""
    files = PACKAGE.rglob("*.py")
    count = Counter(name for each in files for name in class_names(each.read_text("utf-8")))
    assert {name for name, number in count.items() if number > 1} == TWICE.keys()


def test_a_class_is_found_wherever_it_is() -> None:
    """In a function, in a class; two in one file are two."""
    assert class_names("class A: ...\ndef f():\n    class A:\n        class B: ...") == [
        "A",
        "A",
        "B",
    ]
