"""How fast is a sweep, and what does recording its points cost?

    python benchmarks/sweep_speed.py [--rounds N]

Sweeps three tests of four gloo ranks, of about 50, 220 and 900 points, and prints the disturbed
worlds (those that repeat a witness included), the seconds from the first to the last, and the
worlds a second. Then runs a test of a thousand collectives with and without a sweep in turns, and
prints the processor time that its ranks take for them: that of the undisturbed run, whose points a
sweep records.
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
RECORDING = """
import pathlib, pytest, time, torch, torch.distributed as dist

@pytest.mark.multihost(ranks={ranks}, backend="gloo")
def test_it(world):
    x = torch.ones({elements})
    dist.all_reduce(x)
    began_s = time.process_time()
    for _ in range(1000):
        dist.all_reduce(x)
    took_s = time.process_time() - began_s
    file = pathlib.Path(__file__).with_name(f"took_{{world.rank}}")
    if not file.exists():  # the undisturbed run comes first
        file.write_text(str(took_s))
    dist.barrier()
"""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=6, help="pairs of runs with and without")
    rounds = parser.parse_args().rounds
    for steps in STEPS:
        with tempfile.TemporaryDirectory(prefix="multihost-sweep-speed-") as folder:
            print(speed(Path(folder), steps), flush=True)
    for ranks, elements in ((2, 8), (4, 8), (4, 100_000)):
        print(recording(ranks, elements, rounds), flush=True)
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
        f" {len(found['weaknesses'])} weaknesses"
    )


def recording(ranks: int, elements: int, rounds: int) -> str:
    """Return the processor time of a thousand all_reduces with and without a sweep, as a line."""
    program = RECORDING.format(ranks=ranks, elements=elements)
    took: dict[str, list[float]] = {"without": [], "with": []}
    for number in range(rounds):
        for way in ("without", "with") if number % 2 else ("with", "without"):
            with tempfile.TemporaryDirectory(prefix="multihost-sweep-cost-") as folder:
                path = Path(folder)
                sweep = ("--multihost-sweep=late", "--multihost-sweep-budget=1")
                run_pytest(path, program, *(sweep if way == "with" else ()))
                took[way].append(sum(float(each.read_text()) for each in path.glob("took_*")))
    with_s, without_s = median(took["with"]), median(took["without"])
    return (
        f"1000 all_reduces of {elements} floats, {ranks} ranks: {without_s:.3f} CPU s without,"
        f" {with_s:.3f} with the record of points, {with_s / without_s - 1:+.1%}"
        f" (lowest {min(took['with']) / min(took['without']) - 1:+.1%})"
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
