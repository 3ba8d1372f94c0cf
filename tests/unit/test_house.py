"""Rules of the house that no linter knows."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import pytest_multihost

ROOM = Path(pytest_multihost.__file__).parent
MODULES = sorted(ROOM.rglob("*.py"))
FACES = [path for path in MODULES if path.name == "__init__.py" and path.parent != ROOM]
HEAVY = {"jax", "jaxlib", "numpy", "torch"}
MAX_MODULES = 17
MEDIAN_LINES = 7
MOST_LINES = 25
MAX_ANY = 140
MAX_NAMES = 8


def imported_with(module: str) -> set[str]:
    """Return the top-level names of everything that a fresh interpreter imports with a module."""
    program = f"import sys, {module}; print(*{{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    return set(done.stdout.split())


def test_importing_us_imports_neither_pytest_nor_a_runtime() -> None:
    """A program under test may use current_world() in production; it pays nothing for it.

    All that can be imported without a runtime and without pytest is asked for at once: what one of
    them pulls in would show.
    """
    fixes = [f"pytest_multihost.fixes.{path.stem}" for path in (ROOM / "fixes").glob("[a-z]*")]
    everything = ", ".join(("pytest_multihost.testing", "pytest_multihost.engine", *fixes))
    found = imported_with(everything)
    assert "pytest_multihost" in found
    assert not found & (HEAVY | {"pytest", "_pytest"})


def test_loading_the_plugin_imports_no_runtime() -> None:
    """Every run of pytest loads it, also those without a multihost test."""
    found = imported_with("pytest_multihost.pytest_plugin.entry")
    assert "pytest" in found
    assert not found & HEAVY
    assert "jinja2" not in found


def test_a_folder_holds_few_enough_modules_to_know_them_all() -> None:
    """A larger one has a second subject."""
    found = Counter(str(path.parent.relative_to(ROOM)) for path in MODULES)
    assert {folder: count for folder, count in found.items() if count > MAX_MODULES} == {}


def test_functions_are_short() -> None:
    """Half of them fit a glance, and nearly all a screen; signature and docstring count."""
    lengths = sorted(
        node.end_lineno - node.lineno + 1
        for path in MODULES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno
    )
    assert lengths[len(lengths) // 2] <= MEDIAN_LINES
    assert lengths[len(lengths) * 9 // 10] <= MOST_LINES


def test_few_values_may_be_anything() -> None:
    """`Any` is for JSON and for what torch, jax and pytest do not let the type checker see.

    Where such a thing has a name of its own, as in `ProcessGroup = Any`, that name counts once.
    """
    names = (
        node.id
        for path in MODULES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Name)
    )
    assert Counter(names)["Any"] < MAX_ANY


@pytest.mark.parametrize("path", FACES, ids=lambda path: str(path.parent.relative_to(ROOM)))
def test_a_face_is_small(path: Path) -> None:
    """What a sub-package exports is what others have to know of it."""
    bodies = ast.parse(path.read_text(encoding="utf-8")).body
    names = [
        ast.literal_eval(node.value)
        for node in bodies
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    ]
    assert all(len(each) <= MAX_NAMES for each in names)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOM)))
def test_every_module_says_what_it_is_for(path: Path) -> None:
    """In its first line, which ends like a sentence."""
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    assert docstring
    assert docstring.splitlines()[0].endswith((".", ":", "?"))


@pytest.mark.parametrize("name", pytest_multihost.__all__)
def test_every_public_name_is_documented(name: str) -> None:
    """Itself, and what a user finds on it."""
    public = getattr(pytest_multihost, name)
    assert inspect.getdoc(public)
    for attribute, value in vars(public).items() if inspect.isclass(public) else ():
        if not attribute.startswith("_") and (callable(value) or isinstance(value, property)):
            assert inspect.getdoc(value), f"{name}.{attribute}"


def test_public_names_are_those_that_are_announced() -> None:
    """Nothing that `import *` misses, and no module of ours by accident."""
    found = {
        name
        for name, value in vars(pytest_multihost).items()
        if not name.startswith("_") and not inspect.ismodule(value) and name != "TYPE_CHECKING"
    }
    found |= {"World", "current_world", "operation"}  # imported when they are asked for
    assert found == set(pytest_multihost.__all__)
    assert sorted(pytest_multihost.__all__) == pytest_multihost.__all__
