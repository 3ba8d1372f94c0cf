"""No modules of the package import each other in a circle, and each one is imported.

Imports inside of functions count, too.
"""

from __future__ import annotations

import ast
import graphlib
import re
from collections.abc import Iterator, Mapping

import pytest
from sources import trees

PACKAGE = "pytest_multihost"
BY_OTHERS = {"core/nemesis.py", "core/rank/children/sitecustomize.py"}
"""Modules that plugins import, or Python itself. So are the fixes, which stand alone."""


def imported(node: ast.AST) -> Iterator[str]:
    """Yield the names that code imports when it runs: a module's, or a module's and a name in it.

    Imports for a type checker are left out, because no program performs them.
    """
    for each in ast.iter_child_nodes(node):
        if isinstance(each, ast.If) and ast.unparse(each.test) == "TYPE_CHECKING":
            continue
        if isinstance(each, ast.ImportFrom):
            yield from (f"{each.module}.{name.name}" for name in each.names)
        elif isinstance(each, ast.Import):
            yield from (name.name for name in each.names)
        else:
            yield from imported(each)


def graph(modules: Mapping[str, ast.Module]) -> dict[str, set[str]]:
    """Return the modules that each module imports.

    Args:
        modules: The parsed sources by the modules' full names.
    """
    found = {}
    for name, tree in modules.items():
        parts = ((each, each.rpartition(".")[0]) for each in imported(tree))
        homes = (next((part for part in pair if part in modules), "") for pair in parts)
        found[name] = {each for each in homes if each} - {name}
    return found


def unused(modules: Mapping[str, ast.Module]) -> list[str]:
    """Return the modules that no other module imports, or names in a text.

    Args:
        modules: The parsed sources by the modules' full names.
    """
    imported_ones = set().union(*graph(modules).values())
    texts = {name: " ".join(texts_in(tree)) for name, tree in modules.items()}
    found = []
    for name in modules.keys() - imported_ones:
        word = re.compile(rf"\b{name.rpartition('.')[2]}\b")
        if not any(word.search(text) for other, text in texts.items() if other != name):
            found.append(name)
    return sorted(found)


def texts_in(tree: ast.Module) -> Iterator[str]:
    """Yield the texts in a program, without docstrings."""
    docs = {id(each.value) for each in ast.walk(tree) if isinstance(each, ast.Expr)}
    for each in ast.walk(tree):
        if isinstance(each, ast.Constant) and isinstance(each.value, str) and id(each) not in docs:
            yield each.value


def circle_in(modules: Mapping[str, ast.Module]) -> list[str]:
    """Return modules that import each other, from one back to itself; empty if there are none."""
    try:
        graphlib.TopologicalSorter(graph(modules)).prepare()
    except graphlib.CycleError as error:
        return list(reversed(error.args[1]))
    return []


def full_name(path: str) -> str:
    """Return the name under which a file of the package is imported."""
    name = path.removesuffix("__init__.py").removesuffix(".py").rstrip("/")
    return ".".join((PACKAGE, *name.split("/"))).rstrip(".")


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Each can be read, tested and moved without those that use it."""
    assert circle_in({full_name(path): tree for path, tree in trees().items()}) == []


def test_each_module_is_imported() -> None:
    """A kind of hang, a reader or a rule that its list lacks would do nothing, and nobody knew."""
    ours = {path for path in trees() if "__" not in path and not path.startswith("fixes/")}
    names = {full_name(path) for path in ours - BY_OTHERS}
    modules = {full_name(path): tree for path, tree in trees().items()}
    assert [each for each in unused(modules) if each in names] == []


@pytest.mark.parametrize(
    ("second", "expected"),
    [
        ("from a import x", ["a", "b", "a"]),
        ("def f():\n    import a", ["a", "b", "a"]),
        ("class C:\n    from a import x", ["a", "b", "a"]),
        ("if TYPE_CHECKING:\n    from a import x", []),
        ("from other import x", []),
    ],
)
def test_a_circle_is_found(second: str, expected: list[str]) -> None:
    """Wherever the import stands, unless only a type checker reads it."""
    modules = {"a": ast.parse("from b import f"), "b": ast.parse(second)}
    assert sorted(circle_in(modules)[:2]) == sorted(expected[:2])
    assert len(circle_in(modules)) == len(expected)


@pytest.mark.parametrize(
    ("other", "is_found"),
    [
        ("from a import x", False),
        ("def f():\n    import a", False),
        ('load(f"{PACKAGE}.a")', False),
        ('"""About `a`."""', True),
        ("from c import a", True),
    ],
)
def test_a_module_that_nothing_imports_is_found(other: str, is_found: bool) -> None:
    """A text may name it, but a docstring does not use it."""
    assert ("a" in unused({"a": ast.parse("'a'"), "b": ast.parse(other)})) == is_found
