"""What looking for hazards costs a test of many collectives.

    python benchmarks/hazards_cost.py [--rounds N] [--collectives N]

Runs a passing test of two ranks a few times in a run of pytest, with --multihost-hazards=off and
=warn in turns, and prints how long pytest takes for one test each way, and the median ratio of
neighbouring runs. What is measured is all of it: the record, its reading, the rules, the verdict.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent
TESTS = 8
PROGRAM = """
import pytest, torch, torch.distributed as dist

@pytest.mark.parametrize("each", range({tests}))
@pytest.mark.multihost(ranks=2, backend="gloo")
def test_collectives(world, each):
    x = torch.ones(4)
    for _ in range({collectives}):
        dist.all_reduce(x)
"""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--collectives", type=int, default=1000)
    options = parser.parse_args()
    ratios, times = [], {"off": list[float](), "warn": list[float]()}
    for number in range(options.rounds):
        ways = ("off", "warn") if number % 2 else ("warn", "off")
        took = {way: seconds(way, options.collectives) for way in ways}
        for way, each in took.items():
            times[way].append(each)
        ratios.append(took["warn"] / took["off"])
        print(f"round {number + 1}: off {took['off']:.4f} s, warn {took['warn']:.4f} s", flush=True)
    load = os.getloadavg()[0]
    print(
        f"{options.collectives} collectives: off {median(times['off']):.4f} s,"
        f" warn {median(times['warn']):.4f} s, median ratio {median(ratios):.4f}, load {load:.1f}"
    )


def seconds(way: str, collectives: int) -> float:
    """Return the median duration of a test, with hazards on or off."""
    with tempfile.TemporaryDirectory(prefix="multihost-hazards-cost-") as folder:
        path = Path(folder)
        (path / "test_cost.py").write_text(PROGRAM.format(tests=TESTS, collectives=collectives))
        subprocess.run(
            [
                *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"),
                *(f"--multihost-hazards={way}", "--junitxml=times.xml", "test_cost.py"),
            ],
            cwd=path,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            check=True,
            capture_output=True,
        )
        tree = ElementTree.parse(path / "times.xml")  # noqa: S314 - written by our own run
        return median(float(each.get("time", 0)) for each in tree.iter("testcase"))


if __name__ == "__main__":
    main()
