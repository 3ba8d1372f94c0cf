"""Are hazards told, and only hazards? Run programs that pass, and score what is told of them.

    python benchmarks/hazards.py [--only NAME] [--json F]
    python benchmarks/hazards.py --innocent PATH ... [-- PYTEST-ARGUMENTS]

Runs every program of tests/hazards with all rules, reads verdicts.jsonl by its contract
(docs/results.md) alone, and compares what was found with the expectation beside the program: a
guilty one is told by the right rule with the right lines and by no other rule, of an innocent one
nothing is told. Prints a line for each and exits with 1 if one is wrong.

With --innocent it runs the tests at these paths instead, with the default rules, and lists each
hazard that is told of any that pass: make hazards HAZARDS_ARGS='--innocent tests/corpus'.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
PROGRAMS = ROOT / "tests" / "hazards"
EXPECTATIONS = "PYTEST_MULTIHOST_HAZARDS_EXPECTATIONS"
LIMIT_S = 1800


def main() -> int:
    """Run, print, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="part of the ids to run")
    parser.add_argument("--json", default="", help="file for the scores")
    parser.add_argument("--innocent", nargs="+", help="tests that must show no hazard")
    parser.add_argument("--python", default=sys.executable, help="interpreter for --innocent")
    parser.add_argument("arguments", nargs="*", help="for pytest, behind --")
    options = parser.parse_args()
    if options.innocent:
        return _innocent(options.innocent, options.arguments, options.python)
    rows = list(_scored(options.only))
    for row in rows:
        print(f"{row['word']:8} {row['nodeid']:72} {row['told']}", flush=True)
    wrong = sum(row["word"] == "WRONG" for row in rows)
    guilty = sum(bool(row["rules"]) for row in rows)
    print(f"{guilty} guilty and {len(rows) - guilty} innocent programs, {wrong} wrong")
    if options.json:
        Path(options.json).write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    return 1 if wrong or not rows else 0


def _scored(only: str) -> Iterator[Mapping[str, Any]]:
    """Yield what is expected of each program, what was told, and whether that is right."""
    with tempfile.TemporaryDirectory(prefix="multihost-hazards-") as scratch:
        expectations = Path(scratch, "expectations")
        arguments = ["--multihost-hazard-rules=all", *(["-k", only] if only else [])]
        found = run(
            [str(PROGRAMS), "--rootdir", str(PROGRAMS), *arguments],
            {EXPECTATIONS: str(expectations)},
        )
        programs = _read_expectations(expectations)
    for expected in programs:
        verdict = found.get(expected["nodeid"])
        told = hazards_of(verdict) if verdict is not None else []
        yield {**expected, "told": _text(verdict, told), "word": word(expected, verdict, told)}


def _read_expectations(file: Path) -> list[dict[str, Any]]:
    """Return what is expected of the programs that were collected; of none there is no file."""
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    return [json.loads(each) for each in lines]


def run(
    arguments: Sequence[str],
    env: Mapping[str, str],
    python: str = sys.executable,
    *,
    folder: Path | None = None,
) -> dict[str, dict[str, Any]]:
    """Run pytest; return the verdict of each test. Its artifacts stay in `folder`, if given."""
    with tempfile.TemporaryDirectory(prefix="multihost-hazards-") as scratch:
        artifacts = folder or Path(scratch)
        command = [python, "-m", "pytest", "-q", f"--multihost-artifacts={artifacts}", *arguments]
        environment = {**os.environ, **env, "PYTHONPATH": str(ROOT)}
        ended = subprocess.run(
            command,
            cwd=ROOT,
            env=environment,
            timeout=LIMIT_S,
            capture_output=True,
            text=True,
            check=False,
        )
        path = Path(artifacts, "verdicts.jsonl")
        if ended.returncode == pytest.ExitCode.NO_TESTS_COLLECTED:
            return {}
        if not path.exists():
            raise SystemExit(ended.stdout + ended.stderr)
        lines = path.read_text(encoding="utf-8").splitlines()
    return {each["nodeid"]: each for each in map(json.loads, lines)}


def hazards_of(verdict: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the hazards that a verdict has."""
    return list((verdict["hazards"] or {}).get("found", ()))


def word(
    expected: Mapping[str, Any],
    verdict: Mapping[str, Any] | None,
    told: Sequence[Mapping[str, Any]],
) -> str:
    """Return whether what was told is right: ok or WRONG."""
    if verdict is None or verdict["status"] != "passed" or verdict["hazards"] is None:
        return "WRONG"
    wanted = set(expected["rules"])
    lines = [source for each in told for source in sources(each)]
    has_lines = all(any(part in line for line in lines) for part in expected["lines"])
    return "ok" if {each["rule"] for each in told} == wanted and has_lines else "WRONG"


def sources(hazard: Mapping[str, Any]) -> list[str]:
    """Return the lines of code that a hazard names."""
    steps = (step for side in hazard["sides"] for step in side["steps"])
    return [step["where"]["source"] for step in steps if step["where"] is not None]


def _text(verdict: Mapping[str, Any] | None, told: Sequence[Mapping[str, Any]]) -> str:
    if verdict is None or verdict["status"] != "passed":
        return f"did not pass: {verdict['reason'] if verdict else 'no verdict'}"
    return (
        "; ".join(f"{each['rule']}: {' | '.join(sources(each))}" for each in told)[:300]
        or "nothing"
    )


def _innocent(paths: Sequence[str], arguments: Sequence[str], python: str) -> int:
    """Run tests that must show no hazard; print those that do."""
    judged = shown = 0
    for path in paths:
        where = Path(path).resolve()
        root = where if where.is_dir() else where.parent
        verdicts = run([str(where), "--rootdir", str(root), *arguments], {}, python)
        for nodeid, verdict in verdicts.items():
            judged += verdict["hazards"] is not None
            told = hazards_of(verdict)
            shown += bool(told)
            for each in told:
                print(f"ACCUSED  {path}: {nodeid}: {each['rule']}: {each['summary']}")
                print(f"         {' | '.join(sources(each))}", flush=True)
        cut = sum(bool((each["hazards"] or {}).get("truncated")) for each in verdicts.values())
        print(f"{path}: {len(verdicts)} tests, {cut} with records that were cut off", flush=True)
    print(f"{judged} tests passed and were judged, of {shown} a hazard was told")
    return 1 if shown or not judged else 0


if __name__ == "__main__":
    sys.exit(main())
