"""Tests import the faces of rooms: moving a file inside a room breaks no test of another room.

A room is a package in `core` or `extensions`, and its face is what the package itself exports. The
folders of tests with a room's name are its own, such as `unit/watch` and `process/watch`: they
import what they like of it. The values of `core/model` come from `pytest_multihost.testing`.
"""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from textwrap import dedent

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = "pytest_multihost"
TESTS = ROOT / "tests"
PROGRAMS = {"corpus", "found", "hazards", "latent"}
"""Folders whose programs users could have written."""

FILES = sorted(
    each for each in TESTS.rglob("*.py") if each.relative_to(TESTS).parts[0] not in PROGRAMS
)
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
ENTRIES = {
    entry.partition(":")[0]
    for group in (PROJECT["scripts"], *PROJECT["entry-points"].values())
    for entry in group.values()
}
"""Modules that pyproject.toml names, so that a move breaks more than tests."""

EXCEPTIONS = {
    "benchmarks/test_gate.py": (("launch", "watch"), "counts what single functions of theirs do"),
    "extensions/netns/test_namespaces.py": (
        ("launch", "watch"),
        "describes connections between real hosts as the kernel shows them",
    ),
    "house/test_secrets.py": (("engines",), "reads which variables the nodes get"),
    "house/test_faces.py": (("watch",), "shows what is found"),
    "shared/flight_dumps.py": (("flight",), "makes dumps for its tests"),
    "shared/job_logs.py": (("logs",), "explains logs for its tests"),
    "shared/foreign.py": (
        (
            "engines",
            "flight",
            "github",
            "hazards",
            "live",
            "logs",
            "model",
            "pytest_plugin",
            "slots",
            "sweep",
            "watch",
        ),
        "gives hostile input to every reader",
    ),
    "shared/hostile.py": (("engines",), "speaks its protocol, and breaks it"),
    "shared/sweeps.py": (("sweep",), "makes sweeps for the tests of its pages and of the browser"),
}
"""Files that import what is private in these rooms, and why."""


@cache
def face_of(package: str) -> frozenset[str]:
    """Return the names that a package binds or exports itself."""
    names: set[str] = set()
    source = ROOT.joinpath(*package.split("."), "__init__.py").read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom):
            names |= {each.asname or each.name for each in node.names}
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
    return frozenset(names)


def is_module(name: str) -> bool:
    """Return whether a name is a file of ours, and no package."""
    return ROOT.joinpath(*name.split(".")).with_suffix(".py").is_file()


def is_package(name: str | None) -> bool:
    """Return whether a name is a package of ours."""
    path = ROOT.joinpath(*(name or "").split("."), "__init__.py")
    return (name or "").startswith(PACKAGE) and path.is_file()


def modules_in(source: str) -> Iterator[str]:
    """Yield the files of ours that a program imports, also in programs that it has as texts."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names if is_module(each.name))
        elif isinstance(node, ast.ImportFrom) and node.module and is_module(node.module):
            yield node.module
        elif isinstance(node, ast.ImportFrom) and is_package(node.module):
            found = {each.name for each in node.names} - face_of(str(node.module))
            yield from filter(is_module, (f"{node.module}.{name}" for name in found))
        elif isinstance(node, ast.Constant) and f"{PACKAGE}." in str(node.value):
            yield from _modules_in_text(str(node.value))


def _modules_in_text(text: str) -> Iterator[str]:
    try:
        yield from modules_in(dedent(text))
    except SyntaxError:  # a part of a program, or prose
        return


def private_modules(source: str, folders: Sequence[str]) -> set[tuple[str, str]]:
    """Return the rooms of others that a program in some folders imports from within, and where."""
    found = set()
    for module in modules_in(source):
        _, floor, *rest = [*module.split("."), ""]
        is_inside = (floor == "core" and len(rest) > 2) or floor == "extensions"
        if is_inside and rest[0] not in folders and module not in ENTRIES:
            found.add((rest[0], module))
    return found


def rooms_of_others(name: str) -> dict[str, list[str]]:
    """Return the private modules that a file of tests imports of other rooms, by room."""
    found: dict[str, list[str]] = {}
    source = (TESTS / name).read_text(encoding="utf-8")
    for room, module in sorted(private_modules(source, Path(name).parts[:-1])):
        found.setdefault(room, []).append(module)
    return found


def test_a_test_imports_of_other_rooms_only_their_faces() -> None:
    """What it needs belongs into a face, or the test into the folder of the room."""
    names = [each.relative_to(TESTS).as_posix() for each in FILES]
    found = {name: rooms_of_others(name) for name in names if name not in EXCEPTIONS}
    assert {name: rooms for name, rooms in found.items() if rooms} == {}


@pytest.mark.parametrize("name", EXCEPTIONS)
def test_an_exception_is_needed(name: str) -> None:
    """For each of its rooms: else the table would grow only."""
    rooms, _ = EXCEPTIONS[name]
    assert tuple(rooms_of_others(name)) == rooms


@pytest.mark.parametrize(
    "source",
    [
        "import pytest_multihost.core.watch.watchdog",
        "from pytest_multihost.core.watch.watchdog import Watchdog",
        "from pytest_multihost.core.watch import watchdog",
        "PROGRAM = '''\n    from pytest_multihost.core.watch import watchdog\n'''",
    ],
)
def test_a_private_module_is_found(source: str) -> None:
    """Under each of its names, also in a program that is a text; not by the room's own tests."""
    assert private_modules(source, ("unit", "blame")) == {
        ("watch", "pytest_multihost.core.watch.watchdog")
    }
    assert private_modules(source, ("process", "watch")) == set()


@pytest.mark.parametrize(
    "source",
    [
        "from pytest_multihost.core.watch import Watchdog",
        "from pytest_multihost.core.watch.kernel import ProcReader",
        "from pytest_multihost.core.blame import judge_world",
        "from pytest_multihost.core import engine, files",
        "from pytest_multihost.core.engine import run_world",
        "from pytest_multihost import at, faults",
        "from pytest_multihost.extensions import clock",
        "from pytest_multihost.core.command.main import main",
        "from pytest_multihost.testing import Operation",
    ],
)
def test_faces_are_free(source: str) -> None:
    """Also those of packages in a room, of floors that are one file, and of what users import."""
    assert private_modules(source, ()) == set()
