"""Runs programs of tests/corpus and tests/hazards on simulated ranks instead of gloo's.

    python benchmarks/simulated_corpus.py innocent_gloo innocent_order
    python benchmarks/simulated_corpus.py --semantics nccl hang_collectives

An innocent must pass. A program that hangs must hang, with one of the kinds and culprits that the
corpus expects. What needs gloo's own connections, such as a thread of gloo or a timeout inside it,
is not comparable; such a difference is printed and judged by a reader.

With ``--semantics nccl`` the default group is one of NCCL, and so are groups that name no backend.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    """Run the files that the command line names; print each test that ends otherwise."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+")
    parser.add_argument("-k", dest="chosen", default="")
    parser.add_argument("--semantics", choices=("gloo", "nccl"), default="gloo")
    options = parser.parse_args()
    for name in options.files:
        _run(name, options.chosen, options.semantics)


_NCCL_BY_DEFAULT = """
import pytest

@pytest.fixture(autouse=True)
def nccl_by_default(request):
    import torch.distributed as dist
    if request.node.get_closest_marker("multihost").kwargs.get("backend") == "simulated":
        dist.init_process_group("nccl")
"""


def _is_marking(line: str) -> bool:
    return line.startswith(("@", "    backend", "    ranks")) or 'backend: str = "gloo"' in line


def _run(name: str, chosen: str, semantics: str) -> None:
    source = next((ROOT / "tests").glob(f"*/{name}.py"))
    folder = Path(tempfile.mkdtemp(prefix="simulated-corpus-"))
    shutil.copytree(source.parent, folder / "programs")
    shutil.copytree(ROOT / "tests" / "shared", folder / "shared")
    for each in (folder / "programs").glob("*.py"):
        # Only what marks a test: a program may ask for a group of gloo.
        lines = [
            line.replace('"gloo"', '"simulated"') if _is_marking(line) else line
            for line in each.read_text().splitlines()
        ]
        each.write_text("\n".join(lines) + "\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "multihost_hangs", f"{name}.py"]
    command += ["-k", chosen] if chosen else []
    if semantics == "nccl":
        (folder / "programs" / "nccl_by_default.py").write_text(_NCCL_BY_DEFAULT)
        command += ["-p", "nccl_by_default", "--multihost-semantics", "nccl"]
    answers = folder / "expected.jsonl"
    environment = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", EXPECTATIONS: str(answers)}
    subprocess.run(
        command,
        cwd=folder / "programs",
        env={**os.environ, **environment},
        check=False,
        capture_output=True,
    )
    log = folder / "programs" / ".pytest_multihost" / "verdicts.jsonl"
    verdicts = list(map(json.loads, log.read_text().splitlines()))
    of_simulated = [each for each in verdicts if each["backend"] == "simulated"]
    expected = _expected(answers)
    wrong = [each for each in of_simulated if not _is_right(each, expected.get(each["nodeid"]))]
    print(f"{name}: {len(of_simulated)} worlds, {len(wrong)} end otherwise  ({folder})")
    for each in wrong:
        why = (each["diagnosis"] or {}).get("summary") or each["reason"]
        print(
            f"  {each['nodeid'].partition('::')[2]}: {each['outcome']}: {str(why)[:200]}",
            flush=True,
        )


EXPECTATIONS = "PYTEST_MULTIHOST_CORPUS_EXPECTATIONS"
"""Names the file to which tests/corpus writes what it expects."""


def _expected(path: Path) -> dict[str, dict[str, Any]]:
    """Return what is expected of each test, if the corpus says it."""
    if not path.exists():
        return {}
    lines = map(json.loads, path.read_text().splitlines())
    return {each["nodeid"]: each["expected"] for each in lines if each["expected"]}


def _is_right(verdict: dict[str, Any], expected: dict[str, Any] | None) -> bool:
    """Return whether a world has ended as expected, with the expected culprits."""
    if expected is None:
        return bool(verdict["outcome"] == "passed")
    if verdict["outcome"] not in expected["outcomes"]:
        return False
    found = verdict["diagnosis"] or {"kind": "", "culprits": []}
    answers = [(each["kind"], each["culprits"]) for each in expected["answers"]]
    return not answers or (found["kind"], found["culprits"]) in answers


if __name__ == "__main__":
    main()
