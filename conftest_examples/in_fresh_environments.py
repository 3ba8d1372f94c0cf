"""Install and run the examples as their READMEs say, in fresh virtual environments.

    python conftest_examples/in_fresh_environments.py [NAME...] [--python PYTHON] [--each]

The plugin is built from the working tree; everything else comes from where pip looks. Examples with
the same install line share an environment, unless --each. pip's cache and variables apply: the
default torch wheel for Linux brings gigabytes of CUDA, which PIP_EXTRA_INDEX_URL or PIP_FIND_LINKS
can avoid. Prints a table; exits with 1 if an example did not do what its README says.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
LIMIT_S = 900
NAME = "pytest-multihost-hangs"
_OTHERS = ("PYTEST_", "PYTHON", "GITHUB_", "COV_")
"""Variables of whoever runs us that are not the example's business."""


@dataclass(frozen=True)
class Example:
    """What a README says.

    Attributes:
        path: The example's folder.
        install: Arguments of pip install.
        run: Arguments of python.
        seen: What the output has, in this order.
    """

    path: Path
    install: tuple[str, ...]
    run: tuple[str, ...]
    seen: tuple[str, ...]

    def missing(self, output: str) -> list[str]:
        """Return what the README promises and the output lacks."""
        found, rest = [], output
        for line in self.seen:
            _, hit, after = rest.partition(line)
            if hit:
                rest = after
            else:
                found.append(line)
        return found

    @property
    def must_fail(self) -> bool:
        """Whether its run ends with failures, as it should."""
        return any("failed" in line.split() for line in self.seen)


def read_example(path: Path) -> Example:
    """Read the one install line, the one run line and what will be seen.

    Raises:
        ValueError: The README lacks one of them.
    """
    text = (path / "README.md").read_text(encoding="utf-8")
    _, _, seen = text.partition("You will see\n\n")
    block = seen.split("\n\n", 1)[0].splitlines()
    return Example(
        path=path,
        install=tuple(each.replace("../..", NAME, 1) for each in _command(text, "pip install ")),
        run=_command(text, "python "),
        seen=tuple(line.strip() for line in block if line.startswith("    ")),
    )


def _command(text: str, start: str) -> tuple[str, ...]:
    lines = [line[4:] for line in text.splitlines() if line.startswith(f"    {start}")]
    if len(lines) != 1:
        raise ValueError(f"the README has {len(lines)} lines that begin with {start!r}, not one")
    return tuple(shlex.split(lines[0].removeprefix(start)))


def examples() -> list[Path]:
    """Return the folders of all examples."""
    return sorted(path.parent for path in HERE.glob("*/README.md"))


@dataclass(frozen=True)
class Row:
    """What came of one example."""

    name: str
    install_s: float
    run_s: float
    packages: int
    problem: str


def main() -> int:
    """Run what the command line names; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="folders; all unless given")
    parser.add_argument("--python", default=sys.executable, help="makes the environments")
    parser.add_argument("--each", action="store_true", help="an environment for each example")
    given = parser.parse_args()
    paths = [HERE / name for name in given.names] or examples()
    with tempfile.TemporaryDirectory(prefix="examples-") as folder:
        rows = run_all([read_example(path) for path in paths], Path(folder), given)
    return 1 if any(row.problem for row in rows) else 0


def run_all(chosen: list[Example], folder: Path, given: argparse.Namespace) -> list[Row]:
    """Run examples one after the other, those with one install line in one environment."""
    links = folder / "wheels"
    subprocess.run(
        [given.python, "-m", "pip", "wheel", "-q", "--no-deps", "-w", links, HERE.parent],
        check=True,
    )
    print(f"{'example':24}{'install':>10}{'packages':>10}{'run':>10}  result")
    rows, last = [], None
    for example in sorted(chosen, key=lambda each: (each.install, each.path.name)):
        took = 0.0
        if given.each or last is None or last != example.install:
            shutil.rmtree(folder / "venv", ignore_errors=True)
            took = _timed(lambda each=example: _install(each, folder / "venv", links, given.python))
        last = example.install
        rows.append(_run(example, folder, took))
        row = rows[-1]
        times = f"{row.install_s:8.1f} s{row.packages:10}{row.run_s:8.1f} s"
        print(f"{row.name:24}{times}  {row.problem or 'as its README says'}", flush=True)
    return rows


def _timed(work) -> float:
    start = time.monotonic()
    work()
    return time.monotonic() - start


def _install(example: Example, venv: Path, links: Path, python: str) -> None:
    subprocess.run([python, "-m", "venv", venv], check=True)
    found = f"{links} {os.environ.get('PIP_FIND_LINKS', '')}".strip()
    subprocess.run(
        [venv / "bin" / "python", "-m", "pip", "install", "-q", *example.install],
        check=True,
        cwd=example.path,
        env={**os.environ, "PIP_FIND_LINKS": found},
    )


def _run(example: Example, folder: Path, install_s: float) -> Row:
    python = folder / "venv" / "bin" / "python"
    work = folder / "work" / example.path.name
    shutil.copytree(example.path, work, ignore=shutil.ignore_patterns(".*_cache", ".pytest_*"))
    listed = subprocess.run(
        [python, "-m", "pip", "list", "--format=freeze"], capture_output=True, text=True, check=True
    )
    env = {name: value for name, value in os.environ.items() if not name.startswith(_OTHERS)}
    start = time.monotonic()
    ended = subprocess.run(
        [python, *example.run],
        cwd=work,
        env=env,
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_S,
    )
    took = time.monotonic() - start
    problem = _problem(example, ended)
    if problem:
        print(ended.stdout[-5000:], ended.stderr[-2000:], file=sys.stderr)
    packages = len(listed.stdout.splitlines())
    return Row(example.path.name, install_s, took, packages, problem)


def _problem(example: Example, ended: subprocess.CompletedProcess[str]) -> str:
    if ended.returncode != int(example.must_fail):
        return f"ended with {ended.returncode}"
    lacking = example.missing(ended.stdout)
    return f"its output lacks {lacking[0]!r}" if lacking else ""


if __name__ == "__main__":
    sys.exit(main())
