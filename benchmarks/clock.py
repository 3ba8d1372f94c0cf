"""Do timeouts of libraries come alike with a clock that jumps, and how fast?

    python benchmarks/clock.py            # both clocks, a few minutes
    python benchmarks/clock.py --jump     # only the one that jumps

Runs the programs of tests/clock/timeouts.py, and prints for each the error without numbers, the
seconds of the world until it came, and the seconds that it took.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PROGRAMS = ROOT / "tests" / "clock" / "timeouts.py"

Note = dict[str, Any]
Notes = dict[tuple[str, int], Note]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jump", action="store_true", help="leave out the real clock")
    parser.add_argument("-k", default="", help="only these, as pytest's -k")
    options = parser.parse_args()
    jumping = run("jump", options.k)
    real = {} if options.jump else run("real", options.k)
    for test, rank in sorted(jumping.keys() | real.keys()):
        print(line(test, rank, jumping.get((test, rank)), real.get((test, rank))), flush=True)
    print(f"load {os.getloadavg()[0]:.1f}")


def run(clock: str, only: str) -> Notes:
    """Run the programs, and return what each rank has noted."""
    with tempfile.TemporaryDirectory(prefix="multihost-clock-") as folder:
        file = Path(folder, "notes")
        Path(folder, "test_it.py").write_text(PROGRAMS.read_text(encoding="utf-8"), "utf-8")
        done = subprocess.run(
            [
                *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_it.py"),
                *(f"--multihost-clock={clock}", "-k", only),
                *("--multihost-artifacts", f"{folder}/artifacts"),
            ],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT), "CLOCK_TIMEOUTS": str(file)},
            capture_output=True,
            text=True,
            check=False,
        )
        print(f"{clock}: {done.stdout.splitlines()[-1] if done.stdout else done.stderr}")
        if done.returncode:
            print(done.stdout[-6000:])
        lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
        found = map(json.loads, lines)
        return {(each["test"], each["rank"]): each for each in found}


def line(test: str, rank: int, jumped: Note | None, real: Note | None) -> str:
    """Return what both runs of a program have shown at one rank."""
    words = [f"{test.removeprefix('test_'):45} rank {rank}"]
    if jumped is not None:
        words.append(f"at {jumped['s']:7.2f} s in {jumped['real_s']:5.2f} s")
    if real is not None:
        words.append(f"real {real['s']:7.2f} s")
    if jumped is not None and real is not None:
        words.append("same error" if jumped["error"] == real["error"] else "OTHER ERROR")
    shown = jumped or real or {"error": ""}
    return "  ".join([*words, shown["error"][:90]])


if __name__ == "__main__":
    main()
