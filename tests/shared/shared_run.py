"""Runs of pytest that several tests share: one for each test file and set of arguments.

A test names the program that it is about, and reads what became of it:

    @pytest.mark.program('''
        import pytest

        @pytest.mark.multihost(ranks=3)
        def test_it(world):
            assert world.rank != $rank
    ''', "--multihost-launch=fork")
    def test_a_test_fails_when_any_one_rank_fails(worlds, rank): ...

Starting pytest costs more than most worlds do, so the programs of all selected tests of a file with
the same arguments are files of one run. A test with a folder, an environment or an exit code of its
own uses `run_worlds` instead.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from string import Template
from textwrap import dedent

import pytest

# The title of a failure has only the test's name, which many programs share: it gets the file. What
# the last line counts is kept for each file.
CONFTEST = """
import json, os, pytest

@pytest.hookimpl(tryfirst=True)
def pytest_runtest_logreport(report):
    file, line, name = report.location
    report.location = (file, line, f"{file}::{name}")

@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter):
    stats = terminalreporter.stats
    kept = {
        noun: [each.nodeid for each in stats.get(noun, []) if getattr(each, "nodeid", None)]
        for noun in ("passed", "failed", "skipped", "error", "xfailed", "xpassed", "warnings")
    }
    if "PYTEST_MULTIHOST_SERVER" not in os.environ:
        with open("outcomes.json", "w") as file:
            json.dump(kept, file)
"""
TITLE = re.compile(r"^_+ (?:ERROR at \w+ of )?(test_worlds_\d+)\.py::(\S.*?) _+$")
SECTION = re.compile(r"^=+ .* =+$")
TIMEOUT_S = 280


@dataclass(frozen=True)
class Program:
    """The source of a test file, and the arguments of its run."""

    source: str
    args: tuple[str, ...]


@dataclass(frozen=True)
class SharedRun:
    """A finished run of several programs.

    Attributes:
        path: Its rootdir.
        ret: Its exit code.
        stdout: What it printed.
        stderr: What it printed to standard error.
        outcomes: Node ids by the noun of pytest's last line.
    """

    path: Path
    ret: int
    stdout: Sequence[str]
    stderr: Sequence[str]
    outcomes: Mapping[str, Sequence[str]]


def program_of(item: pytest.Item) -> Program | None:
    """Return the program of a test; `$name` in it stands for the test's own parameter."""
    marker = item.get_closest_marker("program")
    if marker is None:
        return None
    source, *args = marker.args
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    texts = (dedent(source).strip(), *args)
    filled = [Template(each).safe_substitute(parameters) for each in texts]
    return Program(filled[0], tuple(filled[1:]))


def run_together(item: pytest.Item, base: Path) -> tuple[SharedRun, str]:
    """Run the programs of the item's file that have the item's arguments, once for all processes.

    Args:
        base: A directory that all processes of this run of pytest share.

    Returns:
        The run, and the name of the item's own file in it.
    """
    own = program_of(item)
    assert own is not None, "the fixture `worlds` needs @pytest.mark.program(SOURCE)"
    found = (program_of(each) for each in item.session.items if each.path == item.path)
    programs = list(dict.fromkeys(each for each in found if each and each.args == own.args))
    name = hashlib.sha1(repr(programs).encode()).hexdigest()[:16]  # noqa: S324
    folder = made_once(base / "shared" / name, partial(_run, programs))
    record = json.loads((folder / "run.json").read_text())
    return SharedRun(folder, **record), f"test_worlds_{programs.index(own)}"


def shared_base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory that all processes of this run of pytest share."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


def made_once(folder: Path, make: Callable[[Path], None]) -> Path:
    """Return a directory below a folder, which one of all processes makes and fills.

    Args:
        make: Fills an empty directory. If it raises, the next process that asks tries again.
    """
    root = folder / "root"
    with _locked(folder):
        if not (folder / "done").exists():
            shutil.rmtree(root, ignore_errors=True)
            root.mkdir()
            make(root)
            (folder / "done").touch()
    return root


def part_of(run: SharedRun, name: str) -> pytest.RunResult:
    """Return what a run of one file would have printed of its failures, with its own counts.

    The file has the name `test_worlds.py` in it, as in a run of its own.
    """
    lines: list[str] = []
    in_part = False
    for line in run.stdout:
        if title := TITLE.match(line):
            in_part = title[1] == name
        elif SECTION.match(line):
            in_part = False
        if in_part or f"{name}.py" in line:
            lines.append(line.replace(name, "test_worlds"))
    counts = {
        noun: sum(each.startswith(f"{name}.py") for each in nodeids)
        for noun, nodeids in run.outcomes.items()
    }
    nouns = ", ".join(f"{count} {noun}" for noun, count in counts.items() if count)
    lines.append(f"=== {nouns or 'no tests ran'} in 0.00s ===")
    return pytest.RunResult(run.ret, lines, list(run.stderr), duration=0.0)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _run(programs: Sequence[Program], root: Path) -> None:
    (root / "pytest.ini").write_text("[pytest]\n")
    (root / "conftest.py").write_text(CONFTEST)
    for index, program in enumerate(programs):
        name = (
            f"test_worlds_{index}"  # a program that names itself, as in a point, says test_worlds
        )
        (root / f"{name}.py").write_text(program.source.replace("test_worlds", name))
    foreign = ("PYTEST_ADDOPTS", "PYTEST_XDIST_WORKER", "PYTEST_CURRENT_TEST", "CI")
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in foreign and not name.startswith("GITHUB_")
    }
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "multihost_hangs", *programs[0].args],
        cwd=root,
        env={**environment, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "COLUMNS": "160"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=TIMEOUT_S,
        check=False,
    )
    record = {
        "ret": run.returncode,
        "stdout": run.stdout.splitlines(),
        "stderr": run.stderr.splitlines(),
        "outcomes": json.loads((root / "outcomes.json").read_text()),
    }
    (root / "run.json").write_text(json.dumps(record))
