"""Is a hang told alike in a script and in a test? Run programs of the corpus as both.

    python benchmarks/run_scripts.py [--each N] [--only NAME] [--json FILE]

Takes the first N programs of each module of hangs in tests/corpus that need nothing but their
world (with --only innocent_ of innocents), runs each as a test and as a script under `multihost
run`, and compares outcome, kind, culprits, waiting ranks and the line of the user's code (see
benchmarks/same_verdicts.py). The script imports the module of the program and calls it. Exits with
1 if one was told otherwise.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import corpus
import same_verdicts

SHARED = corpus.CORPUS.parent / "shared"
USUAL_S, DEADLINE_S, INNOCENT_S = 25, 8, 60
"""Timeouts of programs, as tests/corpus/expectation.py sets them."""

LIMIT_S = 120
SCRIPT = """import sys
sys.path[:0] = {paths!r}
import {module} as program
from pytest_multihost import current_world
program.{test}(current_world())
"""


def main() -> int:
    """Run the programs in both ways, print what differs, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--each", type=int, default=2, help="programs of each module")
    parser.add_argument("--only", default="hang_", help="part of the ids to run")
    parser.add_argument("--json", default="", help="file for the scores")
    options = parser.parse_args()
    scripts: list[corpus.Score] = []
    tests: list[corpus.Score] = []
    print(corpus.HEADING)
    for path, module in corpus.find_programs(options.only, "").items():
        plain = [each for each in plain_tests(corpus.CORPUS / path) if each in module]
        batch = {each: module[each] for each in plain[: options.each]}
        if not batch:
            continue
        tests += corpus._run(batch, "one", None)  # noqa: SLF001
        for nodeid, expected in batch.items():
            scripts.append(corpus.score(nodeid, expected, run_script(nodeid, expected)))
            print(corpus._row(scripts[-1]), flush=True)  # noqa: SLF001
    results = [
        {"hosts": hosts, "scores": [vars(each) for each in scores]}
        for hosts, scores in (("test", tests), ("script", scripts))
    ]
    if options.json:
        Path(options.json).write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    return same_verdicts.report(results)


def plain_tests(path: Path) -> Iterator[str]:
    """Yield the ids of a module's test functions that take their world alone."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef) and [each.arg for each in node.args.args] == ["world"]:
            yield f"{path.name}::{node.name}"


def run_script(nodeid: str, expected: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Run a program as a script; return its verdict, None if there is none."""
    file, _, test = nodeid.partition("::")
    paths = [str(corpus.CORPUS), str(SHARED)]
    timeout_s = DEADLINE_S if expected["by"][:1] == ["deadline"] else USUAL_S
    timeout_s = timeout_s if expected["is_hang"] else INNOCENT_S
    with tempfile.TemporaryDirectory(prefix="multihost-scripts-") as scratch:
        script = Path(scratch, "program.py")
        text = SCRIPT.format(paths=paths, module=file.removesuffix(".py"), test=test)
        script.write_text(text, encoding="utf-8")
        command = [sys.executable, "-m", "pytest_multihost.core.command.main", "run", "--keep"]
        command += ["--ranks", str(expected["ranks"]), "--backend", expected["backend"]]
        subprocess.run(
            [*command, "--timeout", str(timeout_s), str(script)],
            cwd=corpus.CORPUS,
            env={**os.environ, "PYTEST_MULTIHOST_ARTIFACTS": f"{scratch}/artifacts"},
            stdout=subprocess.DEVNULL,
            timeout=LIMIT_S,
            check=False,
        )
        lines = Path(scratch, "artifacts", "verdicts.jsonl")
        return json.loads(lines.read_text(encoding="utf-8")) if lines.exists() else None


if __name__ == "__main__":
    sys.exit(main())
