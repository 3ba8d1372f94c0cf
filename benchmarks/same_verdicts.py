"""Are hangs told alike on one host and on hosts from namespaces?

    python benchmarks/corpus.py --backend gloo --json one.json
    python benchmarks/corpus.py --backend gloo --json netns.json --hosts netns
    python benchmarks/corpus.py --backend gloo --json pairs.json --hosts netns:2
    python benchmarks/same_verdicts.py one.json netns.json pairs.json

Compares outcome, kind, culprits, waiting ranks and the line of the user's code, program by program,
prints those that were told otherwise somewhere, and counts those that were not. What was run on one
sort of hosts may lie in several files. A program that is in several of them was run so often, and
one that is told in two ways on the very same sort of hosts says nothing about hosts: it is counted
by itself. How a hang was detected is only mentioned, since a busy machine can cost a proof. Exits
with 1 if hosts made a difference, or nothing was run everywhere.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PARTS = ("outcome", "kind", "culprits", "waiting", "where")

Told = Mapping[str, Any]
Results = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Comparison:
    """One program, and how it was told on each sort of hosts.

    Attributes:
        name: Module and test.
        world: Backend and ranks.
        told: By sort of hosts: what each of its runs said.
    """

    name: str
    world: str
    told: Mapping[str, Sequence[Told]]

    @property
    def differing(self) -> tuple[str, ...]:
        """Return the parts of the verdict that are not the same in all runs."""
        return differing(self._runs())

    @property
    def is_fickle(self) -> bool:
        """Whether runs on one sort of hosts differ among themselves."""
        return any(differing(runs) for runs in self.told.values())

    @property
    def was_told_in_several_ways(self) -> bool:
        """Whether it was, say, proven here and only told by the deadline there."""
        return len({told["by"] for told in self._runs()}) > 1

    def _runs(self) -> list[Told]:
        return [told for runs in self.told.values() for told in runs]


def differing(runs: Iterable[Told]) -> tuple[str, ...]:
    """Return the parts of verdicts in which these do not agree."""
    found = list(runs)
    return tuple(part for part in PARTS if any(told[part] != found[0][part] for told in found))


def compare(results: Sequence[Results]) -> list[Comparison]:
    """Return every program with what was said of it; in the order of the first file.

    Args:
        results: What benchmarks/corpus.py has written, of any hosts.
    """
    found: dict[tuple[str, str], dict[str, list[Told]]] = {}
    for result in results:
        for score in result["scores"]:
            if score["told"] is not None:
                runs = found.setdefault((score["name"], score["world"]), {})
                runs.setdefault(result["hosts"], []).append(score["told"])
    return [Comparison(name, world, told) for (name, world), told in found.items()]


def in_words(told: Told) -> str:
    """Return a verdict in a line: ``hung: straggler [0] <- [1,2], by proof, at f.read()``."""
    if told["kind"] is None:
        return str(told["outcome"])
    culprits, waiting = (",".join(map(str, told[part])) for part in ("culprits", "waiting"))
    after = f" <- [{waiting}]" if waiting else ""
    at = f", at {told['where']}" if told["where"] else ""
    return f"{told['outcome']}: {told['kind']} [{culprits}]{after}, by {told['by']}{at}"


def block(each: Comparison, about: str) -> str:
    """Return the lines about a program: what is the matter, and each run."""
    lines = [f"{about:10}{each.name} ({each.world})"]
    for hosts, runs in each.told.items():
        lines += [f"{'':10}{hosts:8}{in_words(told)}" for told in runs]
    return "\n".join(lines)


def score_text(results: Sequence[Results], hosts: str) -> str:
    """Return how well, how fairly and how soon hangs were told on one sort of hosts."""
    scores = [each for result in results if result["hosts"] == hosts for each in result["scores"]]
    run = [each for each in scores if each["told"] is not None]
    proven_s = [each["after_s"] for each in run if each["by"] == "proof"]
    median = f", median of proofs {statistics.median(proven_s):.2f} s" if proven_s else ""
    right = sum(each["word"] == "ok" for each in run)
    accused = sum(each["is_accused"] for each in run)
    innocents = sum(not each["is_hang"] for each in run)
    blamed = f"{accused} of {innocents} innocents accused"
    return f"{hosts:19} {right} of {len(run)} right, {blamed}{median}"


def main() -> int:
    """Compare the files that are named, print what differs, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", help="what benchmarks/corpus.py --json has written")
    paths = parser.parse_args().files
    return report([json.loads(Path(path).read_text(encoding="utf-8")) for path in paths])


def report(results: Sequence[Results]) -> int:
    """Print the comparison and return the exit code."""
    sorts = tuple(dict.fromkeys(result["hosts"] for result in results))
    programs = compare(results)
    compared = [each for each in programs if len(each.told) == len(sorts)]
    fickle = [each for each in compared if each.is_fickle]
    apart = [each for each in compared if each.differing and not each.is_fickle]
    alike = [each for each in compared if not each.differing]
    in_other_ways = [each for each in alike if each.was_told_in_several_ways]
    for each in apart:
        print(block(each, "DIFFERS"))
    for each in fickle:
        print(block(each, "fickle"))
    for each in in_other_ways:
        print(block(each, "noticed"))
    print(f"{'compared':19} {len(compared)} programs on {', '.join(sorts)}")
    print(f"{'told alike':19} {len(alike)}, {len(in_other_ways)} of them noticed in another way")
    print(f"{'told otherwise':19} {len(apart)}")
    print(f"{'fickle by itself':19} {len(fickle)}")
    for hosts in sorts:
        print(score_text(results, hosts))
    missing = [each.name for each in programs if each not in compared]
    if missing:
        print(f"{'not run everywhere':19} {len(missing)}: {', '.join(missing)}")
    return 1 if apart or not compared or len(sorts) == 1 else 0


if __name__ == "__main__":
    sys.exit(main())
