"""Runs programs of tests/corpus and tests/hazards on simulated ranks instead of gloo's.

    python benchmarks/simulated_corpus.py innocent_gloo innocent_order

An innocent must pass. A program that hangs must hang. What needs gloo's own connections, such as a
thread of gloo or a timeout inside it, is not comparable; such a difference is printed and judged by
a reader.
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

ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    """Run the files that the command line names; print each test that ends otherwise."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+")
    parser.add_argument("-k", dest="chosen", default="")
    options = parser.parse_args()
    for name in options.files:
        _run(name, options.chosen)


def _is_marking(line: str) -> bool:
    return line.startswith(("@", "    backend", "    ranks")) or 'backend: str = "gloo"' in line


def _run(name: str, chosen: str) -> None:
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
    subprocess.run(
        command,
        cwd=folder / "programs",
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        check=False,
        capture_output=True,
    )
    log = folder / "programs" / ".pytest_multihost" / "verdicts.jsonl"
    verdicts = list(map(json.loads, log.read_text().splitlines()))
    of_simulated = [each for each in verdicts if each["backend"] == "simulated"]
    expected = {"hung", "crashed", "failed"} if name.startswith("hang") else {"passed"}
    wrong = [each for each in of_simulated if each["outcome"] not in expected]
    print(f"{name}: {len(of_simulated)} worlds, {len(wrong)} end otherwise  ({folder})")
    for each in wrong:
        why = (each["diagnosis"] or {}).get("summary") or each["reason"]
        print(
            f"  {each['nodeid'].partition('::')[2]}: {each['outcome']}: {str(why)[:200]}",
            flush=True,
        )


if __name__ == "__main__":
    main()
