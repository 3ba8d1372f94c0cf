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


PROGRAM = """
import json, sys, pytest

chosen, page = json.loads(sys.argv[1]), sys.argv[2]

def is_chosen(nodeid):
    sized, _, size = nodeid.rstrip("]").rpartition("-")
    whole, _, alone = nodeid.rstrip("]").rpartition("[")
    of_list = {sized + "]"} if size.isdigit() else {whole} if alone.isdigit() else set()
    return nodeid in chosen or not of_list.isdisjoint(chosen)

class Chosen:
    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items):
        items[:] = [each for each in items if not chosen or is_chosen(each.nodeid)]

    def pytest_collection_finish(self, session):
        open(page, "w").writelines(f"{item.nodeid}\\n" for item in session.items)

sys.exit(pytest.main(sys.argv[3:], plugins=[Chosen()]))
"""
"""Runs the chosen tests, or all; writes their names. A list of sizes has a test for each size."""


def pytest_command(page: Path, chosen: Sequence[str], *args: str) -> list[str]:
    """Return a command that runs tests in an order that does not change."""
    off = ("cacheprovider", "randomly", "xdist")
    fixed = ("-q", *(f"-pno:{name}" for name in off))
    return [sys.executable, "-c", PROGRAM, json.dumps(chosen), str(page), *fixed, *args]


def collect(tests: Sequence[str]) -> list[str]:
    """Return the ids of the tests, whatever the suite's options make pytest print."""
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder, "names")
        command = pytest_command(page, (), "--collect-only", *tests)
        subprocess.run(command, capture_output=True, check=False)
        return page.read_text().splitlines() if page.exists() else []


def case_name(test: str) -> str:
    """Return the name of a test in junit's file."""
    file, *inside = test.partition("[")[0].split("::")
    *classes, name = inside
    module = file.removesuffix(".py").replace("/", ".")
    return f"{'.'.join((module, *classes))} {name}{test[test.find('[') :] if '[' in test else ''}"


def run(tests: Sequence[str], way: str, adopt: str) -> Iterator[Result]:
    """Run some tests in one way; yield their results, in their order."""
    extra = ("--multihost-adopt", adopt) if way == "adopted" else ()
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder, "junit.xml")
        files = dict.fromkeys(test.partition("::")[0] for test in tests)
        args = ("-W", "ignore", f"--junitxml={page}", *extra, *files)
        command = pytest_command(Path(folder, "names"), tests, *args)
        subprocess.run(command, capture_output=True, check=False, timeout=3600)
        found = list(ElementTree.parse(page).iter("testcase")) if page.exists() else []  # noqa: S314
    cases: dict[str, list[ElementTree.Element]] = {}
    for each in found:
        cases.setdefault(f"{each.get('classname')} {each.get('name')}", []).append(each)
    for test in tests:
        name = case_name(test)
        sized = [case for key in cases if is_of_a_size(key, name) for case in cases[key]]
        same = cases.get(name) or sized
        ends = [next((e for e in case if e.tag in ENDS), None) for case in same]
        ended = next((each for each in ends if each is not None), None)
        outcome = "passed" if ended is None else ended.tag
        seconds = sum(float(each.get("time", 0)) for each in same)
        reason = "" if ended is None else str(ended.get("message", ""))[:200]
        yield Result(test, way, outcome if same else "missing", seconds, reason)


ENDS = ("failure", "error", "skipped")


def is_of_a_size(case: str, name: str) -> bool:
    """Return whether a case is the test with one size of a list of sizes."""
    own, _, params = name.rstrip("]").partition("[")
    found, _, sized = case.rstrip("]").partition("[")
    *before, size = sized.rsplit("-", 1)
    return found == own and params == "".join(before) and size.isdigit()


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
