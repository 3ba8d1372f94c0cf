"""What goes wrong on a Slurm cluster while pytest drives its nodes, and what users then read."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import psutil
from cluster import LIMIT_S, SLEEPS_THEN_MEETS, WORLDS, drive, project, started
from runs import await_that
from slurm_site import NODES, SlurmSite

SLURM = ("--multihost-on", "slurm", "--multihost-nodes=3")
_WATCHED_S = 1.0
"""Time from the beginning of a test until the driver has taken several snapshots."""

VICTIM = NODES.index("n2")
"""The index of the node that fails."""


@dataclass(frozen=True)
class Shown:
    """What users get.

    Attributes:
        seconds: From the failure, or from the start if nothing can be started, to pytest's end.
    """

    output: str
    code: int
    seconds: float


@dataclass(frozen=True)
class Failure:
    """Something that goes wrong.

    Attributes:
        act: Runs pytest in a new project, and makes it go wrong.
        words: Regular expressions that the output must match.
    """

    act: Callable[[SlurmSite, Path], Shown]
    words: Sequence[str]
    code: int


def disturbed(site: SlurmSite, path: Path, disturb: Callable[[], object]) -> Shown:
    """Disturb a run while its ranks sleep, and the driver watches them."""
    project(path, SLEEPS_THEN_MEETS)
    with started(path, *SLURM, before=site.site.door, **site.variables) as process:
        time.sleep(_WATCHED_S)
        started_s = time.monotonic()
        disturb()
        output, _ = process.communicate(timeout=LIMIT_S)
    return Shown(output, process.returncode, time.monotonic() - started_s)


def driven(site: SlurmSite, path: Path, *args: str) -> Shown:
    """Run worlds to their end."""
    project(path, WORLDS)
    started_s = time.monotonic()
    done = drive(path, *SLURM, *args, before=site.site.door, **site.variables)
    return Shown(done.stdout, done.returncode, time.monotonic() - started_s)


def job_of(site: SlurmSite) -> str:
    """Return the id of the job that runs."""
    return site.ask("squeue", "--noheader", "--states=R", "--format=%i").split()[0]


def _a_peer_dies(site: SlurmSite, path: Path) -> Shown:
    return disturbed(site, path, lambda: os.kill(_peer_on(path, VICTIM), signal.SIGKILL))


def _peer_on(path: Path, index: int) -> int:
    """Return the process id of the peer on the node at an index: it is slurmstepd's child."""
    found = {}
    for each in psutil.process_iter():
        try:
            if each.cwd() == str(path) and each.environ().get("SLURMD_NODENAME") == NODES[index]:
                found[each.pid] = each.ppid()
        except psutil.Error:
            continue
    (peer,) = (
        pid for pid, parent in found.items() if psutil.Process(parent).name() == "slurmstepd"
    )
    return peer


def _slurmd_dies(site: SlurmSite, path: Path) -> Shown:
    entered = psutil.Process(site.daemons[NODES[VICTIM]].pid)
    return disturbed(site, path, lambda: [each.kill() for each in entered.children()])


def _a_link_is_cut(site: SlurmSite, path: Path) -> Shown:
    return disturbed(site, path, lambda: site.site.unplug(VICTIM))


def _the_job_is_cancelled(site: SlurmSite, path: Path) -> Shown:
    return disturbed(site, path, lambda: site.ask("scancel", job_of(site)))


def _the_time_is_over(site: SlurmSite, path: Path) -> Shown:
    change = ("scontrol", "update", "TimeLimit=0:01")
    return disturbed(site, path, lambda: site.ask(*change, f"JobId={job_of(site)}"))


def _the_job_is_preempted(site: SlurmSite, path: Path) -> Shown:
    with _other_job(site, "--partition=urgent") as start:
        return disturbed(site, path, start)


def _the_queue_is_full(site: SlurmSite, path: Path) -> Shown:
    with _other_job(site) as start:
        start()
        await_that(lambda: "alloc" in site.ask("sinfo", "--noheader"))
        return driven(site, path, "--multihost-queue-timeout=5")


@contextmanager
def _other_job(site: SlurmSite, *options: str) -> Iterator[Callable[[], object]]:
    """Yield what starts a job that takes all nodes, and ends at the end of the block."""
    processes = []

    def start() -> None:
        job = ["--job-name=other", "--nodes=3", "--exclusive", *options]
        command = ["salloc", "--quiet", *job, "sleep", "1000"]
        variables = {**os.environ, **site.variables}
        processes.append(subprocess.Popen([*site.site.door, *command], env=variables))

    try:
        yield start
    finally:
        site.ask("scancel", "--name=other")
        for each in processes:
            each.kill()  # while it asks for nodes, it survives SIGTERM
            each.wait()


@contextmanager
def _mounted(site: SlurmSite, *args: str) -> Iterator[None]:
    """Mount something on one node; the last argument is the place."""
    entry = site.site.entries[VICTIM]
    subprocess.run([*entry, "mount", *args], check=True)
    try:
        yield
    finally:
        subprocess.run([*entry, "umount", args[-1]], check=True)


def _the_directory_is_missing(site: SlurmSite, path: Path) -> Shown:
    path.mkdir(exist_ok=True)
    with _mounted(site, "-t", "tmpfs", "none", str(path)):
        return driven(site, path)


def _a_version_differs(site: SlurmSite, path: Path) -> Shown:
    other = path.parent / "METADATA"
    other.write_text("Metadata-Version: 2.1\nName: torch\nVersion: 0.0.9\n")
    about: Any = distribution("torch")
    with _mounted(site, "--bind", str(other), str(about._path / "METADATA")):
        return driven(site, path)


LOST = (r"^ERROR test_worlds.py::test_sleeps - node n2's process \(pid \d+ on n2\) is gone$",)
STACKS = (r"^all 4  test_sleeps  test_worlds.py:8  » time.sleep\(600\)$", "interrupted by SIGTERM")
FAILURES: Mapping[str, Failure] = {
    "a peer is killed": Failure(
        _a_peer_dies, (*LOST, "job [0-9]+ is RUNNING", r"srun: error: n2: task 0: Killed"), 1
    ),
    "slurmd is killed": Failure(
        _slurmd_dies, (*LOST, r"node n2 is down\*", r"srun: error: Node failure on n2"), 1
    ),
    "a node's link is cut": Failure(
        _a_link_is_cut, (*LOST, r"it has not answered for 10 s", "Slurm: job [0-9]+ is"), 1
    ),
    "scancel": Failure(_the_job_is_cancelled, (*STACKS, "Slurm: job [0-9]+ is"), 2),
    "the time limit": Failure(_the_time_is_over, (*STACKS, r"DUE TO TIME LIMIT"), 2),
    "preemption": Failure(_the_job_is_preempted, (*STACKS, r"is \w+, preempted"), 2),
    "a full queue": Failure(
        _the_queue_is_full,
        (r"^ERROR: slurm has not provided the nodes within 5 s$", r"waits: Resources"),
        4,
    ),
    "a missing directory": Failure(
        _the_directory_is_missing,
        (r"^ERROR: the peer on node n2 has ended at its start", r"it has no pytest.ini"),
        4,
    ),
    "another version": Failure(
        _a_version_differs, (r"^torch is [1-9].* and 0\.0\.9 in node n2's process",), 4
    ),
}
"""What goes wrong, by its name. Two of them leave a node that cannot be used any more."""
