"""Does a clock that jumps ever bring a timeout that no real run would have seen?

    python benchmarks/clock_soak.py [--worlds 200] [--only torch|jax] [--burners 2] [--both]

Runs the programs of tests/clock/soak.py so many times, and prints the worlds that failed with
their errors. `--burners` keeps so many processors busy beside them, `--both` runs both at a time.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from load import loaded

ROOT = Path(__file__).resolve().parent.parent
PROGRAMS = ROOT / "tests" / "clock" / "soak.py"
BATCH = 20


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--worlds", type=int, default=200)
    parser.add_argument("--only", choices=("torch", "jax"))
    parser.add_argument("--burners", type=int, default=0)
    parser.add_argument("--both", action="store_true", help="torch and jax beside each other")
    options = parser.parse_args()
    names = [options.only] if options.only else ["torch", "jax"]
    at_a_time = len(names) if options.both else 1
    with loaded(options.burners), ThreadPoolExecutor(at_a_time) as pool:
        list(pool.map(lambda name: soak(name, options.worlds), names))
    print(f"load {os.getloadavg()[0]:.1f}")


def soak(name: str, worlds: int) -> None:
    """Run one program so many times, and print what went wrong."""
    bad: Counter[str] = Counter()
    jumps, jumped_s, done, began_s = 0, 0.0, 0, time.monotonic()
    while done < worlds:
        count = min(BATCH, worlds - done)
        for verdict in run(name, count):
            clock = verdict["clock_jumps"] or {"jumps": 0, "jumped_s": 0.0}
            jumps, jumped_s = jumps + clock["jumps"], jumped_s + clock["jumped_s"]
            if verdict["status"] != "passed":
                bad[why(verdict)] += 1
        done += count
        seconds = time.monotonic() - began_s
        print(
            f"{name}: {done} worlds in {seconds:.0f} s, {jumps} jumps over {jumped_s:.0f} s,"
            f" {sum(bad.values())} failed",
            flush=True,
        )
    for text, times in bad.most_common():
        print(f"  {times} x {text}")


def run(name: str, count: int) -> list[dict[str, Any]]:
    """Run one program in `count` worlds, and return their verdicts."""
    return run_programs(PROGRAMS, "jump", f"test_{name}", SOAK_ROUNDS=str(count))


def run_programs(programs: Path, clock: str, only: str, **variables: str) -> list[dict[str, Any]]:
    """Run those of some programs whose names match, with a clock, and return their verdicts."""
    with tempfile.TemporaryDirectory(prefix="multihost-clock-") as folder:
        Path(folder, "test_it.py").write_text(programs.read_text(encoding="utf-8"), "utf-8")
        subprocess.run(
            [
                *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_it.py"),
                *(f"--multihost-clock={clock}", "-k", only),
                *("--multihost-artifacts", f"{folder}/artifacts"),
            ],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT), **variables},
            capture_output=True,
            check=False,
        )
        lines = Path(folder, "artifacts", "verdicts.jsonl").read_text(encoding="utf-8").splitlines()
        return [json.loads(each) for each in lines]


def why(verdict: dict[str, Any]) -> str:
    """Return why a world failed, in one line."""
    errors = [each["error"] for each in verdict["rank_results"] if each["error"]]
    texts = [f"{each['type']}: {each['message']}" for each in errors]
    return " | ".join([verdict["reason"] or verdict["outcome"], *texts])[:300]


if __name__ == "__main__":
    main()
