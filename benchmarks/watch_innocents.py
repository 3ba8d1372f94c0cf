"""Does `pytest --multihost-watch=end` leave tests alone that do not hang?

    python benchmarks/watch_innocents.py [--only TEXT] [--jobs N]
    python benchmarks/watch_innocents.py --folder DIR -- PYTEST ARGUMENTS

Without a folder it runs the traps of worlds/watched/traps.py, each in a pytest of its own: tests
whose ranks stand still for a while, and which all pass by themselves. With a folder it runs pytest
there, on somebody else's suite, with `--multihost-watch`.

The gate is off: jobs are looked at all the time, although they work. The script prints how often
the watcher has looked, how many looks seemed to show a hang, and how many proved one. The last
number, the number of lines and the number of tests that do not pass must be 0 for the traps.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

TRAPS = Path(__file__).resolve().parent / "worlds" / "watched" / "traps.py"
PYTEST = ("-m", "pytest", "-p", "no:cacheprovider")
ALWAYS = "PYTEST_MULTIHOST_WATCH_ALWAYS"
LINE = "nothing can move any more"
LIMIT_S = 300.0


@dataclass(frozen=True, slots=True)
class Run:
    """What one run of pytest has shown.

    Attributes:
        looks: Looks at a job.
        hung: Those of them that show a job which seems to hang.
        proven: Those of them that prove it.
        lines: The lines that the watcher has written.
        summary: The last line of pytest.
    """

    name: str
    seconds: float
    looks: int
    hung: int
    proven: int
    lines: tuple[str, ...]
    summary: str

    @property
    def row(self) -> str:
        """A line of the table."""
        counts = f"{self.seconds:7.1f}{self.looks:7}{self.hung:6}{self.proven:8}{len(self.lines):7}"
        return f"{self.name:48}{counts}  {self.summary}"


def main() -> None:
    """Run the traps, or a suite."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--only", default="")
    parser.add_argument("--jobs", type=int, default=4)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("rest", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    print(f"load {os.getloadavg()[0]:.1f}")
    print(f"{'test':48}{'s':>7}{'looks':>7}{'hung':>6}{'proven':>8}{'lines':>7}  pytest says")
    if options.folder is not None:
        words = options.rest[1:] if options.rest[:1] == ["--"] else options.rest
        found = [run(str(options.folder), ["--multihost-watch", *words], options.folder)]
        print(found[0].row)
    else:
        with ThreadPoolExecutor(options.jobs) as pool:
            found = []
            for each in pool.map(trap, [name for name in traps() if options.only in name]):
                found.append(each)
                print(each.row, flush=True)
    for each in found:
        for line in each.lines:
            print(f"  {line}")
    lines, proven = sum(len(each.lines) for each in found), sum(each.proven for each in found)
    passed = sum(each.summary.startswith("1 passed") for each in found)
    said = f", {passed} passed" if options.folder is None else ""
    looks, hung = sum(each.looks for each in found), sum(each.hung for each in found)
    print(
        f"{len(found)} runs{said}: {looks} looks, {hung} seem hung, {proven} proven, {lines} lines"
    )


def traps() -> list[str]:
    """Return the names of the traps."""
    body = ast.parse(TRAPS.read_text("utf-8")).body
    names = (each.name for each in body if isinstance(each, ast.FunctionDef))
    return [name for name in names if name.startswith("test_")]


def trap(name: str) -> Run:
    """Run one trap."""
    with tempfile.TemporaryDirectory(prefix="watch-trap-") as folder:
        (Path(folder) / "pytest.ini").write_text("[pytest]\n")
        (Path(folder) / TRAPS.name).write_bytes(TRAPS.read_bytes())
        words = ["-p", "no:randomly", "--multihost-watch=end", f"{TRAPS.name}::{name}"]
        return run(name, words, Path(folder))


def run(name: str, words: list[str], folder: Path) -> Run:
    """Run pytest in a folder."""
    with tempfile.TemporaryDirectory(prefix="watch-looks-") as scratch:
        looks = Path(scratch) / "looks"
        begun_s = time.monotonic()
        limit_s = LIMIT_S if folder.name.startswith("watch-trap-") else None
        try:
            done = subprocess.run(
                [sys.executable, *PYTEST, *words],
                cwd=folder,
                env={**os.environ, ALWAYS: str(looks)},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                check=False,
                timeout=limit_s,
            )
            out = re.sub(r"\x1b\[[0-9;]*m", "", done.stdout)
        except subprocess.TimeoutExpired:
            out = "did not end"
        seconds = time.monotonic() - begun_s
        seen = [json.loads(e) for e in looks.read_text().splitlines()] if looks.exists() else []
    summaries = re.findall(r"^=*\s*((?:\d+ \w+,? ?)+(?:in .*?)?)\s*=*$", out, re.MULTILINE)
    return Run(
        name,
        seconds,
        len(seen),
        sum(each["outcome"] == "hung" for each in seen),
        sum(each["is_proven"] for each in seen),
        tuple(each for each in out.splitlines() if LINE in each),
        summaries[-1] if summaries else (out.splitlines() or [""])[-1],
    )


if __name__ == "__main__":
    main()
