"""Are the fixes proven every time? ``python benchmarks/fixes.py [--rounds N] [--only K]``.

Runs tests/fixes again and again while another process keeps one core busy, and prints for each
round how many tests passed and failed, and at the end the seconds of each test. Exits with 1 if
any failed, in any round.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from xml.etree import ElementTree as ET

from load import loaded

HERE = Path(__file__).resolve().parent.parent


def main() -> int:
    """Run the rounds, print the table, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--jobs", type=int, default=2, help="tests at a time")
    parser.add_argument("--only", default="", help="which tests, as for pytest -k")
    options = parser.parse_args()
    seconds: dict[str, list[float]] = defaultdict(list)
    failures = 0
    with loaded(1):
        for number in range(1, options.rounds + 1):
            began = time.monotonic()
            results = one_round(options.jobs, options.only)
            failed = [name for name, _, is_failed in results if is_failed]
            failures += len(failed)
            for name, took, _ in results:
                seconds[name].append(took)
            told = f"; failed: {', '.join(failed)}" if failed else ""
            took = time.monotonic() - began
            passed = len(results) - len(failed)
            print(f"round {number:2}: {passed} passed in {took:.0f} s{told}", flush=True)
    print(table(seconds))
    return 1 if failures else 0


def one_round(jobs: int, only: str) -> list[tuple[str, float, bool]]:
    """Run the tests once; return the name and seconds of each, and whether it failed."""
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory, "junit.xml")
        command = [sys.executable, "-m", "pytest", "-q", "-n", str(jobs), "--dist", "worksteal"]
        subprocess.run(
            [*command, "-k", only, f"--junitxml={report}", "tests/fixes"],
            cwd=HERE,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=False,
        )
        cases = ET.parse(report).getroot().iter("testcase")  # noqa: S314 - written by pytest
        return [
            (
                f"{case.attrib['classname'].rpartition('.')[2]}::{case.attrib['name']}",
                float(case.attrib["time"]),
                case.find("failure") is not None or case.find("error") is not None,
            )
            for case in cases
            if case.find("skipped") is None
        ]


def table(seconds: dict[str, list[float]]) -> str:
    """Return the tests that take longer than a second, slowest first, as Markdown."""
    rows = [(statistics.median(took), name, took) for name, took in seconds.items()]
    lines = ["| test | median | slowest | rounds |", "|---|---|---|---|"]
    for median, name, took in sorted(rows, reverse=True):
        if median > 1:
            lines.append(f"| {name} | {median:.1f} s | {max(took):.1f} s | {len(took)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
