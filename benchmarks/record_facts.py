"""Record the facts of real hangs, from which tests judge again without any rank.

    python benchmarks/record_facts.py [--only NAME] [--into DIR]
    python benchmarks/record_facts.py --all [--jobs 2] [--into FILE]

Runs the programs of tests/corpus that hang. Of those whose verdict is right it keeps the facts of
one for each kind, backend, way of detection and module, the smallest: tests/recorded/NAME.json.gz,
with the diagnosis that is right. Names of folders of this machine are replaced.

With --all it keeps the facts and the verdict of every world, right or wrong: of the programs that
hang, of the innocents, and of the simulated shapes with their mended twins. The archive
benchmarks/facts.tar.xz has a member NAME.json for each. benchmarks/judge_again.py reads it.
"""

from __future__ import annotations

import argparse
import gzip
import io
import json
import os
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import corpus

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests/extensions/simulated"))
import shapes  # noqa: E402 - found by the path above
from shape_worlds import run_shapes  # noqa: E402

INTO = ROOT / "tests" / "recorded"
ALL_INTO = ROOT / "benchmarks" / "facts.tar.xz"
SHAPES_SIZE = 8
SHAPES_AT_A_TIME = 8
KEEP_FACTS = """
import pytest
from pytest_multihost.hookspecs import Analysis

@pytest.hookimpl
def pytest_multihost_analyse(item, attempt):
    return Analysis(name="facts", has_findings=True)
"""
"""A plugin: worlds that pass have facts.json, too."""
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
    parser.add_argument("--only", default="", help="part of the ids to run")
    parser.add_argument("--into", type=Path, help="the folder, or with --all the archive, to write")
    parser.add_argument("--all", action="store_true", help="keep the facts of every world")
    parser.add_argument("--jobs", type=int, default=2, help="with --all: runs of pytest at a time")
    options = parser.parse_args()
    if options.all:
        return _record_all(options.into or ALL_INTO, options.only, options.jobs)
    return _record_some(options.into or INTO, options.only or "hang_")


def _record_some(into: Path, only: str) -> int:
    into.mkdir(exist_ok=True)
    smallest: dict[tuple[str, ...], Recorded] = {}
    for module, programs in corpus.find_programs(only, "").items():
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
        (into / f"{each.name}.json.gz").write_bytes(gzip.compress(text.encode(), mtime=0))
    print(f"{len(smallest)} records in {into}")
    return 0


def _of_module(programs: corpus.Batch) -> Iterator[Recorded]:
    with tempfile.TemporaryDirectory(prefix="multihost-record-") as scratch:
        corpus.run_pytest(["-q", *programs, "--multihost-artifacts", scratch])
        for each in _attempts(Path(scratch)):
            expected = programs.get(each.program)
            is_right = expected and corpus.score(each.program, expected, each.verdict).is_exact
            if is_right and each.verdict["diagnosis"] is not None:
                yield each


def _attempts(artifacts: Path) -> Iterator[Recorded]:
    """Yield the records of all attempts in a folder of artifacts."""
    for path in sorted(artifacts.glob("2*/*/facts.json")):  # not through the link `latest`
        verdict = json.loads((path.parent / "verdict.json").read_text(encoding="utf-8"))
        yield Recorded(verdict["nodeid"], path.read_text(encoding="utf-8"), verdict)


def _record_all(into: Path, only: str, jobs: int) -> int:
    """Write the archive with the facts of every world whose name contains `only`."""
    modules = {
        module: programs
        for part in ("hang_", "innocent_")
        for module, programs in corpus.find_programs(part, "").items()
        if only in module
    }
    names = sorted(shapes.BUGS) if only in "shapes" else []
    chunks = [names[at : at + SHAPES_AT_A_TIME] for at in range(0, len(names), SHAPES_AT_A_TIME)]
    records: dict[str, str] = {}
    with (
        tempfile.TemporaryDirectory(prefix="multihost-record-") as scratch,
        ThreadPoolExecutor(jobs) as pool,
    ):
        plugin = Path(scratch, "keep_facts.py")
        plugin.write_text(KEEP_FACTS)
        os.environ["PYTHONPATH"] = scratch
        found = [pool.submit(_worlds_of_module, each, scratch) for each in modules.items()]
        found += [pool.submit(_worlds_of_shapes, each, scratch) for each in chunks]
        for done, each in enumerate(found, 1):
            records |= each.result()
            print(f"{done} of {len(found)} runs, {len(records)} worlds", flush=True)
    with tarfile.open(into, "w:xz") as archive:
        for name, text in sorted(records.items()):
            member = tarfile.TarInfo(f"{name}.json")
            member.size = len(content := text.encode())
            archive.addfile(member, io.BytesIO(content))
    print(f"{len(records)} worlds in {into}, {into.stat().st_size / 1e6:.1f} MB")
    return 0


def _worlds_of_module(module: tuple[str, corpus.Batch], scratch: str) -> dict[str, str]:
    folder, (name, programs) = tempfile.mkdtemp(dir=scratch), module
    corpus.run_pytest(["-q", "-p", "keep_facts", *programs, "--multihost-artifacts", folder])
    found = _worlds_in(Path(folder), str(corpus.CORPUS), name.removesuffix(".py"))
    for text in found.values():
        verdict = json.loads(text)["verdict"]
        told = corpus.score(verdict["nodeid"], programs[verdict["nodeid"]], verdict)
        if told.word not in ("ok", "skipped"):
            print(f"{told.word} {told.name}: {told.got}, {told.remark}", flush=True)
    return found


def _worlds_of_shapes(names: Sequence[str], scratch: str) -> dict[str, str]:
    folder = tempfile.mkdtemp(dir=scratch)
    run_shapes(Path(folder), SHAPES_SIZE, names, plugins=("keep_facts",))
    return _worlds_in(Path(folder, ".pytest_multihost"), folder, "shapes")


def _worlds_in(artifacts: Path, root: str, module: str) -> dict[str, str]:
    """Return the record of each world in a folder of artifacts as text, by the world's name."""
    found: dict[str, str] = {}
    for each in _attempts(artifacts):
        record = {"facts": json.loads(each.facts), "verdict": each.verdict}
        text = json.dumps(record, sort_keys=True)
        text = text.replace(str(artifacts), "/artifacts").replace(root, "/corpus")
        found[each.name.replace("test_worlds", module)] = _without_places(text)
    return found


def _without_places(text: str) -> str:
    places = {str(corpus.CORPUS): "/corpus", sys.prefix: "/venv", sys.base_prefix: "/python"}
    places[str(corpus.CORPUS.parents[1])] = "/project"
    places[os.path.realpath(sys.executable)] = "/python/bin/python3"
    for place in sorted(places, key=len, reverse=True):
        text = text.replace(place, places[place])
    return text


if __name__ == "__main__":
    sys.exit(main())
