"""What does a jump of the clock cost, and what does such a clock cost a world that never waits?

    python benchmarks/clock_cost.py [--pairs 5]

Prints for worlds that only wait how many jumps they make, how long one takes and how many fit
into a second; and for one that computes the ratios of its seconds, and of the processor seconds of
all processes of the run, with such a clock to those with a real one: medians of pairs of runs,
whose order alternates. On a shared machine seconds are noisy, so that the second ratio says more.
"""

from __future__ import annotations

import argparse
import os
import statistics
from pathlib import Path
from typing import Any

from clock_soak import run_programs
from figures import children_s

ROOT = Path(__file__).resolve().parent.parent
PROGRAMS = ROOT / "tests" / "clock" / "cost.py"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=5)
    options = parser.parse_args()
    for verdict in run("jump", "wait or sleeps"):
        clock = verdict["clock_jumps"]
        spent_s = clock["real_s"] - verdict["startup_s"]
        name = verdict["nodeid"].partition("::test_")[2]
        jumps = clock["jumps"]
        print(
            f"{name}: {jumps} jumps over {clock['jumped_s']:.0f} s in {spent_s:.2f} s:"
            f" {spent_s / jumps * 1e3:.1f} ms each, {jumps / spent_s:.0f} a second"
        )
    ratios, cpu_ratios = [], []
    for number in range(options.pairs):
        order = ("real", "jump") if number % 2 else ("jump", "real")
        seconds, used = {}, {}
        for clock in order:
            before_s = children_s()
            seconds[clock] = spent(run(clock, "compute")[0])
            used[clock] = children_s() - before_s
        ratios.append(seconds["jump"] / seconds["real"])
        cpu_ratios.append(used["jump"] / used["real"])
        print(
            f"computing: {seconds['jump']:.2f} s, with a real clock {seconds['real']:.2f} s;"
            f" processors {used['jump']:.2f} s, {used['real']:.2f} s",
            flush=True,
        )
    for name, found in (("seconds", ratios), ("processor seconds", cpu_ratios)):
        print(
            f"ratio of {name}: median {statistics.median(found):.3f},"
            f" {min(found):.3f} to {max(found):.3f}"
        )
    print(f"load {os.getloadavg()[0]:.1f}")


def spent(verdict: dict[str, Any]) -> float:
    """Return how long a world has taken after its start, in real seconds."""
    jumped_s = (verdict["clock_jumps"] or {"jumped_s": 0.0})["jumped_s"]
    return float(verdict["duration_s"] - verdict["startup_s"] - jumped_s)


def run(clock: str, only: str) -> list[dict[str, Any]]:
    """Run some of the programs, and return their verdicts: all pass."""
    found = run_programs(PROGRAMS, clock, only)
    assert all(each["status"] == "passed" for each in found), found
    return found


if __name__ == "__main__":
    main()
