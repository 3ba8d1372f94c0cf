"""How fast is a sweep?

    python benchmarks/sweep_speed.py

Sweeps three tests of four gloo ranks, of about 80, 260 and 1,000 points, and prints the disturbed
worlds (those that repeat a witness included), the seconds from the first to the last, and the
worlds a second. A world in which a rank is held before each of its collectives counts as one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
STEPS = (3, 10, 40)
SPEED = """
import pytest, torch, torch.distributed as dist

def step():
    dist.all_reduce(torch.ones(8))

def save(world, file):
    if world.rank == 0:
        file.write_text("x")
    dist.barrier()

@pytest.mark.multihost(ranks=4, backend="gloo")
def test_it(world, shared_tmp_path):
    for number in range({steps}):
        step()
        save(world, shared_tmp_path / f"step_{{number}}")
        (shared_tmp_path / f"step_{{number}}").read_text()
        step()
        dist.barrier()
"""


def main() -> None:
    """Measure and print."""
    for steps in STEPS:
        with tempfile.TemporaryDirectory(prefix="multihost-sweep-speed-") as folder:
            print(speed(Path(folder), steps), flush=True)
    print(f"load {os.getloadavg()[0]:.1f}")


def speed(folder: Path, steps: int) -> str:
    """Sweep a test of so many steps, and return what that took as a line."""
    run_pytest(folder, SPEED.format(steps=steps), "--multihost-sweep=late,fails,differs")
    [file] = {each.resolve() for each in folder.glob(".pytest_multihost/*/*/sweep.json")}
    found: Any = json.loads(file.read_text(encoding="utf-8"))
    disturbed = len(found["runs"])
    repeats = sum(each["repeated"][0] for each in found["weaknesses"])
    seconds = found["duration_s"]
    points = sum(map(sum, found["points"].values()))
    return (
        f"{points} points, {found['plan']['brute_force']} runs by brute force: {disturbed}"
        f" disturbances and {repeats} repeats in {seconds:.1f} s,"
        f" {(disturbed + repeats) / seconds:.1f} worlds a second,"
        f" {len(found['weaknesses'])} weaknesses, longest world"
        f" {max(each['seconds'] for each in found['runs']):.1f} s"
    )


def run_pytest(folder: Path, program: str, *options: str) -> None:
    """Run pytest on a program of its own folder; a sweep may find something."""
    (folder / "test_it.py").write_text(program, encoding="utf-8")
    ended = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_it.py"),
            *options,
        ],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    if ended.returncode not in (0, 1):
        raise SystemExit(ended.stdout[-2000:] + ended.stderr[-2000:])


if __name__ == "__main__":
    main()
