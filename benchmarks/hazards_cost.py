"""What looking for hazards costs a test of many collectives, in CPU time.

    python benchmarks/hazards_cost.py [--tests N] [--collectives N] [--rules RULE,...]

Runs one test of two ranks again and again in one run of pytest, in turns with hazards switched off
and on. Counted is CPU time: that of the ranks while they communicate, of all their threads, that of
pytest's process, and apart from it that of reading the records and applying the rules. What hazards
add in the ranks is the archive, which begins after the 1,024th operation: that is measured by
itself, on a slot page with it and on one without, since under load the same ranks differ by tenths.

Other load can only add to what is measured: of everything the mean of the lowest quarter is taken.
The ratio is that of all CPU time with hazards and without.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

from pytest_multihost.core.slots import SlotPage

ROOT = Path(__file__).resolve().parent.parent
SWITCH = """
import dataclasses, json, os, time
from pathlib import Path
import pytest
from pytest_multihost.core.pytest_plugin.run import RUN
from pytest_multihost.extensions.hazards import look as module
from pytest_multihost.extensions.hazards.options import MODE

look, looked_s = module.look_for_hazards, []

def timed(*given):
    began_s = time.thread_time()
    found = look(*given)
    looked_s.append(time.thread_time() - began_s)
    return found

module.look_for_hazards = timed

@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item):
    if "PYTEST_MULTIHOST_SERVER" in os.environ:  # a rank
        return (yield)
    run, number = item.config.stash[RUN], item.callspec.params["each"]
    way = ("off", "warn", "warn", "off")[number % 4]
    plan = run.plans[item.nodeid]
    settings = plan.settings.having(MODE, way)
    run.plans = {**run.plans, item.nodeid: dataclasses.replace(plan, settings=settings)}
    looked_s.clear()
    began_s = time.process_time()
    done = yield
    spent_s = time.process_time() - began_s
    with Path("pytest.jsonl").open("a") as file:
        file.write(json.dumps([number, way, spent_s, sum(looked_s)]) + chr(10))
    return done
"""
PROGRAM = """
import json, time
from pathlib import Path
import pytest, torch, torch.distributed as dist

FOLDER = Path(__file__).parent

@pytest.mark.parametrize("each", range({tests}))
@pytest.mark.multihost(ranks=2, backend="gloo")
def test_collectives(world, each):
    x = torch.ones(4)
    dist.all_reduce(x)
    began_s = time.process_time()
    for _ in range({collectives}):
        dist.all_reduce(x)
    spent_s = time.process_time() - began_s
    with (FOLDER / f"rank-{{world.rank}}.jsonl").open("a") as file:
        file.write(json.dumps([each, spent_s]) + chr(10))
"""


@dataclass(frozen=True, slots=True)
class Spent:
    """The CPU time of one test, in seconds.

    Attributes:
        is_on: Whether hazards were looked for.
        ranks_s: Of both ranks, while they communicate.
        pytest_s: Of pytest's process, during all of the test.
        look_s: The part of it that reads the records and applies the rules.
    """

    is_on: bool
    ranks_s: float
    pytest_s: float
    look_s: float


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tests", type=int, default=64)
    parser.add_argument("--collectives", type=int, default=1000)
    parser.add_argument("--rules", default="", help="instead of the default ones")
    options = parser.parse_args()
    spent = measured(options.tests, options.collectives, options.rules)[2:]  # pytest's first
    rest_s = lowest([each.pytest_s - each.look_s for each in spent])
    off_s = lowest([each.ranks_s for each in spent if not each.is_on])
    on_s = lowest([each.ranks_s for each in spent if each.is_on])
    look_s = lowest([each.look_s for each in spent if each.is_on])
    added_s = max(0.0, 2 * archive_s(options.collectives))
    ratio = 1 + (added_s + look_s) / (off_s + rest_s)
    print(
        f"{options.collectives} collectives, {len(spent)} tests: ranks {off_s:.4f} s off,"
        f" {on_s:.4f} s on, of that {added_s:.5f} s for the archive; pytest {rest_s:.4f} s, and"
        f" {look_s:.5f} s for the rules; ratio {ratio:.4f}, load {os.getloadavg()[0]:.1f}"
    )


def archive_s(operations: int) -> float:
    """Return what a rank spends on keeping all its operations."""
    spent: dict[bool, list[float]] = {False: [], True: []}
    for turn in range(40):
        keeps = turn % 2 == 1
        with tempfile.TemporaryDirectory(prefix="multihost-hazards-cost-") as folder:
            page = SlotPage.create(Path(folder, "page"))
            if keeps:
                page.keep_all()
            call = page.call("all_reduce", "collective", page.group((0, 1)))
            began_s = time.thread_time()
            for number in range(operations):
                page.end(page.begin(call, number + 2, 1, (0, 0, 0)), number + 3)
            spent[keeps].append(time.thread_time() - began_s)
    return lowest(spent[True]) - lowest(spent[False])


def lowest(values: Sequence[float]) -> float:
    """Return the mean of the lowest quarter."""
    return mean(sorted(values)[: max(1, len(values) // 4)])


def measured(tests: int, collectives: int, rules: str) -> list[Spent]:
    """Return what each test has spent."""
    with tempfile.TemporaryDirectory(prefix="multihost-hazards-cost-") as name:
        folder = Path(name)
        text = PROGRAM.format(tests=tests, collectives=collectives)
        (folder / "test_cost.py").write_text(text)
        (folder / "conftest.py").write_text(SWITCH)
        subprocess.run(
            [
                *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"),
                *("-p", "no:randomly", "test_cost.py"),
                *([f"--multihost-hazard-rules={rules}"] if rules else []),
            ],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            check=True,
            capture_output=True,
        )
        of_tests = [*map(json.loads, (folder / "pytest.jsonl").read_text().splitlines())]
        of_ranks = [
            dict(map(json.loads, (folder / f"rank-{rank}.jsonl").read_text().splitlines()))
            for rank in range(2)
        ]
    return [
        Spent(way == "warn", sum(each[number] for each in of_ranks), pytest_s, look_s)
        for number, way, pytest_s, look_s in of_tests
    ]


if __name__ == "__main__":
    main()
