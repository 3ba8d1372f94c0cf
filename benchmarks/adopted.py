"""Compares the tests of another harness, adopted and in their own harness, test by test.

    python benchmarks/adopted.py --adopt torch --every 4 --results torch.jsonl suite/test_x.py

It runs a few tests at a time in their own harness, and then the same ones adopted, so that both see
the same load. Each result is written as it comes, and a later call continues there. `--show` prints
the table of a file of results. The suite is not part of this project: bring it along.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from xml.etree import ElementTree

WAYS = ("own", "adopted")


@dataclass(frozen=True, slots=True)
class Result:
    """How one test ended in one way."""

    test: str
    way: str
    outcome: str
    seconds: float
    reason: str = ""


def main() -> None:
    """Compare, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--adopt", default="torch", help="Value of --multihost-adopt")
    parser.add_argument("--every", type=int, default=1, help="Take each n-th test")
    parser.add_argument("--batch", type=int, default=6, help="Tests of one run of pytest")
    parser.add_argument("--minutes", type=float, default=60, help="Begin no batch after that")
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--show", action="store_true")
    parser.add_argument("tests", nargs="*", help="Files or ids, and pytest's options after --")
    args = parser.parse_args()
    if not args.show:
        known = {each.test for each in read(args.results)}
        chosen = [each for each in collect(args.tests)[:: args.every] if each not in known]
        until = time.monotonic() + 60 * args.minutes
        for first in range(0, len(chosen), args.batch):
            if time.monotonic() > until:
                break
            batch = chosen[first : first + args.batch]
            found = [each for way in WAYS for each in run(batch, way, args.adopt)]
            with args.results.open("a") as file:
                file.writelines(f"{json.dumps(asdict(each))}\n" for each in found)
    show(read(args.results))


def read(file: Path) -> list[Result]:
    """Return the results of a file, which need not exist."""
    lines = file.read_text().splitlines() if file.exists() else []
    return [Result(**json.loads(line)) for line in lines]


def pytest_command(*args: str) -> list[str]:
    """Return a command that runs pytest in an order that does not change."""
    off = ("cacheprovider", "randomly", "xdist")
    return [sys.executable, "-m", "pytest", "-q", *(f"-pno:{name}" for name in off), *args]


def collect(tests: Sequence[str]) -> list[str]:
    """Return the ids of the tests."""
    command = pytest_command("--collect-only", *tests)
    found = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    return [line for line in found.splitlines() if "::" in line and not line.startswith(" ")]


def run(tests: Sequence[str], way: str, adopt: str) -> Iterator[Result]:
    """Run some tests in one way; yield their results, in their order."""
    extra = ("--multihost-adopt", adopt) if way == "adopted" else ()
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder, "junit.xml")
        command = pytest_command("-W", "ignore", f"--junitxml={page}", *extra, *tests)
        subprocess.run(command, capture_output=True, check=False, timeout=3600)
        cases = list(ElementTree.parse(page).iter("testcase")) if page.exists() else []  # noqa: S314
    names = {f"{case.get('name')}": case for case in cases}
    for test in tests:
        case = names.get(test.rpartition("::")[2])
        ended = None if case is None else next((e for e in case if e.tag != "properties"), None)
        outcome = "passed" if ended is None else ended.tag
        seconds = 0.0 if case is None else float(case.get("time", 0))
        reason = "" if ended is None else str(ended.get("message", ""))[:200]
        yield Result(test, way, "missing" if case is None else outcome, seconds, reason)


def show(results: Sequence[Result]) -> None:
    """Print each test's outcome and seconds in both ways, and the medians."""
    both = {way: {each.test: each for each in results if each.way == way} for way in WAYS}
    tests = [test for test in both["own"] if test in both["adopted"]]
    print(f"{'own':>8} {'s':>7}  {'adopted':>8} {'s':>7}  test")
    for test in tests:
        own, adopted = both["own"][test], both["adopted"][test]
        mark = "" if own.outcome == adopted.outcome else f"  DIFFERS: {adopted.reason[:90]}"
        times = f"{own.outcome:>8} {own.seconds:7.2f}  {adopted.outcome:>8} {adopted.seconds:7.2f}"
        print(f"{times}  {test.rpartition('::')[2]}{mark}")
    if not tests:
        return
    own_s, adopted_s = (
        [both[way][each].seconds for each in tests if both["own"][each].outcome == "passed"] or [0]
        for way in WAYS
    )
    equal = sum(both["own"][each].outcome == both["adopted"][each].outcome for each in tests)
    print(f"{len(tests)} tests, {equal} with the same outcome")
    for way, seconds in zip(WAYS, (own_s, adopted_s), strict=True):
        median, total = statistics.median(seconds), sum(seconds)
        print(f"{way:>8}: {len(seconds)} passed, median {median:.2f} s a test, sum {total:.1f} s")


if __name__ == "__main__":
    main()
