"""Another revision of this repository beside this one, both run by the same Python and libraries.

Each tree lies in a temporary directory of its own and has bytecode. First on PYTHONPATH, it is what
is imported. The metadata of an editable install would still send pytest to the modules of the tree
that is installed, so each tree gets metadata of its own, which `-p multihost_hangs` finds first.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import projects
from figures import FailedError

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "pytest_multihost"
PLUGIN = "multihost_hangs"

# What a run of pytest with the plugin imports, as the tree that is first on the path has it.
WHO = f"""
import importlib.metadata, importlib.util, {PACKAGE}
[entry, *_] = [e for e in importlib.metadata.entry_points(group="pytest11") if e.name == "{PLUGIN}"]
print({PACKAGE}.__file__, importlib.util.find_spec(entry.value).origin, sep="\\n")
"""


class UnknownRevisionError(Exception):
    """A revision cannot be measured; the text says why."""


@dataclass(frozen=True, slots=True)
class Tree:
    """One revision.

    Attributes:
        root: Where it lies.
        revision: How git describes it.
        entry: The module that pytest loads as the plugin.
        command: Module and function of the command `multihost`.
    """

    root: Path
    revision: str
    entry: str
    command: str

    @property
    def variables(self) -> Mapping[str, str]:
        """What a process needs in its environment to import it."""
        return {"PYTHONPATH": str(self.root)}

    @property
    def multihost(self) -> Sequence[str]:
        """The command `multihost`, without arguments."""
        module, _, function = self.command.partition(":")
        return (sys.executable, "-c", f"import sys, {module} as m; sys.exit(m.{function}())")

    def output_of(self, command: Sequence[str]) -> str:
        """Run a command that imports the tree, and return what it prints.

        Raises:
            FailedError: It has failed.
        """
        done = subprocess.run(
            command,
            cwd=self.root,
            env=projects.environment(self.root, self.variables),
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise FailedError(f"exit code {done.returncode}: {done.stderr[-500:]}")
        return done.stdout


@dataclass(frozen=True, slots=True)
class Pair:
    """The revision to compare with, and this tree as it is now."""

    then: Tree
    now: Tree


@contextlib.contextmanager
def beside(revision: str) -> Iterator[Pair]:
    """Have a revision beside a copy of this tree, with all that is not committed, and remove both.

    Raises:
        UnknownRevisionError: There is no such revision, or it does not run with these libraries.
    """
    commit = _commit(revision)
    with (
        tempfile.TemporaryDirectory(prefix="multihost-since-") as folder,
        _worktree(commit, Path(folder, "then")) as then,
    ):
        now = Path(folder, "now")
        shutil.copytree(ROOT / PACKAGE, now / PACKAGE, ignore=_not_bytecode)
        shutil.copy(ROOT / "pyproject.toml", now)
        yield Pair(
            _prepared(then, _git("describe", "--tags", "--always", commit)),
            _prepared(now, _git("describe", "--tags", "--always", "--dirty")),
        )


_not_bytecode = shutil.ignore_patterns("__pycache__", "*.so")


def _commit(revision: str) -> str:
    try:
        return _git("rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}")
    except subprocess.CalledProcessError:
        raise UnknownRevisionError(
            f"there is no revision {revision!r} here. A shallow clone lacks most of them:"
            " git fetch --unshallow --tags"
        ) from None


@contextlib.contextmanager
def _worktree(commit: str, place: Path) -> Iterator[Path]:
    try:
        _git("worktree", "add", "--quiet", "--detach", str(place), commit)
        yield place
    finally:
        if place.exists():
            _git("worktree", "remove", "--force", str(place))


def _git(*arguments: str) -> str:
    command = ["git", *arguments]
    return subprocess.run(
        command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True
    ).stdout.strip()


def _prepared(root: Path, revision: str) -> Tree:
    """Give a tree its metadata and bytecode, and see that it is the one that is imported."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for name, text in metadata_of(project).items():
        file = root / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info" / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(text, encoding="utf-8")
    tree = Tree(root, revision, plugin_of(project), project["scripts"]["multihost"])
    try:
        tree.output_of([sys.executable, "-m", "compileall", "-q", PACKAGE])
        found = tree.output_of([sys.executable, "-c", WHO]).split("\n")
    except FailedError as error:
        raise UnknownRevisionError(f"{revision} does not run here: {error}") from None
    if not all(each.startswith(f"{root}/") for each in found if each):
        raise UnknownRevisionError(f"{revision}: other files were imported: {' '.join(found)}")
    return tree


def plugin_of(project: Mapping[str, Any]) -> str:
    """Return the module that pytest loads, as the table `project` of pyproject.toml names it."""
    module: str = project["entry-points"]["pytest11"][PLUGIN]
    return module


def metadata_of(project: Mapping[str, Any]) -> Mapping[str, str]:
    """Return the files of a dist-info folder that make a project's entry points known."""
    groups = {"console_scripts": project.get("scripts", {}), **project.get("entry-points", {})}
    lines = []
    for group, points in groups.items():
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in points.items()), ""]
    about = f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    return {"METADATA": about, "entry_points.txt": "\n".join(lines)}
