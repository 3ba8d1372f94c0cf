"""What looking for hazards costs a test of many collectives, in CPU time.

    python benchmarks/hazards_cost.py [--pairs N] [--collectives N] [--rules RULE,...]

Runs one test of two ranks again and again in one run of pytest, in turns with hazards switched off
and on, so that neighbours differ in nothing else. Counted is the CPU time of the ranks while they
communicate, of all their threads, and that of pytest's process during the whole test: the record,
its reading, the rules, the verdict. Other load hardly changes CPU time, and what it changes it
changes for both of a pair. Printed are the medians of both ways, and the median of the ratios of
all pairs with the range in which it lies with 95 % certainty.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parent.parent
SWITCH = """
import dataclasses, json, time
from pathlib import Path
import pytest
from pytest_multihost.pytest_plugin.tally import TALLY

@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item):
    tally, number = item.config.stash[TALLY], item.callspec.params["each"]
    way = ("off", "warn", "warn", "off")[number % 4]
    hazards = dataclasses.replace(tally.settings.hazards, mode=way)
    tally.settings = dataclasses.replace(tally.settings, hazards=hazards)
    began_s = time.process_time()
    done = yield
    spent_s = time.process_time() - began_s
    with Path("pytest.jsonl").open("a") as file:
        file.write(json.dumps([number, way, spent_s]) + chr(10))
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


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=40)
    parser.add_argument("--collectives", type=int, default=1000)
    parser.add_argument("--rules", default="", help="instead of the default ones")
    options = parser.parse_args()
    spent = spent_s(options.pairs, options.collectives, options.rules)
    # Before each pair one is left out: pytest's first tests are slower.
    pairs = [(spent[each], spent[each + 1]) for each in range(2, len(spent) - 1, 2)]
    ratios = sorted(by["warn"] / by["off"] for by in (dict(pair) for pair in pairs))
    off, on = (median(dict(pair)[way] for pair in pairs) for way in ("off", "warn"))
    low, high = certain_range(ratios)
    print(
        f"{options.collectives} collectives, {len(pairs)} pairs: off {off:.4f} s, on {on:.4f} s of"
        f" CPU, median ratio {median(ratios):.4f} ({low:.4f} to {high:.4f}),"
        f" load {os.getloadavg()[0]:.1f}"
    )


def certain_range(ordered: list[float]) -> tuple[float, float]:
    """Return between which values the median lies with 95 % certainty, by their order alone."""
    half = 0.98 * len(ordered) ** 0.5
    first = max(0, round(len(ordered) / 2 - half))
    return ordered[first], ordered[len(ordered) - 1 - first]


def spent_s(pairs: int, collectives: int, rules: str) -> list[tuple[str, float]]:
    """Return for each test whether hazards were on, and its CPU time."""
    with tempfile.TemporaryDirectory(prefix="multihost-hazards-cost-") as name:
        folder = Path(name)
        text = PROGRAM.format(tests=2 * pairs + 2, collectives=collectives)
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
    return [(way, took + sum(each[number] for each in of_ranks)) for number, way, took in of_tests]


if __name__ == "__main__":
    main()
