"""Who is named from flight-recorder dumps, by us and by torch's own analyser?

    python benchmarks/flight.py [--only NAME] [--jobs K] [--seconds S] [--json FILE] [--keep DIR]
    python benchmarks/flight.py --by-hand [--only NAME]
    python benchmarks/flight.py --ranks N [--brief]

Runs the gloo programs of tests/corpus as plain scripts of torch (worlds/dumped.py), dumps their
ranks' flight recorders some seconds after they are up, and gives each folder of dumps to
`multihost explain` and to torch.distributed.flight_recorder.fr_trace. The truth is what the corpus
expects of a verdict. Prints a row for each program, and the score.

Two programs may be told differently from dumps than from a run that is watched: what a rank does
outside of collectives is not recorded, and gloo records no send or receive. So a row is judged by
names alone: right if exactly the culprits are named; silent if nobody is; wrong if anybody else is.
Where the truth has no culprit, as in a deadlock, right is the kind and no name. Of an innocent
nobody is to be named, though a rank may well be late in it at that instant.

With --by-hand the folders are those of tests/shared/flight_folders.py instead: worlds of which the
culprits are known by construction, and innocents that look guilty. With --ranks a folder of N
honest ranks and one straggler is made and judged; what it costs of one core, and the peak of memory
while it is judged, are printed. With --brief its ranks have launched one collective each.

Exits with 1 if a folder made by hand is judged wrong, or if we are right about fewer programs that
hang than torch's analyser, or wrong about more.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import json
import logging
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_multihost.core.model.verdict import Diagnosis

ROOT = Path(__file__).resolve().parent.parent
CORPUS = ROOT / "tests" / "corpus"
WORLD = ROOT / "benchmarks" / "worlds" / "dumped.py"
LIMIT_S = 120
FIXTURES = {"world", "shared_tmp_path", "tmp_path"}
NAMED = re.compile(r"missing ranks: \{([\d, ]+)\}|Culprit rank (\d+)")


@dataclass(frozen=True, slots=True)
class Program:
    """A program of the corpus.

    Attributes:
        answers: The right diagnoses: kind and culprits.
    """

    module: str
    test: str
    ranks: int
    is_hang: bool
    answers: tuple[tuple[str, tuple[int, ...]], ...]

    @property
    def name(self) -> str:
        """Module and test."""
        return f"{self.module}::{self.test.removeprefix('test_')}"


@dataclass(frozen=True, slots=True)
class Told:
    """What was said of a folder of dumps: kind, ranks that are named, right, silent or wrong."""

    kind: str
    named: tuple[int, ...]
    word: str


@dataclass(frozen=True, slots=True)
class Row:
    """One program.

    Attributes:
        dumps: How many of its ranks left a dump.
        first: What torch's analyser says if only the first thing that it says counts.
    """

    name: str
    ranks: int
    dumps: int
    is_hang: bool
    expected: str
    ours: Told
    torchs: Told
    first: Told


def main() -> int:
    """Run the programs and print the score; return the exit code."""
    options = _options()
    sys.path[:0] = [str(ROOT), str(CORPUS), str(ROOT / "tests" / "shared")]
    if options.by_hand:
        return _score_by_hand(options.only or "")
    if options.ranks:
        return _cost(options.ranks, is_brief=options.brief)
    programs = [each for each in _programs() if not options.only or options.only in each.name]
    keep = Path(options.keep) if options.keep else Path(tempfile.mkdtemp(prefix="flight-"))
    print(f"{'program':68} {'dumps':5}  {'expected':22} {'ours':34} torch's analyser")
    rows = []
    try:
        with ThreadPoolExecutor(options.jobs) as jobs:
            run = [jobs.submit(_dumped, each, keep, options.seconds) for each in programs]
            for each, dumped in zip(programs, run, strict=True):
                if (row := _row(each, dumped.result())) is not None:
                    rows.append(row)
                    print(_text(row), flush=True)
    finally:
        if not options.keep:
            shutil.rmtree(keep)
    if options.json:
        text = json.dumps([asdict(each) for each in rows], indent=1)
        Path(options.json).write_text(f"{text}\n", encoding="utf-8")
    return _score(rows)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", help="programs whose module::name contains this")
    parser.add_argument("--jobs", type=int, default=2, help="worlds beside each other")
    parser.add_argument("--seconds", type=float, default=5.0, help="from the start to the dumps")
    parser.add_argument("--json", help="write all rows to this file")
    parser.add_argument("--keep", help="keep the dumps in this folder")
    parser.add_argument("--by-hand", action="store_true", help="judge folders made by hand instead")
    parser.add_argument("--ranks", type=int, help="measure a folder of so many ranks instead")
    parser.add_argument("--brief", action="store_true", help="with --ranks: one entry in each dump")
    return parser.parse_args()


def _score_by_hand(only: str) -> int:
    """Judge the folders made by hand; return 1 if a name is missing or too many."""
    from flight_folders import guilty, innocents, write

    wrong = 0
    for title, folders in (("guilty", guilty()), ("innocents", innocents())):
        judged = []
        for each in folders:
            if only not in each.name:
                continue
            with tempfile.TemporaryDirectory() as directory:
                write(each, Path(directory))
                found = _diagnosis(Path(directory))
            named = found.culprits if found is not None else ()
            judged.append(named == each.culprits)
            told = f"{found.kind}, {found.confidence}" if found is not None else "-"
            word = "right" if judged[-1] else "wrong"
            print(f"{each.name:68} {_ranks(each.culprits):12} {word} {told} {_ranks(named)}")
        print(f"{len(judged)} {title}, {sum(judged)} right\n")
        wrong += len(judged) - sum(judged)
    return int(wrong > 0)


def _diagnosis(dumps: Path) -> Diagnosis | None:
    from pytest_multihost.core.model.stack import SourceContext
    from pytest_multihost.extensions.flight.recording import read_dumps
    from pytest_multihost.extensions.flight.told_world import judge_dumps

    return judge_dumps(read_dumps(dumps), "dumps", SourceContext(str(CORPUS))).diagnosis


def _cost(ranks: int, *, is_brief: bool) -> int:
    """Print what a folder of honest ranks and one straggler costs; return 1 if it is not named.

    The files are written by a process of their own, so that the peak of memory is the judge's.
    """
    from flight_folders import brief, large, write

    folder = (brief if is_brief else large)(ranks)
    with tempfile.TemporaryDirectory() as directory:
        if (writer := os.fork()) == 0:
            write(folder, Path(directory))
            os._exit(0)
        os.waitpid(writer, 0)
        begun = resource.getrusage(resource.RUSAGE_SELF)
        found = _diagnosis(Path(directory))
    ended = resource.getrusage(resource.RUSAGE_SELF)
    took_s = ended.ru_utime + ended.ru_stime - begun.ru_utime - begun.ru_stime
    cost = f"{took_s:.1f} s of one core, at most {ended.ru_maxrss >> 10} MiB"
    print(f"{folder.name}: {cost}; named: {found.summary if found else '-'}")
    return int(found is None or found.culprits != folder.culprits)


def _programs() -> Iterator[Program]:
    """Yield the gloo programs that need nothing of pytest but a directory."""
    for path in sorted([*CORPUS.glob("hang_*.py"), *CORPUS.glob("innocent_*.py")]):
        if "jax" in path.stem:
            continue
        module = importlib.import_module(path.stem)
        for name, test in vars(module).items():
            marks = {each.name: each.kwargs for each in getattr(test, "pytestmark", ())}
            expected, world = marks.get("corpus"), marks.get("multihost", {})
            if not name.startswith("test_") or expected is None or world["backend"] != "gloo":
                continue
            needs = set(inspect.signature(test).parameters)
            if needs <= FIXTURES and not set(world) - {"ranks", "backend", "timeout"}:
                answers = ((e["kind"], tuple(e["culprits"])) for e in expected["answers"])
                yield Program(path.stem, name, world["ranks"], expected["is_hang"], tuple(answers))


def _dumped(program: Program, keep: Path, seconds: float) -> Path:
    """Run a program and return the folder with the dumps of its ranks."""
    directory = keep / f"{program.module}-{program.test}"
    directory.mkdir(parents=True)
    paths = (str(ROOT), str(CORPUS), str(ROOT / "tests" / "shared"))
    subprocess.run(
        [
            *(sys.executable, str(WORLD), program.module, program.test, str(program.ranks)),
            *(str(directory), str(seconds)),
        ],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"},
        cwd=directory,
        check=False,
        capture_output=True,
        timeout=LIMIT_S,
    )
    dumps = directory / "dumps"
    dumps.mkdir()
    for each in directory.glob("trace_*"):
        each.rename(dumps / each.name)
    return dumps


def _row(program: Program, dumps: Path) -> Row | None:
    """Return what is said of a program; None if no rank left a dump."""
    count = len([*dumps.iterdir()])
    if not count:
        return None
    every, first = _torchs(program, dumps)
    expected = " | ".join(f"{kind} {_ranks(culprits)}" for kind, culprits in program.answers[:1])
    return Row(
        name=program.name,
        ranks=program.ranks,
        dumps=count,
        is_hang=program.is_hang,
        expected=expected or "innocent",
        ours=_ours(program, dumps),
        torchs=every,
        first=first,
    )


def _ours(program: Program, dumps: Path) -> Told:
    found = _diagnosis(dumps)
    if found is None:
        return Told("-", (), _judged(program, ()))
    return Told(found.kind, found.culprits, _judged(program, found.culprits, found.kind))


def _torchs(program: Program, dumps: Path) -> tuple[Told, Told]:
    """Return whom torch's analyser names in all, and in the first thing that it says."""
    from torch.distributed.flight_recorder import fr_trace

    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("Flight Recorder")
    logger.handlers[:] = [handler]
    logger.propagate = False
    kind = "told"
    try:
        fr_trace.main([str(dumps), "-p", "trace_", "--allow-incomplete-ranks"])
    except (Exception, SystemExit) as error:  # noqa: BLE001 - it is what is measured
        kind = type(error).__name__
    each_said = [_numbers(each) for each in said]
    found = [each for each in each_said if each]
    every = tuple(sorted({rank for each in found for rank in each}))
    first = found[0] if found else ()
    kind = kind if found or kind != "told" else "-"
    return Told(kind, every, _judged(program, every)), Told(kind, first, _judged(program, first))


def _numbers(text: str) -> tuple[int, ...]:
    found = NAMED.findall(text)
    return tuple(sorted({int(n) for pair in found for n in re.findall(r"\d+", " ".join(pair))}))


def _judged(program: Program, named: Sequence[int], kind: str = "-") -> str:
    if not program.is_hang:
        return "wrong" if named else "right"
    if named:
        return "right" if tuple(named) in {ranks for _, ranks in program.answers} else "wrong"
    return "right" if (kind, ()) in program.answers else "silent"


def _ranks(ranks: Sequence[int]) -> str:
    return ",".join(map(str, ranks)) or "-"


def _text(row: Row) -> str:
    ours = f"{row.ours.word:6} {row.ours.kind} {_ranks(row.ours.named)}"
    theirs = f"{row.torchs.word:6} {row.torchs.kind} {_ranks(row.torchs.named)}"
    first = "" if row.first == row.torchs else f", first {row.first.word} {_ranks(row.first.named)}"
    dumps = f"{row.dumps}/{row.ranks}"
    return f"{row.name:68} {dumps:5}  {row.expected:22} {ours:34} {theirs}{first}"


def _score(rows: Sequence[Row]) -> int:
    def counted(told: str, rows: Sequence[Row]) -> str:
        words: Counter[str] = Counter(getattr(each, told).word for each in rows)
        return ", ".join(f"{words[each]} {each}" for each in ("right", "silent", "wrong"))

    parts: dict[str, list[Row]] = {
        "hangs with a culprit": [e for e in rows if e.is_hang and not e.expected.endswith("-")],
        "hangs without one": [e for e in rows if e.is_hang and e.expected.endswith("-")],
        "innocents": [e for e in rows if not e.is_hang],
    }
    for name, part in parts.items():
        print(f"\n{len(part)} {name}")
        print(f"  multihost explain          {counted('ours', part)}")
        print(f"  torch, all that it names   {counted('torchs', part)}")
        print(f"  torch, the first it names  {counted('first', part)}")
    words = [(e.ours.word, e.torchs.word) for e in rows if e.is_hang]
    ours, torchs = (Counter(each) for each in zip(*words, strict=True)) if words else ({}, {})
    return int(ours["right"] < torchs["right"] or ours["wrong"] > torchs["wrong"]) if words else 0


if __name__ == "__main__":
    sys.exit(main())
