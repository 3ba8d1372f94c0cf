"""Each extension can be deleted: a copy of the package without its folder still works.

`make extensions` runs this file alone.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Collection, Mapping
from pathlib import Path

import pytest

import pytest_multihost
from pytest_multihost.core.registry import extension_plugins

pytestmark = pytest.mark.copies

PACKAGE = Path(pytest_multihost.__file__).parent
EXTENSIONS = sorted(path.parent.name for path in (PACKAGE / "extensions").glob("*/__init__.py"))

IMPORT_ALL = """\
import importlib, pkgutil, sys
import pytest_multihost
from pytest_multihost.core.registry import extension_plugins

failed = {}
for found in pkgutil.walk_packages(pytest_multihost.__path__, "pytest_multihost."):
    try:
        importlib.import_module(found.name)
    except ImportError as error:
        if (error.name or "").startswith("pytest_multihost") or error.name is None:
            failed[found.name] = str(error)
for name, why in failed.items():
    print(f"{name}: {why}")
sys.exit(bool(failed))
"""

TESTS = """\
import time
import pytest

@pytest.mark.multihost(ranks=2)
def test_passes(world):
    assert world.gather(world.rank) == [0, 1]

@pytest.mark.multihost(ranks=2)
def test_hangs(world):
    if world.rank == 1:
        time.sleep(600)
    world.barrier("end")
"""

SCRIPT = """\
import os
assert os.environ["WORLD_SIZE"] == "2"
"""


def copy_without(removed: Collection[str], folder: Path) -> dict[str, str]:
    """Copy the package without some extensions; return an environment that imports the copy."""
    shutil.copytree(
        PACKAGE,
        folder / "pytest_multihost",
        ignore=lambda path, names: [
            *(removed if Path(path).name == "extensions" else ()),
            *(name for name in names if name == "__pycache__"),
        ],
    )
    return {**os.environ, "PYTHONPATH": str(folder)}


def run(*args: str, environment: Mapping[str, str], cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run this interpreter and return what it printed."""
    return subprocess.run(
        [sys.executable, *args],
        env=environment,
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )


def verdicts_of(folder: Path) -> dict[str, str | None]:
    """Return the kind of hang of each test of a run, None if it did not hang, by test name."""
    lines = (folder / ".pytest_multihost" / "verdicts.jsonl").read_text().splitlines()
    verdicts = [json.loads(line) for line in lines]
    return {
        each["nodeid"].rpartition("::")[2]: each["diagnosis"] and each["diagnosis"]["kind"]
        for each in verdicts
    }


@pytest.fixture(params=[*((name,) for name in EXTENSIONS), tuple(EXTENSIONS)], ids="+".join)
def environment(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, str]:
    """An environment whose copy of the package lacks one extension, or all of them."""
    return copy_without(request.param, tmp_path / "copy")


def test_the_rest_works_without_it(environment: dict[str, str], tmp_path: Path) -> None:
    """Every other module imports, a world passes, a hang gets its verdict, a script may run."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "test_world.py").write_text(TESTS)
    (folder / "script.py").write_text(SCRIPT)

    imported = run("-c", IMPORT_ALL, environment=environment, cwd=folder)
    assert imported.returncode == 0, imported.stdout + imported.stderr

    tested = run("-m", "pytest", "-p", "no:randomly", environment=environment, cwd=folder)
    assert tested.returncode == 1, tested.stdout + tested.stderr
    assert verdicts_of(folder) == {"test_passes": None, "test_hangs": "straggler"}
    assert "rank 1 never reached" in tested.stdout

    command = ("-m", "pytest_multihost.core.command.main", "run", "--ranks", "2", "script.py")
    scripted = run(*command, environment=environment, cwd=folder)
    has_command = list((tmp_path / "copy").rglob("extensions/scripts/command.py")) != []
    assert (scripted.returncode == 0) is has_command, scripted.stdout + scripted.stderr


@pytest.mark.parametrize("name", EXTENSIONS)
def test_an_extension_registers_hooks(name: str) -> None:
    """A face without a hook would switch its extension off, and nothing else would fail."""
    found = dict(extension_plugins())[f"multihost_{name}"]
    hooks = [each for each in vars(found) if each.startswith("pytest_")]
    assert hooks, f"extensions/{name}/__init__.py implements no hook"
