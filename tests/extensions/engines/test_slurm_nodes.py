"""Ranks on the nodes of a Slurm cluster: pytest's own process has none."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster import (
    GLOO_WORLDS,
    LIMIT_S,
    SLEEPS,
    WORLDS,
    command,
    drive,
    environment,
    project,
    result_lines,
    started,
)
from runs import await_that
from runtimes import require
from slurm_cluster import run, slurm_cluster

pytestmark = pytest.mark.launchers


@pytest.fixture(scope="module")
def slurm() -> Iterator[dict[str, str]]:
    """Run Slurm's daemons; return the variables by which its commands find them."""
    with slurm_cluster() as variables:
        yield {"SLURM_CONF": variables["SLURM_CONF"]}


def jobs(slurm: dict[str, str], path: Path) -> str:
    """Return the jobs that wait or run."""
    return run(["squeue", "--noheader"], path, {**environment(), **slurm}).stdout


@pytest.mark.clusters
@pytest.mark.claim("run on a cluster: Slurm, Ray, ssh, any command")
def test_a_world_runs_in_an_allocation_of_its_own(slurm: dict[str, str], tmp_path: Path) -> None:
    """It is given back at the end."""
    path = project(tmp_path / "it", WORLDS)
    done = drive(path, "--multihost-on", "slurm", "-k", "meets or waits", **slurm)
    assert "1 failed, 1 passed" in done.stdout, done.stdout
    assert "HUNG test_worlds.py::test_waits" in done.stdout
    assert "launch: slurm" in done.stdout
    await_that(lambda: not jobs(slurm, path))


def test_the_summary_is_the_same_as_without_slurm(slurm: dict[str, str], tmp_path: Path) -> None:
    """Word by word."""
    require("torch")
    path = project(tmp_path / "it", WORLDS + GLOO_WORLDS)
    here = drive(path)
    there = drive(path, "--multihost-on", "slurm:--time=10 -p all", **slurm)
    assert result_lines(there.stdout) == result_lines(here.stdout)
    assert len(result_lines(here.stdout)) == 4, here.stdout


def test_an_allocation_is_used_from_inside(slurm: dict[str, str], tmp_path: Path) -> None:
    """No second one is asked for."""
    path = project(tmp_path / "it", WORLDS)
    variables = {**environment(), **slurm}
    inside = ["salloc", "-N1", *command("--multihost-on", "slurm", "-k", "meets")]
    done = run(inside, path, variables)
    assert "1 passed" in done.stdout, done.stdout
    assert done.stderr.count("Granted job allocation") == 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("-p nowhere", "invalid partition specified"),
        ("--no-such-option", "salloc has ended without an allocation"),
        ("nonsense", "does not begin with an option"),
    ],
)
def test_what_slurm_refuses_ends_the_run(
    slurm: dict[str, str], tmp_path: Path, options: str, words: str
) -> None:
    """With Slurm's own words, and before any test has run."""
    path = project(tmp_path / "it", WORLDS)
    done = drive(path, "--multihost-on", f"slurm:{options}", **slurm)
    assert words in done.stdout, done.stdout
    assert done.returncode == 4
    assert not jobs(slurm, path)


def test_time_in_the_queue_is_limited_by_itself(slurm: dict[str, str], tmp_path: Path) -> None:
    """With the queue's reason; the job does not stay there."""
    path = project(tmp_path / "it", WORLDS)
    limits = ("--multihost-queue-timeout=6", "--multihost-startup-timeout=2")
    done = drive(path, "--multihost-on", "slurm:--begin=now+100", *limits, **slurm)
    assert "slurm has not provided the nodes within 6 s" in done.stdout, done.stdout
    assert "waits: BeginTime" in done.stdout
    assert done.returncode == 4
    await_that(lambda: not jobs(slurm, path))


def test_a_job_that_waits_runs_later(slurm: dict[str, str], tmp_path: Path) -> None:
    """The wait is longer than the startup timeout, which begins with the peers."""
    path = project(tmp_path / "it", WORLDS)
    done = drive(
        path,
        *("--multihost-on", "slurm:--begin=now+20", "--multihost-startup-timeout=15"),
        *("-k", "meets"),
        **slurm,
    )
    assert "1 passed" in done.stdout, done.stdout
    assert "slurm: after" in done.stdout


def test_scancel_shows_where_the_ranks_were(slurm: dict[str, str], tmp_path: Path) -> None:
    """Slurm signals all processes of a job at once, the ranks among them."""
    path = project(tmp_path / "it", SLEEPS)
    with started(path, "--multihost-on", "slurm", **slurm) as process:
        run(["scancel", "--user=root"], path, {**environment(), **slurm})
        output, _ = process.communicate(timeout=LIMIT_S)
    assert "time.sleep(600)" in output, output
    assert process.returncode in (1, 2)
    await_that(lambda: not jobs(slurm, path))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_stays_allocated(slurm: dict[str, str], tmp_path: Path, number: int) -> None:
    """Neither after a signal nor after a kill."""
    path = project(tmp_path / "it", SLEEPS)
    with started(path, "--multihost-on", "slurm", **slurm) as process:
        process.send_signal(number)
        process.communicate(timeout=LIMIT_S)
    await_that(lambda: not jobs(slurm, path), 30)


def test_nothing_stays_queued_after_a_kill(slurm: dict[str, str], tmp_path: Path) -> None:
    """The job waits when pytest is killed."""
    path = project(tmp_path / "it", SLEEPS)
    with subprocess.Popen(
        command("--multihost-on", "slurm:--begin=now+100"),
        cwd=path,
        env={**environment(), **slurm},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        await_that(lambda: jobs(slurm, path))
        process.kill()
    await_that(lambda: not jobs(slurm, path), 30)
