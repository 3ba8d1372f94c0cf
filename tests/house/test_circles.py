"""No modules of the package import each other in a circle, not even inside of functions."""

from __future__ import annotations

import ast
import graphlib
from collections.abc import Iterator, Mapping

import pytest
from sources import trees

PACKAGE = "pytest_multihost"


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


def circle_in(modules: Mapping[str, ast.Module]) -> list[str]:
    """Return modules that import each other, from one back to itself; empty if there are none."""
    try:
        graphlib.TopologicalSorter(graph(modules)).prepare()
    except graphlib.CycleError as error:
        return list(reversed(error.args[1]))
    return []


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Each can be read, tested and moved without those that use it."""
    names = {path: path.removesuffix(".py").removesuffix("/__init__") for path in trees()}
    full = {path: f"{PACKAGE}.{name}".replace("/", ".") for path, name in names.items()}
    full["__init__.py"] = PACKAGE
    assert circle_in({full[path]: tree for path, tree in trees().items()}) == []


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
