"""Does `pytest --multihost-watch` prove the hangs of plain tests, in each form of suite?

    python benchmarks/watch_forms.py [--form NAME ...] [--plant NAME ...] [--json FILE] [--keep DIR]

Runs the tests of worlds/watched/forms.py: each starts three gloo ranks in another way, and rank 1
does what the plant says:

* sleep, lock: it sleeps, or waits for a lock that it holds
* skip, swallow: it leaves out a collective, or an exception in front of it is swallowed
* exit: it ends with status 0, and the others wait for a key that it should have set
* task: it ends with status 0, and only the parent waits for its result

A run is proven when the line "nothing can move any more" appears; the time is that since the plant.
If there is no line for 40 s, what the page says after Ctrl-C counts. The rank is right if exactly
rank 1 is named, or for skip and swallow a cycle of two with rank 1 in it: from outside, either of
them may have left out a collective. Where only the parent waits, the test must be named. The line
is right if the page shows one that is marked HERE for the plant.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

WORLD = Path(__file__).resolve().parent / "worlds" / "watched"
PLANTS = ("sleep", "lock", "skip", "swallow", "exit", "task")
PYTEST = ("pytest", "-p", "no:cacheprovider", "-p", "no:randomly", "--multihost-watch")
TORCHRUN = ("-m", "torch.distributed.run", "--nproc-per-node", "3")
WATCH = ("-m", "pytest_multihost.core.command.main", "watch", "--")
FORMS = {
    "spawn": "test_spawn",
    "fork": "test_fork",
    "torchrun": "test_torchrun",
    "pool_spawn": "test_pool_spawn",
    "pool_forkserver": "test_pool_forkserver",
    "process": "test_process",
    "queue": "test_queue",
    "test_case": "TestCase::test_case",
    "torchrun_pytest": "test_outer",
    "xdist_each": "test_outer",
}
OF_PARENT = ("pool_spawn", "pool_forkserver", "queue")
"""Forms whose parent waits for a result that a rank has not given before it ends."""

LINE = "nothing can move any more"
BEGIN_S, PROVE_S, END_S = 180.0, 40.0, 20.0
MARK = "WATCHED_RUN"


@dataclass(frozen=True, slots=True)
class Shown:
    """What one run has shown.

    Attributes:
        proven_s: Time from the plant to the line; None if there was none.
        summary: The sentence that names the rank.
    """

    form: str
    plant: str
    proven_s: float | None
    is_rank_right: bool = False
    is_line_right: bool = False
    summary: str = ""
    problem: str = ""


def main() -> None:
    """Run the forms, and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--form", action="append", choices=FORMS)
    parser.add_argument("--plant", action="append", choices=PLANTS)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--keep", type=Path, help="a directory for what the runs print")
    options = parser.parse_args()
    print(f"load {os.getloadavg()[0]:.1f}")
    print(f"{'form':16}{'plant':9}{'proven s':>9}  rank   line   said")
    found = []
    for form in options.form or FORMS:
        for plant in options.plant or PLANTS:
            if plant == "task" and form not in OF_PARENT:
                continue
            found.append(run(form, plant, options.keep))
            print(row(found[-1]), flush=True)
    print(total(found))
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(each) for each in found], indent=1))


def row(seen: Shown) -> str:
    """Return a line of the table."""
    proven = "-" if seen.proven_s is None else f"{seen.proven_s:.1f}"
    rank, line = ("right" if each else "wrong" for each in (seen.is_rank_right, seen.is_line_right))
    return (
        f"{seen.form:16}{seen.plant:9}{proven:>9}  {rank:6} {line:6} {seen.problem or seen.summary}"
    )


def total(found: list[Shown]) -> str:
    """Return the last line."""
    quick = [each for each in found if each.proven_s is not None and each.proven_s < 10]
    return (
        f"{len(found)} runs: {sum(e.proven_s is not None for e in found)} proven, {len(quick)} in"
        f" under 10 s; of all, rank right in {sum(e.is_rank_right for e in found)}, line right in"
        f" {sum(e.is_line_right for e in found)}, both and proven under 10 s in"
        f" {sum(e.is_rank_right and e.is_line_right for e in quick)}"
    )


def command(form: str) -> list[str]:
    """Return the command line of a form."""
    test = f"forms.py::{FORMS[form]}"
    if form == "torchrun_pytest":
        ranks = [*TORCHRUN, "--master-port", str(free_port()), "-m"]
        return [sys.executable, *WATCH, sys.executable, *ranks, *PYTEST[:-1], test]
    more = ["-n", "3", "--dist=each"] if form == "xdist_each" else []
    return [sys.executable, "-m", *PYTEST, *more, test]


def free_port() -> int:
    """Return a port that nobody uses."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def run(form: str, plant: str, keep: Path | None) -> Shown:
    """Run one form with one plant."""
    with tempfile.TemporaryDirectory(prefix="watch-forms-", ignore_cleanup_errors=True) as name:
        folder, mark = Path(name), str(uuid.uuid4())
        environment = {
            **os.environ,
            "TMPDIR": name,
            "PLANT": plant,
            "PLANTED": str(folder / "planted"),
            "KEY_PORT": str(free_port()),
            "OUTER_PORT": str(free_port()),
            MARK: mark,
        }
        for each in ("job.py", "forms.py"):
            shutil.copy(WORLD / each, folder)
        (folder / "pytest.ini").write_text("[pytest]\n")
        with (folder / "out").open("wb") as out:
            started = subprocess.Popen(
                command(form),
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                seen = watch(form, plant, folder, started)
            finally:
                interrupt(started)
                end(mark)
                started.wait()
        if keep is not None:
            keep.mkdir(parents=True, exist_ok=True)
            (keep / f"{form}-{plant}.txt").write_bytes((folder / "out").read_bytes())
        return judged(seen, (folder / "out").read_text(errors="replace"))


def watch(form: str, plant: str, folder: Path, started: subprocess.Popen[bytes]) -> Shown:
    """Wait until the line appears."""
    planted, begin_s = folder / "planted", time.monotonic()
    while not planted.exists() or not planted.read_text():
        if started.poll() is not None or time.monotonic() - begin_s > BEGIN_S:
            return Shown(form, plant, None, problem="the plant was not reached")
        time.sleep(0.1)
    planted_s = float(planted.read_text())
    while time.time() - planted_s < PROVE_S:
        if LINE in (folder / "out").read_text(errors="replace"):
            return Shown(form, plant, time.time() - planted_s)
        if started.poll() is not None:
            return Shown(form, plant, None, problem="the run has ended by itself")
        time.sleep(0.1)
    return Shown(form, plant, None)


def interrupt(started: subprocess.Popen[bytes]) -> None:
    """Press Ctrl-C, and wait for the page."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(started.pid, signal.SIGINT)
    with contextlib.suppress(subprocess.TimeoutExpired):
        started.wait(END_S)


def end(mark: str) -> None:
    """Kill the processes of a run."""
    for pid in marked(mark):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def marked(mark: str) -> Iterator[int]:
    """Yield the processes that have a run's mark in their environment."""
    for each in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if each.name.isdecimal() and mark.encode() in (each / "environ").read_bytes():
                yield int(each.name)


def judged(seen: Shown, out: str) -> Shown:
    """Return what was seen, with what the page says."""
    said = re.findall(r"multihost watch: (.*): nothing can move any more", out)
    pages = re.findall(r"^ *(?:HUNG\??|NOT KNOWN TO HANG)\s+(.*)$", out, re.MULTILINE)
    summary = (said or pages or [""])[-1].strip()
    is_cycle = seen.plant in {"skip", "swallow"} and "rank 1" in summary
    is_of_parent = seen.plant == "task" or (seen.plant == "exit" and seen.form in OF_PARENT)
    ranks = {*re.findall(r"ranks? (\d+)", culprit_of(summary))}
    lines = {
        f"{file.name}:{number}"
        for file in (WORLD / "job.py", WORLD / "forms.py")
        for number, text in enumerate(file.read_text().splitlines(), 1)
        if text.endswith(f"# HERE {seen.plant}")
    }
    return Shown(
        seen.form,
        seen.plant,
        seen.proven_s,
        is_rank_right=ranks == {"1"} or is_cycle or (is_of_parent and "test" in summary),
        is_line_right=any(each in out for each in lines),
        summary=summary,
        problem=seen.problem,
    )


def culprit_of(summary: str) -> str:
    """Return the part of a sentence that names whom the others wait for."""
    for found in (
        re.search(r"(ranks? [\d, -]+) (?:never|has|have|is)", summary),
        re.search(r"for (ranks? [\d, -]+)", summary),
        re.search(r"(ranks? [\d, -]+)", summary),
    ):
        if found is not None:
            return found.group(1)
    return ""


if __name__ == "__main__":
    main()
