"""What recording costs a test that is swept, in its undisturbed run, as a ratio of CPU times.

    python benchmarks/recording_cost.py [--rounds N]

Runs the tests of worlds/test_recorded.py in turns: as they are, and swept with a budget that is
over at once. Their ranks state the CPU time of their bodies; of a swept test only the undisturbed
run counts, which is the first. Prints the median of each, and the ratio. Exits with 1 if a ratio is
above 2.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping
from statistics import median

import projects

MOST = 2.0
_PYTEST = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "multihost_hangs")
_SWEEP = ("--multihost-sweep=late,fails,differs", "--multihost-sweep-budget=0.01")

Spent = dict[str, list[float]]
"""The CPU seconds of the first world of each test, one for each rank."""


def main() -> int:
    """Measure, print, and return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    plain, swept = Spent(), Spent()
    for _ in range(rounds):
        for spent, options in ((plain, ()), (swept, _SWEEP)):
            for name, seconds in measured(options).items():
                spent.setdefault(name, []).append(seconds)
    ratios = []
    for name, seconds in plain.items():
        before_s, recorded_s = median(seconds), median(swept[name])
        ratios.append(recorded_s / before_s)
        print(f"{name:10} {before_s:.3f} s, recorded {recorded_s:.3f} s, ratio {ratios[-1]:.2f}")
    print(f"{rounds} rounds, load {os.getloadavg()[0]:.1f}")
    return 1 if max(ratios) > MOST else 0


def measured(options: tuple[str, ...]) -> Mapping[str, float]:
    """Return the CPU seconds of each test's first world, those of its two ranks together."""
    with projects.ran([*_PYTEST, *options, "test_recorded.py"], {"SPENT": "spent.jsonl"}) as ended:
        ended.required(0, 1)
        lines = (ended.place / "spent.jsonl").read_text(encoding="utf-8").splitlines()
    first: dict[tuple[str, int], float] = {}
    for name, rank, seconds in map(json.loads, lines):
        first.setdefault((name, rank), seconds)
    found: dict[str, float] = {}
    for (name, _), seconds in first.items():
        found[name] = found.get(name, 0.0) + seconds
    return found


if __name__ == "__main__":
    sys.exit(main())
