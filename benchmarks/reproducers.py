"""Do the plain scripts of docs/found/reproducers still show what they say? Run and count.

    python benchmarks/reproducers.py [--times 20] [--only PART] [--jobs 2] [--json FILE]

A script needs no plugin: it starts its processes itself, disturbs one of them, prints what happens,
and ends within seconds with 0 if the weakness shows and with 1 if not. Each one is run so many
times in a folder of its own, and counted. Exits with 1 if a script does not show it every time.

The libraries are those of the interpreter that runs this; the scripts print their versions.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

SCRIPTS = Path(__file__).resolve().parent.parent / "docs" / "found" / "reproducers"
LIMIT_S = 120
"""A script that has not ended by then shows nothing; the slowest takes half a minute under load."""


@dataclass(frozen=True)
class Attempt:
    """One run of a script.

    Attributes:
        code: Its exit code, or None if it was ended at its limit.
        seconds: How long it took, with the imports.
        output: The end of what it printed.
    """

    code: int | None
    seconds: float
    output: str


@dataclass(frozen=True)
class Count:
    """What the runs of one script came to.

    Attributes:
        script: Its name, without the suffix.
        times: How often it was run.
        shown: How many runs showed the weakness.
        seconds: The median time of a run.
        output: What the first run that did not show it printed, else the last one.
        load: Mean number of processes that were ready to run, over the last minute.
    """

    script: str
    times: int
    shown: int
    seconds: float
    output: str
    load: float


def run(script: Path) -> Attempt:
    """Run a script once, in a folder that is removed afterwards, with all its processes."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="reproducer-", ignore_cleanup_errors=True) as scratch:
        Path(scratch).chmod(0o1777)  # one script gives up root's rights
        process = subprocess.Popen(
            [sys.executable, "-W", "ignore", str(script)],
            cwd=scratch,
            env={**os.environ, "TMPDIR": scratch, "JAX_PLATFORMS": "cpu"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,  # no file, since some scripts limit the size of files
            stderr=subprocess.STDOUT,
            start_new_session=True,
            text=True,
            errors="replace",
        )
        try:
            output, _ = process.communicate(timeout=LIMIT_S)
            code = process.returncode
        except subprocess.TimeoutExpired:
            code = None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # also what a script has left
        if code is None:
            output, _ = process.communicate()
    return Attempt(code, round(time.monotonic() - started, 1), output[-4000:])


def count(script: Path, times: int, jobs: int) -> Count:
    """Run a script so many times, some at once, and count."""
    with ThreadPoolExecutor(jobs) as pool:
        attempts = list(pool.map(run, [script] * times))
    return summed_up(script.stem, attempts)


def summed_up(name: str, attempts: Sequence[Attempt]) -> Count:
    """Return what the runs of a script came to."""
    failed = [each for each in attempts if each.code != 0]
    seconds = sorted(each.seconds for each in attempts)[len(attempts) // 2]
    return Count(
        name,
        len(attempts),
        len(attempts) - len(failed),
        seconds,
        (failed or attempts)[-1].output,
        round(os.getloadavg()[0], 1),
    )


def main() -> int:
    """Run what is asked for, print the table, and return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--times", type=int, default=20, help="how often each is run")
    parser.add_argument("--only", default="", help="part of the names of the scripts")
    parser.add_argument("--jobs", type=int, default=2, help="how many runs at once")
    parser.add_argument("--json", default="", help="file for the counts and outputs")
    options = parser.parse_args()
    rows = []
    for script in sorted(SCRIPTS.glob("*.py")):
        if options.only not in script.stem:
            continue
        row = count(script, options.times, options.jobs)
        print(
            f"{row.script:34} {row.shown:3} of {row.times}{row.seconds:8.1f} s  load {row.load}",
            flush=True,
        )
        if row.shown < row.times:
            print(row.output, flush=True)
        rows.append(row)
    if options.json:
        text = json.dumps([asdict(row) for row in rows], indent=1)
        Path(options.json).write_text(text + "\n", encoding="utf-8")
    return 1 if not rows or any(row.shown < row.times for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
