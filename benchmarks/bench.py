"""Side by side with what people use today: one table of everything, in Markdown and JSON.

    python benchmarks/bench.py [--quick] [--only TOPIC ...] [--suite FILE] [--out DIR]

Topics: floor, peers, ranks, tests, verdicts, truth, overhead. Peers run as themselves; those
that must not lie beside our suite are looked for in BENCH_PEERS, by default
.venv/bench/site-packages. A peer that cannot be run is listed with the reason. Our own suite is
not run: --suite names the JUnit XML, or the output with --durations, of a run of it.

On a machine that does other things as well the seconds say little, the ratios still something.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import cost
import figures
import floor
import overhead
import peers
import suite
import truth
import verdicts
from figures import Section

Sections = list[Section]
Topics = Mapping[str, Callable[[], Sections]]

PACKAGES = tuple(
    dict.fromkeys(
        (
            *("pytest-multihost-hangs", "pytest", "pytest-timeout", "torch", "jax", "jaxlib"),
            *(name for way in peers.PEERS for name in way.packages),
        )
    )
)
ALL_SIZES = (1, 2, 4, 8, 16, 32)

FULL: Topics = {
    "floor": lambda: [floor.distance(sizes=ALL_SIZES, rounds=3, worlds=10)],
    "peers": lambda: [cost.beside_peers(ranks=4, rounds=3, is_quick=False)],
    "ranks": lambda: [cost.by_ranks(sizes=ALL_SIZES, rounds=1, tests=10)],
    "tests": lambda: [
        cost.by_tests(
            counts={"none": (1, 10, 100, 1000), "gloo": (1, 10, 100), "jax": (1, 10)}, ranks=4
        )
    ],
    "verdicts": lambda: [verdicts.times(worlds=verdicts.WORLDS, rounds=2)],
    "truth": lambda: [truth.truth_table()],
    "overhead": lambda: overhead.all_of(rounds=2, calls_rounds=72, seconds=5.0),
}
QUICK: Topics = {
    "floor": lambda: [floor.distance(sizes=(4,), rounds=2, worlds=5)],
    "peers": lambda: [cost.beside_peers(ranks=4, rounds=1, is_quick=True)],
    "ranks": lambda: [cost.by_ranks(sizes=(4,), rounds=1, tests=4)],
    "verdicts": lambda: [verdicts.times(worlds=verdicts.WORLDS[:2], rounds=1)],
    "overhead": lambda: overhead.all_of(rounds=1, calls_rounds=9, seconds=1.0),
}


def main() -> int:
    """Measure, print, and write both files."""
    options = _options()
    topics = QUICK if options.quick else FULL
    chosen = options.only or list(topics)
    before, began = figures.load(), time.monotonic()
    found = {}
    for topic in chosen:
        start = time.monotonic()
        found[topic] = topics[topic]() if topic in topics else FULL[topic]()
        took_s = time.monotonic() - start
        text = "\n".join(section.markdown() for section in found[topic])
        print(f"{text}\n({topic}: {took_s:.0f} s)\n", flush=True)
    if options.suite:
        found["suite"] = [suite.suite(options.suite)]
    about = {
        "machine": figures.machine(PACKAGES, [peers.PEERS_SITE]),
        "before": before,
        "after": figures.load(),
        "took_s": round(time.monotonic() - began),
        "is_quick": options.quick,
    }
    options.out.mkdir(parents=True, exist_ok=True)
    markdown, as_json = report(about, found)
    (options.out / "bench.md").write_text(markdown, encoding="utf-8")
    (options.out / "bench.json").write_text(as_json, encoding="utf-8")
    print(f"{about['took_s']} s; written: {options.out / 'bench.md'}, {options.out / 'bench.json'}")
    for target in missed(found):
        print(f"not met: {target}")
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="the shortest that says something")
    parser.add_argument("--only", nargs="+", choices=list(FULL), help="these topics alone")
    parser.add_argument("--suite", type=Path, help="what a run of our suite has left")
    parser.add_argument("--out", type=Path, default=Path("build/bench"), help="where both files go")
    return parser.parse_args()


def report(about: Mapping[str, Any], found: Mapping[str, Sequence[Section]]) -> tuple[str, str]:
    """Return everything as Markdown and as JSON."""
    sections = [section for several in found.values() for section in several]
    markdown = "\n".join([_heading(about), *(section.markdown() for section in sections)])
    told = {
        topic: [
            {
                "title": section.title,
                "head": section.head,
                "rows": section.rows,
                "figures": section.figures,
            }
            for section in several
        ]
        for topic, several in found.items()
    }
    return markdown, json.dumps({**about, "topics": told}, indent=1) + "\n"


def _heading(about: Mapping[str, Any]) -> str:
    machine = about["machine"]
    versions = ", ".join(f"{name} {number}" for name, number in machine["versions"].items())
    loads = " and ".join(
        f"{each['load_1min']:.1f} ({each['fixed_loop_s']:.3f} s for a fixed loop)"
        for each in (about["before"], about["after"])
    )
    return (
        f"# Benchmarks{', quick' if about['is_quick'] else ''}\n\n"
        f"* {machine['at']}, commit {machine['commit']}, {about['took_s']} s\n"
        f"* {machine['cores']} cores of {machine['processor']}, {machine['memory']} of memory,"
        f" Linux {machine['kernel']}, Python {machine['python']}\n"
        f"* {versions}; {machine['mpi']}\n"
        f"* load before and after: {loads}\n"
    )


def missed(found: Mapping[str, Sequence[Section]]) -> list[str]:
    """Return which targets are missed."""
    checks: Mapping[str, Callable[[Section], list[str]]] = {
        "floor": floor.missed,
        "peers": cost.missed,
    }
    return [
        text for topic, check in checks.items() for s in found.get(topic, ()) for text in check(s)
    ]


if __name__ == "__main__":
    sys.exit(main())
