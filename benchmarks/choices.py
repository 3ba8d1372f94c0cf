"""What does each kind of choice of a sweep's plan cost, and what does it find?

    python benchmarks/choices.py [--by-turn | --measured] FOLDER_OR_FILE...

Reads sweep.json files: those that `benchmarks/latent.py --keep FOLDER` has copied, and the list
that `benchmarks/found.py --sweep --json FILE` writes. Prints a line for each kind of choice, with
--by-turn for each of its turns, that with the most weaknesses a minute first: its worlds, their
seconds, the weaknesses that one of them shows, and those that one was the first to show. Weaknesses
that no repeat showed again do not count.

The order of plans follows this table, and a kind that has found nothing in it is not in the default
plan. After a sweep of all corpora,

    python benchmarks/choices.py --measured FOLDER_OR_FILE...

prints it as the lines of `MEASURED` in extensions/sweep/choices.py; `Weight` there gets the same
order.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LEAST_S = 0.1
"""Worlds of one kind have taken at least so long together."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What disturbances of one kind of choice have cost, and found.

    Attributes:
        worlds: Disturbed worlds, repeats aside.
        seconds: How long they took together.
        shown: Weaknesses that at least one of them shows.
        first: Weaknesses that one of them was the first to show.
    """

    worlds: int = 0
    seconds: float = 0.0
    shown: int = 0
    first: int = 0

    def __add__(self, other: Cost) -> Cost:
        """Return the sum of two."""
        return Cost(
            self.worlds + other.worlds,
            self.seconds + other.seconds,
            self.shown + other.shown,
            self.first + other.first,
        )

    @property
    def per_minute(self) -> float:
        """Weaknesses that are shown in a minute of these worlds."""
        return 60 * self.shown / max(self.seconds, LEAST_S)


Costs = dict[str, Cost]
"""By kind of choice and turn, as ``fails_alone 0``."""


def costs_of(sweep: Mapping[str, Any]) -> Costs:
    """Return what each kind of choice has cost and found in one sweep."""
    total: Costs = {}
    for run in sweep["runs"]:
        kind = kind_of(run)
        total[kind] = total.get(kind, Cost()) + Cost(1, run["seconds"])
    for weakness in sweep["weaknesses"]:
        if weakness["confirmed"] is False or not weakness["shown_by"]:
            continue
        runs = [sweep["runs"][index] for index in sorted(weakness["shown_by"])]
        for kind in dict.fromkeys(map(kind_of, runs)):
            total[kind] += Cost(shown=1, first=int(kind == kind_of(runs[0])))
    return total


def kind_of(run: Mapping[str, Any]) -> str:
    """Return the kind of choice and the turn of a disturbed run."""
    disturbance = run["disturbance"]
    return f"{disturbance['choice']} {disturbance['turn']}"


def merged(found: Sequence[Costs]) -> Costs:
    """Return the sums of all sweeps, the kind with the most weaknesses a minute first."""
    total: Costs = {}
    for each in found:
        for kind, cost in each.items():
            total[kind] = total.get(kind, Cost()) + cost
    order = sorted(total, key=lambda kind: (-total[kind].per_minute, total[kind].seconds))
    return {kind: total[kind] for kind in order}


def by_kind(found: Sequence[Costs]) -> list[Costs]:
    """Return the costs by kind; a weakness that two turns of a kind show counts twice."""
    return [{kind.split()[0]: cost} for each in found for kind, cost in each.items()]


def table(costs: Costs) -> list[str]:
    """Return the table as lines."""
    head = f"{'kind of choice, turn':28}{'worlds':>8}{'seconds':>9}{'shown':>7}{'first':>7}"
    rows = (
        f"{kind:28}{each.worlds:8}{each.seconds:9.0f}{each.shown:7}{each.first:7}"
        f"{each.per_minute:12.1f}"
        for kind, each in costs.items()
    )
    return [f"{head}{'per minute':>12}", *rows]


def measured(costs: Costs) -> list[str]:
    """Return the lines of `MEASURED`, from the costs by kind."""
    return [
        f"    Weight.{kind.upper()}: ({each.shown}, {math.ceil(each.seconds)}),"
        for kind, each in costs.items()
        if kind
    ]


def sweeps_in(places: Sequence[Path]) -> Iterator[Mapping[str, Any]]:
    """Yield all sweeps in files, and in the files of folders."""
    for place in places:
        for file in sorted(place.glob("*.json")) if place.is_dir() else [place]:
            found = json.loads(file.read_text(encoding="utf-8"))
            yield from found if isinstance(found, list) else [found]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("places", nargs="+", type=Path, help="folders, or files of sweeps")
    shown = parser.add_mutually_exclusive_group()
    shown.add_argument("--by-turn", action="store_true", help="a line for each turn")
    shown.add_argument("--measured", action="store_true", help="lines of the table in the code")
    options = parser.parse_args()
    sweeps = list(sweeps_in(options.places))
    costs = [costs_of(each) for each in sweeps]
    found = merged(costs if options.by_turn else by_kind(costs))
    print("\n".join(measured(found) if options.measured else table(found)))
    print(f"{len(sweeps)} sweeps, {sum(len(each['weaknesses']) for each in sweeps)} weaknesses")


if __name__ == "__main__":
    main()
