"""Runs the hangs of tests/extensions/simulated/shapes.py and their mended twins at larger shapes.

    python benchmarks/simulated_shapes.py --ranks 64 --semantics gloo nccl
    python benchmarks/simulated_shapes.py --ranks 256 --only an_overflow_on_one_stage

A hang is right if it is found before the deadline with a line of each side, and if the sides are
the ranks that the program sends there. A mended twin must pass. What is not right is printed. With
"nccl" the default group is one of NCCL, and so are the groups of a mesh. It stops when the machine
has little memory left.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests/extensions/simulated"))
import shapes
from shape_worlds import Verdict, marked, run_shapes, sides, told

_LEAST_FREE = 4 << 30
"""Bytes of memory that must be free before a program is run."""


_AT_A_TIME = 5
"""Programs of one run of pytest."""

_EXPECTED = "pytest.mark.multihost_expect(match='.')"
"""A hang that is expected is not looked for at smaller sizes."""


@dataclass(slots=True)
class Score:
    """What has been found so far."""

    pairs: int = 0
    hung: int = 0
    told: int = 0
    classes: int = 0
    with_classes: int = 0
    accused: int = 0


def main() -> None:
    """Run the programs that the command line names, and print a line for each and the sums."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, choices=shapes.SIZES, default=64)
    parser.add_argument("--only", nargs="+", choices=shapes.PROGRAMS, default=list(shapes.PROGRAMS))
    parser.add_argument("--semantics", nargs="+", choices=("gloo", "nccl"), default=["gloo"])
    options = parser.parse_args()
    for semantics in options.semantics:
        names = [each for each in options.only if semantics == "nccl" or each in shapes.BUGS]
        _run_all(names, options.ranks, semantics)


def _run_all(names: list[str], size: int, semantics: str) -> None:
    score, began_s = Score(), time.monotonic()
    for chunk in (names[at : at + _AT_A_TIME] for at in range(0, len(names), _AT_A_TIME)):
        if (free := psutil.virtual_memory().available) < _LEAST_FREE:
            print(f"stopped: {free / 1e9:.1f} GB of memory are free")
            break
        folder = Path(tempfile.mkdtemp(prefix="simulated-shapes-"))
        found = run_shapes(folder, size, chunk, semantics, _EXPECTED)
        for name in chunk:
            print(f"{name} {size} {semantics}: {_judge(name, size, found, score)}", flush=True)
    print(
        f"{size} ranks, {semantics}: {score.pairs} pairs, {score.hung} hang,"
        f" {score.told} with both lines, classes right {score.classes} of {score.with_classes},"
        f" {score.accused} twins accused;"
        f" {time.monotonic() - began_s:.0f} s, load {os.getloadavg()[0]:.1f}",
        flush=True,
    )


def _judge(name: str, size: int, found: Mapping[str, Verdict], score: Score) -> str:
    """Count how a program has ended, and return that in words."""
    guilty, mended = found.get(f"{name}-guilty"), found.get(f"{name}-mended")
    if guilty is None or mended is None:
        return "not run"
    score.pairs += 1
    diagnosis = guilty["diagnosis"] or {}
    is_proven = diagnosis.get("detected_by") in ("proof", "mismatch")
    score.hung += guilty["outcome"] == "hung" and is_proven
    score.accused += mended["outcome"] != "passed"
    has_lines = bool(marked(name, "one") & told(guilty) and marked(name, "other") & told(guilty))
    score.told += has_lines
    words = [guilty["outcome"], f"by {diagnosis.get('detected_by')}"]
    words += ["both lines" if has_lines else f"lines {sorted(told(guilty))}"]
    if name in shapes.ONE:
        score.with_classes += 1
        expected = frozenset(rank for rank in range(size) if shapes.ONE[name](rank, size))
        seen = sides(guilty)
        is_right = expected in [seen[line] for line in seen.keys() & marked(name, "one")]
        score.classes += is_right
        words += [
            "classes right" if is_right else f"sides {[sorted(e)[:9] for e in seen.values()]}"
        ]
    after_s = diagnosis.get("detected_after_s")
    words += [
        f"found after {after_s} s",
        f"worlds {guilty['duration_s']}, {mended['duration_s']} s",
    ]
    words += [f"twin {mended['outcome']}"]
    return ", ".join(words)


if __name__ == "__main__":
    main()
