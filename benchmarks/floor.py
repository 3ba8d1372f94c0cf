"""How far ours is from the least that the same world can cost.

The least: a process that has everything imported forks the ranks, they start the runtime, do one
collective and leave by `_exit` (worlds/floor.py). No fixtures, no report, no log, no watch.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from statistics import median

import cost
import figures
import peers
import projects
from figures import Section, Turns, spread_text

TARGETS: Mapping[tuple[str, int], float] = {
    ("gloo", 4): 1.5,
    ("jax", 4): 1.5,
    ("gloo", 32): 2.0,
    ("jax", 32): 2.0,
}
"""How many times the floor a test of ours may take at most, by backend and ranks."""


@dataclass(frozen=True, slots=True)
class Worlds:
    """Seconds of each world, and CPU seconds of one."""

    walls: Sequence[float]
    cpu_s: float


def run_floor(backend: str, ranks: int, worlds: int) -> Worlds:
    """Run so many worlds that are as bare as can be, and one before them that does not count.

    Raises:
        FailedError: They have failed.
    """
    variables = {"RANKS": str(ranks), "TESTS": str(worlds + 1), "BACKEND": backend}
    with projects.ran([sys.executable, "floor.py"], variables) as ended:
        found = json.loads(ended.required(0).output.splitlines()[-1])
        return Worlds(found["walls"][1:], found["cpu_s"])


def run_ours(backend: str, ranks: int, worlds: int) -> Worlds:
    """Run as many tests of ours."""
    found = cost.run_ours(backend, ranks, worlds)
    return Worlds(found.walls, found.cpu_s)


def distance(*, sizes: Sequence[int], rounds: int, worlds: int) -> Section:
    """Measure both in turns and return the table."""
    ways = {
        (backend, size, who): partial(run, backend, size, max(2, min(worlds, 64 // size)))
        for backend in cost.BACKENDS
        if peers.ours(backend).why_missing() is None
        for size in sizes
        for who, run in (("floor", run_floor), ("ours", run_ours))
    }
    return distance_section(figures.in_turns(ways, rounds))


def distance_section(turns: Turns) -> Section:
    """Return the table: the floor, ours, and their ratio, of two runs of one round each."""
    pairs = list(dict.fromkeys((backend, size) for backend, size, _ in turns.found))
    rows = [_row(backend, size, turns) for backend, size in pairs]
    told = [
        {"backend": backend, "ranks": size, "who": who, "rounds": [asdict(run) for run in found]}
        for (backend, size, who), found in turns.found.items()
    ]
    heads = ("backend", "ranks", "floor, s", "ours, s", "ours to floor", "of CPU", "target")
    return Section(
        "Distance to the floor",
        heads,
        rows,
        told,
        notes=("The floor: fork, start the runtime, one collective, `_exit`. Nothing else.",),
    )


def _row(backend: str, size: int, turns: Turns) -> list[str]:
    failure = turns.failed.get((backend, size, "floor")) or turns.failed.get(
        (backend, size, "ours")
    )
    floor, ours = turns.found[backend, size, "floor"], turns.found[backend, size, "ours"]
    if failure or not floor or not ours:
        return [backend, str(size), failure or "-", *["-"] * 4]
    wall, cpu = _ratios(ours, floor)
    target = TARGETS.get((backend, size))
    met = "" if target is None else f"<= {target:g}: {'yes' if wall.median <= target else 'no'}"
    texts = [spread_text([wall for run in runs for wall in run.walls]) for runs in (floor, ours)]
    return [backend, str(size), *texts, wall.text(2), cpu.text(2), met]


def _ratios(ours: Sequence[Worlds], floor: Sequence[Worlds]) -> tuple[figures.Spread, ...]:
    walls = figures.ratio([median(r.walls) for r in ours], [median(r.walls) for r in floor])
    cpu = figures.ratio([r.cpu_s for r in ours], [r.cpu_s for r in floor])
    assert walls is not None
    assert cpu is not None
    return walls, cpu


def missed(section: Section) -> list[str]:
    """Return which targets are missed."""
    return [
        f"{row[0]} at {row[1]} ranks: {row[4]} times the floor, {row[6].partition(':')[0]}"
        for row in section.rows
        if row[6].endswith("no")
    ]
