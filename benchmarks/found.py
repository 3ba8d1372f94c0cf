"""Do the weaknesses of docs/found still show? Repeat each one, and count.

    python benchmarks/found.py [--times 20] [--only PART] [--json FILE]
    python benchmarks/found.py --sweep [--budget SECONDS] [--only PART] [--json FILE]

docs/found/found.toml has for each place that a sweep has led to the command that repeats a
disturbed test, and what the verdict is then to say. The test is run so many times, one time after
the other in one run of pytest, and the attempts are counted whose verdict says all of it. Exits
with 1 if a place is not shown by every attempt. The scripts of all places, which need no plugin,
are run by benchmarks/reproducers.py.

With --sweep every program of tests/found is swept instead, also those that no place is about, and
their weaknesses are listed, each with the places that have the same kind of hang and operation.
Exits with 1 if a program is not swept, or nothing is.

The libraries are those of the interpreter that runs this; the table names the versions that it is
about.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "docs" / "found" / "found.toml"
TESTS = ROOT / "tests" / "found"


@dataclass(frozen=True)
class Witness:
    """What repeats a place, and what the verdict then says.

    Attributes:
        replay: The command that repeats the disturbed run, to be called in tests/found.
        fault: What is disturbed, as one writes it by hand.
        kind: Of the diagnosis.
        culprits: Of the diagnosis.
        waiting: The ranks that it says wait.
        operation: The name of that in which they wait.
    """

    replay: str
    fault: str
    kind: str
    culprits: Sequence[int]
    waiting: Sequence[int]
    operation: str

    @property
    def test(self) -> str:
        """The node id of the test."""
        return self.replay.split()[1]

    @property
    def token(self) -> str:
        """What the command replays."""
        return self.replay.split()[-1]


@dataclass(frozen=True)
class Repeated:
    """One place whose witness was repeated.

    Attributes:
        page: Its name.
        times: How often the test was to run.
        shown: How many attempts showed the weakness.
        others: What the other attempts came to, with their numbers.
        seconds: How long it took, with the start of pytest.
        load: Mean number of processes that were ready to run, over its last minute.
    """

    page: str
    times: int
    shown: int
    others: Mapping[str, int]
    seconds: float
    load: float


def witnesses() -> dict[str, Witness]:
    """Return the witnesses by the names of their places; places found by reading have none.

    Raises:
        TypeError: A place has a part of a witness.
    """
    table = tomllib.loads(TABLE.read_text(encoding="utf-8"))
    names = {field.name for field in fields(Witness)}
    parts = {
        place: {name: value for name, value in each.items() if name in names}
        for place, each in table.items()
    }
    return {place: Witness(**found) for place, found in parts.items() if found}


def shows(witness: Witness, verdict: Mapping[str, Any]) -> bool:
    """Whether a verdict says of the test what the table says."""
    found = verdict["diagnosis"]
    if verdict["status"] != "failed" or found is None:
        return False
    return (
        found["kind"] == witness.kind
        and found["culprits"] == list(witness.culprits)
        and found["waiting"] == list(witness.waiting)
        and (found["operation"] or {"name": ""})["name"] == witness.operation
    )


def summed_up(verdict: Mapping[str, Any]) -> str:
    """Return what a verdict comes to, in a few words."""
    found = verdict["diagnosis"]
    if found is None:
        return f"{verdict['outcome']}, no diagnosis"
    operation = (found["operation"] or {"name": "no operation"})["name"]
    return f"{found['kind']} {found['culprits']}, {found['waiting']} wait in {operation}"


def repeat(page: str, witness: Witness, times: int) -> Repeated:
    """Run the test of a page so many times, and count."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="multihost-found-") as scratch:
        arguments = [*witness.replay.split()[1:], "--times", str(times)]
        ended = _pytest([*arguments, "--multihost-artifacts", scratch])
        file = Path(scratch, "verdicts.jsonl")
        lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    verdicts = [json.loads(line) for line in lines]
    if len(verdicts) != times:
        print(f"{page}: pytest ended with {ended.returncode}:\n{ended.stdout[-4000:]}")
    others = Counter(summed_up(each) for each in verdicts if not shows(witness, each))
    shown = len(verdicts) - others.total()
    seconds = round(time.monotonic() - started, 1)
    return Repeated(page, times, shown, dict(others), seconds, round(os.getloadavg()[0], 1))


def sweep_all(only: str, budget_s: float) -> list[dict[str, Any]]:
    """Sweep the programs whose names have a part in common, and return what each sweep wrote."""
    with tempfile.TemporaryDirectory(prefix="multihost-found-") as scratch:
        options = ["--multihost-sweep=late,fails,differs", f"--multihost-sweep-budget={budget_s:g}"]
        options.append("--continue-on-collection-errors")  # a library that is not there
        chosen = ["-k", only] if only else []
        files = sorted(path.name for path in TESTS.glob("test_*.py"))
        ended = _pytest([*files, *options, *chosen, f"--multihost-artifacts={scratch}"])
        files_ = {each.resolve() for each in Path(scratch).glob("*/*/sweep.json")}  # and "latest"
        found = [json.loads(each.read_text(encoding="utf-8")) for each in files_]
    if not found:
        print(f"pytest ended with {ended.returncode}:\n{ended.stdout[-4000:]}")
    return sorted(found, key=lambda each: str(each["nodeid"]))


def swept_lines(sweep: Mapping[str, Any], known: Mapping[str, Witness]) -> list[str]:
    """Return what a sweep has found, a line for each weakness.

    Args:
        sweep: A sweep.json.
        known: The witness of each place.
    """
    if sweep["status"] == "not swept":
        return [f"{sweep['nodeid']}: not swept: {sweep['reason']}"]
    seconds, runs = sweep["duration_s"], len(sweep["runs"])
    count = len(sweep["weaknesses"])
    lines = [f"{sweep['nodeid']}: {count} weaknesses in {runs} runs, {seconds:.0f} s"]
    for each in sweep["weaknesses"]:
        run = each["witness"]
        operation = (run["operation"] or {"name": "no operation"})["name"]
        pages_ = [
            name
            for name, page in known.items()
            if (page.kind, page.operation) == (run["kind"], operation)
            and page.test.partition("::")[0] == sweep["nodeid"].partition("::")[0]
        ]
        again = "{1} of {0}".format(*each["repeated"])
        like = f" (as {', '.join(pages_)})" if pages_ else " (no place)"
        lines.append(f"  {each['text']}; repeated {again}{like}")
    return lines


def _pytest(arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
    variables = {**os.environ, "DS_BUILD_OPS": "0"}  # deepspeed compiles nothing then
    for name in ("CI", "PYTEST_ADDOPTS"):
        variables.pop(name, None)
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--tb=no", *arguments],
        cwd=TESTS,
        env=variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
        text=True,
    )


def _sweep(options: argparse.Namespace) -> int:
    """Sweep what is asked for, print it, and return the exit code."""
    found, known = sweep_all(options.only, options.budget), witnesses()
    for each in found:
        print("\n".join(swept_lines(each, known)), flush=True)
    if options.json:
        Path(options.json).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 1 if not found or any(each["status"] == "not swept" for each in found) else 0


def main() -> int:
    """Repeat what is asked for, print it, and return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--times", type=int, default=20, help="how often each is repeated")
    parser.add_argument("--only", default="", help="part of the names of the places")
    parser.add_argument("--json", default="", help="file for the counts")
    parser.add_argument("--sweep", action="store_true", help="sweep the programs instead")
    parser.add_argument("--budget", type=float, default=120.0, help="seconds for each sweep")
    options = parser.parse_args()
    if options.sweep:
        return _sweep(options)
    chosen = {name: each for name, each in witnesses().items() if options.only in name}
    rows = []
    for name, witness in chosen.items():
        row = repeat(name, witness, options.times)
        others = "".join(f"; {number} x {what}" for what, number in row.others.items())
        print(
            f"{name:34} {row.shown:3} of {row.times}{row.seconds:8.1f} s  load {row.load}{others}",
            flush=True,
        )
        rows.append(row)
    if options.json:
        text = json.dumps([asdict(row) for row in rows], indent=1)
        Path(options.json).write_text(text + "\n", encoding="utf-8")
    return 1 if not rows or any(row.shown < row.times for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
