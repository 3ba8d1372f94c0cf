"""Record the facts of real hangs, from which tests judge again without any rank.

    python benchmarks/record_facts.py [--only NAME] [--into DIR]

Runs the programs of tests/corpus that hang. Of those whose verdict is right it keeps the facts of
one for each kind, backend, way of detection and module, the smallest: tests/recorded/NAME.json.gz,
with the diagnosis that is right. Names of folders of this machine are replaced.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import corpus

INTO = Path(__file__).resolve().parents[1] / "tests" / "recorded"
TOLD = ("kind", "culprits", "waiting", "cycle")
"""Fields of a diagnosis that the tests compare."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """The facts of a hang that was told right, as text, and its verdict."""

    program: str
    facts: str
    verdict: dict[str, Any]

    @property
    def key(self) -> tuple[str, ...]:
        """What one record is kept of."""
        found, module = self.verdict["diagnosis"], self.program.partition(".py")[0]
        return found["kind"], self.verdict["backend"], found["detected_by"], module

    @property
    def name(self) -> str:
        """The name of its file."""
        return self.program.replace(".py::test_", "-").translate(str.maketrans("[]/:", "--__"))


def main() -> int:
    """Run the programs and write the records."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--only", default="hang_")
    parser.add_argument("--into", type=Path, default=INTO)
    options = parser.parse_args()
    options.into.mkdir(exist_ok=True)
    smallest: dict[tuple[str, ...], Recorded] = {}
    for module, programs in corpus.find_programs(options.only, "").items():
        for each in _of_module(programs):
            kept = smallest.setdefault(each.key, each)
            if len(each.facts) < len(kept.facts):
                smallest[each.key] = each
        print(f"{module}: {len(smallest)} records so far", flush=True)
    for each in smallest.values():
        told = {name: each.verdict["diagnosis"][name] for name in TOLD}
        record = {"told": told, "facts": json.loads(each.facts), "verdict": each.verdict}
        text = _without_places(json.dumps(record, sort_keys=True))
        # Without a time and a name in its header, equal records are equal files.
        (options.into / f"{each.name}.json.gz").write_bytes(gzip.compress(text.encode(), mtime=0))
    print(f"{len(smallest)} records in {options.into}")
    return 0


def _of_module(programs: corpus.Batch) -> Iterator[Recorded]:
    with tempfile.TemporaryDirectory(prefix="multihost-record-") as scratch:
        corpus.run_pytest(["-q", *programs, "--multihost-artifacts", scratch])
        for path in sorted(Path(scratch).glob("2*/*/facts.json")):  # not through the link `latest`
            verdict = json.loads((path.parent / "verdict.json").read_text(encoding="utf-8"))
            nodeid = verdict["nodeid"]
            expected = programs.get(nodeid)
            is_right = expected and corpus.score(nodeid, expected, verdict).is_exact
            if is_right and verdict["diagnosis"] is not None:
                yield Recorded(nodeid, path.read_text(encoding="utf-8"), verdict)


def _without_places(text: str) -> str:
    places = {str(corpus.CORPUS): "/corpus", sys.prefix: "/venv", sys.base_prefix: "/python"}
    places[str(corpus.CORPUS.parents[1])] = "/project"
    places[os.path.realpath(sys.executable)] = "/python/bin/python3"
    for place in sorted(places, key=len, reverse=True):
        text = text.replace(place, places[place])
    return text


if __name__ == "__main__":
    sys.exit(main())
