"""Each command that README and guide print is run as printed, or the list says why not."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from runtimes import needs
from samples import files_of

pytestmark = pytest.mark.commands

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

INSTALLS = "it installs packages"
LAUNCHER = "it needs a launcher; tests/extensions/engines runs it"
CLUSTER = "it needs a cluster; tests/extensions/engines runs on small ones"
SUITE = "it needs a suite; tests/extensions/live/test_watch.py has some"
JOB = "it needs a running job; tests/extensions/live runs it"
COSTLY = "it takes minutes, and the workflow runs it"
LIBRARIES = "it needs the libraries; make found runs it"
NOT_RUN = {
    "pip install": INSTALLS,
    "python3 -m venv": INSTALLS,
    "torchrun": LAUNCHER,
    "srun": LAUNCHER,
    "mpirun": LAUNCHER,
    "export PYTEST_MULTIHOST_SECRET": LAUNCHER,
    "multihost attach": JOB,
    "multihost watch": SUITE,
    "pytest --multihost-watch": SUITE,
    "pytest --ranks 8 --multihost-on": CLUSTER,
    "pytest --ranks 2 --multihost-on": CLUSTER,
    "pytest --multihost-on ray": CLUSTER,
    "multihost explain /tmp/dumps": "it needs dumps; tests/extensions/flight runs it",
    "multihost explain job.log": "it needs a log; tests/extensions/logs reads many",
    "python benchmarks/reproducers.py": LIBRARIES,
    "python docs/found/reproducers/": LIBRARIES,
    "make demo": COSTLY,
    "make test": COSTLY,
    "multihost run": "the page shows no whole script; tests/extensions/scripts/test_run.py runs it",
    "pytest test_checkpoint.py::test_save --multihost-replay eyJ2Ijox...": (
        "its token is cut; tests/plugin/test_replay.py runs whole ones"
    ),
}
"""Why a command is not run, by its beginning."""

HANGS = """import time

import pytest


@pytest.mark.multihost(ranks=2)
def test_hangs(world):
    if world.rank == 0:
        time.sleep(600)
    world.barrier("a")
"""
"""A test whose run is the last one, for commands that show it."""

OF_LAST_RUN = ("multihost open", "multihost report")

HIDDEN = ROOT / "docs" / "first-hidden-hang.md"
"""The page that shows the files which other pages have in tests/."""

FAILS = {
    "pytest --multihost-sweep tests/",
    "pytest --ranks 3 --multihost-sweep",
    "pytest --pdb",
    "pytest -k test_load --multihost-fault 'slow_io(",
    "pytest -k no_checkpoint",
    "pytest test_norm.py",
}
"""The beginnings of commands that are to fail: they show a hang, a weakness or an exception."""


@dataclass(frozen=True)
class Command:
    """A command that a page prints."""

    page: Path
    line: int
    text: str

    @property
    def why_not_run(self) -> str:
        """The reason why it is not run; empty if it is."""
        return next((why for begin, why in NOT_RUN.items() if self.text.startswith(begin)), "")

    def __str__(self) -> str:
        """Return the page, the line and the command."""
        return f"{self.page.relative_to(ROOT)}:{self.line} {self.text}"


def commands() -> list[Command]:
    """Return the commands of all pages: the lines of a block that begin with a dollar."""
    return [
        Command(page, number, re.sub(r"\s+#.*", "", line[2:]).strip())
        for page in PAGES
        for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1)
        if line.startswith("$ ")
    ]


RUN = [each for each in commands() if not each.why_not_run]


MODULES = {"pytest": "pytest", "multihost": "pytest_multihost.core.command.main"}


def run(program: str, *args: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a program in a folder, where only this plugin is loaded and no browser opens."""
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "BROWSER": "true"}
    environment["PYTEST_ADDOPTS"] = "-p multihost_hangs"
    return subprocess.run(
        [sys.executable, "-m", MODULES[program], *args],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )


@needs("torch")
@pytest.mark.parametrize("command", RUN, ids=str)
def test_a_printed_command_does_what_its_page_says(command: Command, tmp_path: Path) -> None:
    """With the files that the page shows before it, and nothing else."""
    above = command.page.read_text(encoding="utf-8").splitlines()[: command.line]
    for name, text in files_of("\n".join(above)).items():
        (tmp_path / name).write_text(text)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    if " tests/" in command.text:
        (tmp_path / "tests").mkdir()
        first_part = HIDDEN.read_text(encoding="utf-8").partition("## 2.")[0]
        for name, text in files_of(first_part).items():
            (tmp_path / "tests" / name).write_text(text)
    if command.text.startswith(OF_LAST_RUN):
        (tmp_path / "test_hangs.py").write_text(HANGS)
        assert run("pytest", "-q", folder=tmp_path).returncode == 1
    program, *args = shlex.split(command.text)
    assert program in MODULES, f"say in NOT_RUN why {command} is not run, or run it here"
    done = run(program, *args, folder=tmp_path)
    fails = any(command.text.startswith(each) for each in FAILS) and "together" not in command.text
    assert done.returncode == int(fails), done.stdout + done.stderr
    shutil.rmtree(tmp_path)


def test_each_reason_not_to_run_a_command_is_in_use() -> None:
    """A reason whose command is gone would excuse a later one."""
    texts = [each.text for each in commands()]
    unused = [each for each in NOT_RUN if not any(text.startswith(each) for text in texts)]
    assert unused == []
