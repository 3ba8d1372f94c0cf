"""Figures and tables: medians and spreads of measurements that took turns, and where they did."""

from __future__ import annotations

import datetime
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

Key = TypeVar("Key", bound=Hashable)
Found = TypeVar("Found")

BUSY = 0.5
"""Processes that compute, for each core, above which a machine is busy."""


class FailedError(Exception):
    """A way could not be measured; the text says why."""


@dataclass(frozen=True, slots=True)
class Spread:
    """The middle and the ends of some measurements."""

    median: float
    low: float
    high: float
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Return the spread of `values`, of which there is at least one."""
        return cls(statistics.median(values), min(values), max(values), len(values))

    def text(self, digits: int = 3, scale: float = 1.0) -> str:
        """Return ``median (low-high, count)``, and of a single value that value alone."""
        middle, low, high = (f"{x * scale:.{digits}f}" for x in (self.median, self.low, self.high))
        return middle if self.count == 1 else f"{middle} ({low}-{high}, {self.count})"


@dataclass(frozen=True, slots=True)
class Section:
    """One table: what it is about, its head and rows, and the figures behind it."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    figures: Any
    notes: Sequence[str] = ()

    def markdown(self) -> str:
        """Return the table with its title and notes."""
        notes = "".join(f"* {note}\n" for note in self.notes)
        return f"## {self.title}\n\n{table(self.head, self.rows)}" + (notes and f"\n{notes}")


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table."""
    return lines([head, ["---"] * len(head), *rows])


def lines(rows: Sequence[Sequence[str]]) -> str:
    """Return lines of a Markdown table. A cell of several lines becomes one line."""
    return "".join(f"| {' | '.join(' '.join(cell.split()) for cell in row)} |\n" for row in rows)


@dataclass(frozen=True, slots=True)
class Turns:
    """What was found in each round, and why a way has no more of it."""

    found: dict[Any, list[Any]] = field(default_factory=dict)
    failed: dict[Any, str] = field(default_factory=dict)


def in_turns(ways: Mapping[Key, Callable[[], Found]], rounds: int) -> Turns:
    """Measure every way once a round, in every second round backwards.

    What slows the machine for a while then slows all of them, and a ratio of two of one round says
    something. A way that fails is left out from then on.
    """
    turns = Turns({key: [] for key in ways}, {})
    for number in range(rounds):
        for key in reversed(ways) if number % 2 else ways:
            if key in turns.failed:
                continue
            try:
                turns.found[key].append(ways[key]())
            except FailedError as error:
                turns.failed[key] = str(error)
    return turns


def ratio(theirs: Sequence[float], ours: Sequence[float]) -> Spread | None:
    """Return the spread of the ratios of one round each; None where no round has both."""
    pairs = [one / other for one, other in zip(theirs, ours, strict=False) if other > 0]
    return Spread.of(pairs) if pairs else None


def spread_text(values: Sequence[float], digits: int = 3, scale: float = 1.0) -> str:
    """Return the text of a spread, and a dash of nothing."""
    return Spread.of(values).text(digits, scale) if values else "-"


# Where and when


def machine(packages: Sequence[str], places: Sequence[Path]) -> dict[str, Any]:
    """Return what the figures were taken on.

    Args:
        packages: Distributions whose versions are to be told.
        places: Where they may lie besides where Python looks.
    """
    path = [*map(str, places), *sys.path]
    return {
        "at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "processor": _line("/proc/cpuinfo", "model name"),
        "cores": len(os.sched_getaffinity(0)),
        "memory": _line("/proc/meminfo", "MemTotal"),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "versions": {name: version(name, path) for name in packages},
        "mpi": _first_line(["mpirun", "--version"]),
        "commit": _commit(),
    }


def children_s() -> float:
    """Return the processor seconds of all children that have ended, and of theirs."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def load() -> dict[str, float]:
    """Return how busy the machine is, and how fast: CPU seconds of a fixed loop."""
    start = time.process_time()
    sum(range(2_000_000))
    loop_s = time.process_time() - start
    return {"load_1min": os.getloadavg()[0], "fixed_loop_s": round(loop_s, 4)}


def busy(load: Mapping[str, float]) -> str:
    """Return what to warn of where others use the machine, given its load; else nothing."""
    cores = len(os.sched_getaffinity(0))
    if load["load_1min"] <= BUSY * cores:
        return ""
    return f"the load is {load['load_1min']:.1f} on {cores} cores: seconds say little here"


def _line(path: str, start: str) -> str:
    every = Path(path).read_text(encoding="utf-8").splitlines()
    found = next((line for line in every if line.startswith(start)), ":unknown")
    return found.partition(":")[2].strip()


def version(name: str, path: Sequence[str]) -> str:
    """Return the version of a distribution that lies in one of the directories of `path`."""
    found = next(iter(metadata.distributions(name=name, path=list(path))), None)
    return found.version if found else "not installed"


def _first_line(command: Sequence[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return "not installed"
    return (done.stdout.splitlines() or ["unknown"])[0]


def _commit() -> str:
    command = ["git", "describe", "--always", "--dirty"]
    here = Path(__file__).parent
    done = subprocess.run(command, cwd=here, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"
