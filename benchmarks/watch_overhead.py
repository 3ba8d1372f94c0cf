"""Does `pytest --multihost-watch` slow a suite down?

    python benchmarks/watch_overhead.py --folder DIR [--rounds N] -- PYTEST ARGUMENTS

Runs pytest there in turns without and with `--multihost-watch`, and prints for each pair the wall
time and the processor time of all of its processes, then the medians of the ratios, and the part of
a processor that the watcher itself has used (without py-spy, which its looks start).
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

PYTEST = ("-m", "pytest", "-p", "no:cacheprovider")
TICKS = os.sysconf("SC_CLK_TCK")
BETWEEN_S = 0.05
WATCHER = "multihost-watch"


@dataclass(frozen=True, slots=True)
class Cost:
    """What one run has cost.

    Attributes:
        wall_s: Its wall time.
        cpu_s: The processor time of all its processes.
        own_s: That of the watcher, since it watches.
    """

    wall_s: float
    cpu_s: float
    own_s: float


def main() -> None:
    """Run the pairs."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("rest", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    words = options.rest[1:] if options.rest[:1] == ["--"] else options.rest
    print(f"load {os.getloadavg()[0]:.1f}")
    pairs = []
    for number in range(options.rounds):
        kinds = [(), ("--multihost-watch",)]
        costs = {
            kind: run(options.folder, [*kind, *words]) for kind in kinds[:: 1 - number % 2 * 2]
        }
        pairs.append((costs[kinds[0]], costs[kinds[1]]))
        plain, watched = pairs[-1]
        print(
            f"without {plain.wall_s:6.1f} s, {plain.cpu_s:6.1f} s of CPU; with"
            f" {watched.wall_s:6.1f} s, {watched.cpu_s:6.1f} s of CPU, the watcher"
            f" {watched.own_s / watched.wall_s:.2%} of a core",
            flush=True,
        )
    walls = statistics.median(two.wall_s / one.wall_s for one, two in pairs)
    cpus = statistics.median(two.cpu_s / one.cpu_s for one, two in pairs)
    share = statistics.median(two.own_s / two.wall_s for _, two in pairs)
    print(f"medians: wall {walls:.3f}, CPU {cpus:.3f}, the watcher {share:.2%} of a core")


def run(folder: Path, words: list[str]) -> Cost:
    """Run pytest once."""
    begun_s, own_s = time.monotonic(), 0.0
    before_s = 0.0
    process = subprocess.Popen(
        [sys.executable, *PYTEST, *words],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    before = os.times()
    while process.poll() is None:
        now_s = used_s(process.pid)
        before_s = before_s or now_s  # what pytest has used before it has become the watcher
        own_s = max(own_s, now_s - before_s)
        time.sleep(BETWEEN_S)
    after = os.times()
    cpu_s = after.children_user + after.children_system
    return Cost(
        time.monotonic() - begun_s,
        cpu_s - before.children_user - before.children_system,
        own_s,
    )


def used_s(pid: int) -> float:
    """Return the processor time of a watcher, without its children's; 0 of another process."""
    try:
        _, name, rest = re.split(r"\((.*)\)", Path(f"/proc/{pid}/stat").read_text())
    except (OSError, ValueError):
        return 0.0
    words = rest.split()
    return (int(words[11]) + int(words[12])) / TICKS if name == WATCHER else 0.0


if __name__ == "__main__":
    main()
