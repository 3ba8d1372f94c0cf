"""Rules of the house that no linter knows."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys

import pytest
from sources import MODULES, ROOM, name_of, tree_of

import pytest_multihost

ARCHITECTURE = ROOM.parent.joinpath("ARCHITECTURE.md").read_text(encoding="utf-8")
HEAVY = {"jax", "jaxlib", "numpy", "torch"}


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
    everything = ", ".join(("pytest_multihost.testing", "pytest_multihost.core.engine", *fixes))
    found = imported_with(everything)
    assert "pytest_multihost" in found
    assert not found & (HEAVY | {"pytest", "_pytest"})


def test_loading_the_plugin_imports_no_runtime() -> None:
    """Every run of pytest loads it, also those without a multihost test."""
    found = imported_with("pytest_multihost.core.pytest_plugin.entry")
    assert "pytest" in found
    assert not found & HEAVY
    assert "jinja2" not in found


def test_loading_the_plugin_imports_of_an_extension_only_its_face() -> None:
    """What plans a sweep or knows a rule of hazards is for the runs that need it."""
    program = "import sys, pytest_multihost.core.pytest_plugin.entry as entry\n"
    program += "from pytest_multihost.core.registry import extension_plugins\n"
    program += "assert list(extension_plugins())\nprint(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    ours = [name for name in done.stdout.split() if ".extensions." in name]
    assert [name for name in ours if name.count(".") > 2] == []


def test_a_module_is_named_where_a_reader_looks_for_it() -> None:
    """In the docstring of its folder, or in ARCHITECTURE.md."""
    unnamed = []
    for path in MODULES:
        if path == ROOM / "__init__.py":
            continue
        face = (path.parent.parent if path.stem == "__init__" else path.parent) / "__init__.py"
        name = path.parent.name if path.stem == "__init__" else path.stem
        docstring = ast.get_docstring(tree_of(face)) or ""
        ways = f"`{name}`" in docstring, f"{name}/" in ARCHITECTURE, f"`{name}`" in ARCHITECTURE
        if not any(ways):
            unnamed.append(name_of(path))
    assert unnamed == []


def test_every_module_says_what_it_is_for() -> None:
    """In its first line, which ends like a sentence."""
    docstrings = {name_of(path): ast.get_docstring(tree_of(path)) or "" for path in MODULES}
    firsts = {name: text.partition("\n")[0] for name, text in docstrings.items()}
    assert [name for name, first in firsts.items() if not first.endswith((".", ":", "?"))] == []


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
    found |= {"Role", "World", "current_world", "operation", "spawn"}  # imported lazily
    assert found == set(pytest_multihost.__all__)
    assert sorted(pytest_multihost.__all__) == pytest_multihost.__all__
