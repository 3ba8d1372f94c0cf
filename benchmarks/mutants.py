"""Do the fast tests notice wrong code in the proof and in blame? A mutation check, by mutmut.

    python benchmarks/mutants.py [--count 400 | --count all] [--seed 1] [MUTANT ...]

mutmut makes mutants of the functions in core/proof and core/blame: in each, one expression or
statement is another. A mutant is killed if a test fails with it. The sample is drawn at random, and
the same seed draws the same mutants as long as the two packages stay as they are. The killers are
the fast tests of hand-made values (marker `unit`) in files that name one of the packages, and
those of expected ends.

Prints the score of each module, and each survivor with its line; also those that a timeout has
killed, which on a busy machine may only have been slow. Exits with 1 if fewer than 85 % of
the sample are killed. mutmut mutates no properties, tables and constants of modules.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import difflib
import json
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PLACE = ROOT / ".mutants"
"""Where mutmut works: it finds the sources there by links, and copies what it changes."""

PACKAGES = ("pytest_multihost/core/proof", "pytest_multihost/core/blame")
NAMES_PACKAGE = re.compile(r"^from pytest_multihost\.core\.(proof|blame)\b", re.MULTILINE)
THROUGH_PLAN = "test_expected_ends.py"
"""Tests `blame.own_failures` through the plan of a test, which alone calls it."""

BY_CHANCE = "test_damaged_artifacts.py"
"""Damages files at random for half a minute: what it kills, it kills by chance."""

FLOOR = 85.0
KILLED = frozenset({"killed", "timeout", "segfault"})

CONFIG = """[mutmut]
source_paths = pytest_multihost
only_mutate =
{packages}
also_copy = docs
track_dependencies = false
use_git_change_detection = false
timeout_constant = 10
timeout_multiplier = 6
pytest_add_cli_args =
    -m
    unit
pytest_add_cli_args_test_selection =
{tests}
"""


@dataclass(frozen=True)
class Mutant:
    """A function with one change.

    Attributes:
        name: mutmut's name for it.
        line: The line of the function in the file of the package.
        was: The function without the change, from its `def` on.
        now: The function with it.
    """

    name: str
    file: str
    line: int
    was: tuple[str, ...]
    now: tuple[str, ...]


def main() -> int:
    """Run the check and print what it found."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="MUTANT", help="these mutants, not a sample")
    parser.add_argument("--count", default="400", help="size of the sample, or all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1, help="mutants at a time")
    asked = parser.parse_args()
    lay_out(killers())
    with contextlib.chdir(PLACE):  # mutmut reads its settings here
        mutants = {each.name: each for path in sources() for each in mutants_of(path)}
    if unknown := set(asked.names) - set(mutants):
        parser.error(f"there is no mutant {min(unknown)}: the code has changed since it was listed")
    chosen = sorted(asked.names) or sample(sorted(mutants), asked.count, asked.seed)
    print(f"{len(chosen)} of {len(mutants)} mutants, --seed {asked.seed}; see {PLACE.name}/log")
    run_mutmut(chosen, jobs=max(asked.jobs, 1))
    statuses = read_statuses(chosen)
    (PLACE / "statuses.json").write_text(json.dumps(statuses, indent=1), encoding="utf-8")
    print(table([mutants[name] for name in chosen], statuses))
    for each in (mutants[name] for name in chosen if statuses[name] != "killed"):
        print(f"\n{describe(each, statuses[each.name])}")
    return int(score(statuses) < FLOOR)


def sources() -> list[Path]:
    """Return the files that are mutated, relative to the root."""
    return sorted(each.relative_to(ROOT) for p in PACKAGES for each in (ROOT / p).glob("*.py"))


def killers() -> list[Path]:
    """Return the files of tests that are run against mutants, relative to the root."""
    files = (*(ROOT / "tests/unit").rglob("*.py"), *(ROOT / "tests/extensions").rglob("test_*.py"))
    named = (
        each
        for each in files
        if each.name == THROUGH_PLAN or NAMES_PACKAGE.search(each.read_text(encoding="utf-8"))
    )
    return sorted(each.relative_to(ROOT) for each in named if each.name != BY_CHANCE)


def mutants_of(file: Path) -> list[Mutant]:
    """Return all mutants of a file, as mutmut makes them."""
    from mutmut.mutation.file_mutation import mutate_file_contents

    code = (ROOT / file).read_text(encoding="utf-8")
    mutated = mutate_file_contents(str(file), code)
    lines, spans = mutated.code.splitlines(), mutated.line_span_by_function_name
    starts = lines_of_functions(code)
    found = []
    for name in mutated.mutant_names:
        mangled, _, _ = name.rpartition("__mutmut_")
        was, now = (
            function_text(lines[spans[each].start - 1 : spans[each].end])
            for each in (f"{mangled}__mutmut_orig", name)
        )
        line = starts[mangled.removeprefix("x_")]
        module = ".".join(file.with_suffix("").parts).removesuffix(".__init__")
        found.append(Mutant(f"{module}.{name}", str(file), line, was, now))
    return found


def lines_of_functions(code: str) -> Mapping[str, int]:
    """Return the line of each function's `def`, by its name; methods as mutmut names them."""
    found = {}
    for node in ast.parse(code).body:
        members = node.body if isinstance(node, ast.ClassDef) else [node]
        owner = f"xǁ{node.name}ǁ" if isinstance(node, ast.ClassDef) else ""
        for each in members:
            if isinstance(each, ast.FunctionDef):
                found[f"{owner}{each.name}"] = each.lineno
    return found


def function_text(lines: Sequence[str]) -> tuple[str, ...]:
    """Return a function from its `def` on, which is named alike in all mutants."""
    first = next(n for n, each in enumerate(lines) if each.lstrip().startswith("def "))
    text = [re.sub(r"__mutmut_\w+", "", lines[first], count=1), *lines[first + 1 :]]
    while not text[-1].strip():
        text.pop()
    return tuple(text)


def describe(mutant: Mutant, status: str) -> str:
    """Return what became of a mutant, with its first line that differs, and all such lines."""
    pairs = enumerate(zip(mutant.was, mutant.now, strict=False), start=mutant.line)
    line = next((number for number, (was, now) in pairs if was != now), mutant.line)
    changed = [each for each in difflib.ndiff(mutant.was, mutant.now) if each[0] in "-+"]
    return "\n".join([f"{mutant.file}:{line} {status}: {mutant.name}", *changed])


def sample(names: Sequence[str], count: str, seed: int) -> list[str]:
    """Return so many of the names, drawn at random; all of them for "all" or a large count."""
    size = len(names) if count == "all" else min(int(count), len(names))
    return sorted(random.Random(seed).sample(names, size))


def lay_out(tests: Sequence[Path]) -> None:
    """Make the place anew in which mutmut works."""
    shutil.rmtree(PLACE, ignore_errors=True)
    PLACE.mkdir()
    for name in ("pytest_multihost", "tests", "docs", "pyproject.toml"):
        (PLACE / name).symlink_to(ROOT / name)
    packages, chosen = (f"    {each}/*" for each in PACKAGES), (f"    {each}" for each in tests)
    config = CONFIG.format(packages="\n".join(packages), tests="\n".join(chosen))
    (PLACE / "setup.cfg").write_text(config, encoding="utf-8")


def run_mutmut(names: Sequence[str], *, jobs: int) -> None:
    """Run the tests against mutants; exits with mutmut's last words if it fails itself."""
    command = [sys.executable, "-m", "mutmut", "run", "--max-children", str(jobs), *names]
    with (PLACE / "log").open("wb") as log:
        done = subprocess.run(command, cwd=PLACE, stdout=log, stderr=log, check=False)
    if done.returncode:
        words = (PLACE / "log").read_text(encoding="utf-8", errors="replace")[-3000:]
        sys.exit(f"error: mutmut ended with {done.returncode}; its last words:\n{words}")


def read_statuses(names: Sequence[str]) -> dict[str, str]:
    """Return what became of each mutant, in mutmut's words."""
    command = [sys.executable, "-m", "mutmut", "results", "--all", "true"]
    done = subprocess.run(command, cwd=PLACE, check=True, capture_output=True, text=True)
    told = dict(each.strip().split(": ", 1) for each in done.stdout.splitlines() if ": " in each)
    return {name: told[name] for name in names}


def score(statuses: Mapping[str, str]) -> float:
    """Return how many of the mutants are killed, in per cent."""
    return 100 * sum(each in KILLED for each in statuses.values()) / len(statuses)


def table(mutants: Sequence[Mutant], statuses: Mapping[str, str]) -> str:
    """Return the scores of the modules, the packages and all."""
    by_row: dict[str, dict[str, str]] = {}
    for each in mutants:
        for row in (each.file, f"{Path(each.file).parent}/", "all"):
            by_row.setdefault(row, {})[each.name] = statuses[each.name]
    width = max(map(len, by_row))
    return "\n".join(
        f"{row:{width}}  {len(theirs):4} mutants  {score(theirs):5.1f} % killed"
        for row, theirs in sorted(by_row.items(), key=lambda item: (item[0] == "all", item[0]))
    )


if __name__ == "__main__":
    sys.exit(main())
