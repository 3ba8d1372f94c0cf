"""How fast is a sweep?

    python benchmarks/sweep_speed.py

Sweeps a test of four gloo ranks (worlds/test_swept.py) three times, at about 50, 260 and 1,000
points, and prints the disturbed worlds (those that repeat a witness included), the seconds from the
first to the last, and the worlds a second. A world in which a rank is held before each of its
collectives counts as one. The processor time is that of the whole machine, with the start of pytest
and of the servers, so it tells of the sweep only if nothing else runs.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import projects
from figures import FailedError

STEPS = (2, 10, 40)
LIMIT_S = 3600.0
_PYTEST = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "multihost_hangs")


@dataclass(frozen=True, slots=True)
class Swept:
    """What a sweep has done.

    Attributes:
        disturbed: Worlds with a disturbance.
        repeats: Worlds that repeated a witness.
        took_s: Seconds from the first of them to the last.
        found: All that its sweep.json says.
        processor_s: Seconds of processor time of the whole machine, over the run of pytest.
    """

    disturbed: int
    repeats: int
    took_s: float
    found: Mapping[str, Any]
    processor_s: float = 0.0

    @property
    def world_s(self) -> float:
        """Seconds for one world."""
        return self.took_s / (self.disturbed + self.repeats)


def main() -> None:
    """Measure and print."""
    argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0]).parse_args()
    for steps in STEPS:
        print(speed(swept(steps, {})), flush=True)
    print(f"load {os.getloadavg()[0]:.1f}")


def swept(steps: int, variables: Mapping[str, str]) -> Swept:
    """Sweep a test of so many steps; it may find something.

    Args:
        variables: Of the run, beside its usual ones.

    Raises:
        FailedError: It has failed, or has disturbed nothing.
    """
    before_s = _busy_s()
    command = [*_PYTEST, "--multihost-sweep=late,fails,differs", "test_swept.py"]
    with projects.ran(command, {"STEPS": str(steps), **variables}, limit_s=LIMIT_S) as ended:
        ended.required(0, 1)
        files = {each.resolve() for each in ended.place.glob(".pytest_multihost/*/*/sweep.json")}
        if len(files) != 1:
            raise FailedError(f"left {len(files)} files sweep.json: {ended.output[-500:]}")
        found: Any = json.loads(files.pop().read_text(encoding="utf-8"))
    repeats = sum(each["repeated"][0] for each in found["weaknesses"])
    if not found["runs"]:
        raise FailedError("the sweep has disturbed nothing")
    busy_s = _busy_s() - before_s
    return Swept(len(found["runs"]), repeats, found["duration_s"], found, busy_s)


def _busy_s() -> float:
    """Return the processor time that this machine has spent on anything, in seconds."""
    user, nice, system = Path("/proc/stat").read_text(encoding="utf-8").split()[1:4]
    return sum(map(int, (user, nice, system))) / os.sysconf("SC_CLK_TCK")


def speed(swept: Swept) -> str:
    """Return what a sweep took as a line."""
    found = swept.found
    points = sum(map(sum, found["points"].values()))
    return (
        f"{points} points, {found['plan']['brute_force']} runs by brute force: {swept.disturbed}"
        f" disturbances and {swept.repeats} repeats in {swept.took_s:.1f} s,"
        f" {1 / swept.world_s:.1f} worlds a second,"
        f" {1000 * swept.processor_s / (swept.disturbed + swept.repeats):.0f} ms of processor time"
        " for each,"
        f" {len(found['weaknesses'])} weaknesses, longest world"
        f" {max(each['seconds'] for each in found['runs']):.1f} s"
    )


if __name__ == "__main__":
    main()
