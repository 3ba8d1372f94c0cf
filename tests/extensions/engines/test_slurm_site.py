"""Ranks on three nodes of a Slurm cluster, each with its own slurmd, network and processes."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster import (
    GLOO_WORLDS,
    JAX_WORLDS,
    LIMIT_S,
    SLEEPS_THEN_MEETS,
    WORLDS,
    drive,
    project,
    result_lines,
    started,
)
from runs import await_that, living
from runtimes import require
from secrets_seen import TELLS, forms_of, seen_in_files, seen_in_processes
from slurm_failures import FAILURES, SLURM, job_of
from slurm_site import SlurmSite, slurm_site

pytestmark = pytest.mark.launchers

IMPATIENT = """
from pytest_multihost.extensions.engines.driver import heartbeats

heartbeats.BEAT_S = 2.0
heartbeats.SILENT_S = 15.0
"""
"""For a conftest.py: peers wait less long for a driver whose machine is out of reach."""


@pytest.fixture
def site() -> Iterator[SlurmSite]:
    """A cluster of its own for each test, because some break it."""
    with slurm_site() as found:
        yield found


def test_the_summary_is_the_same_as_on_one_machine(site: SlurmSite, tmp_path: Path) -> None:
    """Word by word, for worlds of gloo and jax over three nodes."""
    require("torch")
    require("jax")
    path = project(tmp_path / "it", WORLDS + GLOO_WORLDS + JAX_WORLDS)
    here = drive(path)
    there = drive(path, *SLURM, before=site.site.door, **site.variables)
    assert result_lines(there.stdout) == result_lines(here.stdout), there.stdout
    assert len(result_lines(here.stdout)) == 5, here.stdout
    verdicts = (path / ".pytest_multihost" / "verdicts.jsonl").read_text().splitlines()
    hosts = [[each["host"] for each in json.loads(line)["rank_results"]] for line in verdicts]
    assert hosts == [["n1", "n1", "n2", "n3"]] * 8


@pytest.mark.timeout(300)  # Slurm looks at time limits twice a minute, and they count in minutes
@pytest.mark.parametrize("name", FAILURES)
def test_a_failure_is_told_in_the_words_of_slurm(
    site: SlurmSite, tmp_path: Path, name: str
) -> None:
    """With the node where one is to blame, and with the stacks where the run was ended."""
    failure, path = FAILURES[name], tmp_path / "it"
    path.mkdir()
    (path / "conftest.py").write_text(IMPATIENT)
    shown = failure.act(site, path)
    missing = [each for each in failure.words if not re.search(each, shown.output, re.MULTILINE)]
    assert not missing, shown.output
    assert shown.code == failure.code
    await_that(lambda: not living(path), 40)


def test_the_secret_is_in_no_process_and_no_record(site: SlurmSite, tmp_path: Path) -> None:
    """Neither on a node, nor in what slurmctld keeps of a job, during the run and afterwards."""
    path = project(tmp_path / "it", SLEEPS_THEN_MEETS)
    (path / "conftest.py").write_text(TELLS)
    with started(path, *SLURM, before=site.site.door, **site.variables) as process:
        secret = (path / "told").read_bytes()
        seen = seen_in_processes(secret)
        shown = site.ask("scontrol", "show", "--all", "--details", "job")
        shown += site.ask("scontrol", "show", "step")
        site.ask("scontrol", "write", "batch_script", job_of(site))
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=LIMIT_S)
    await_that(lambda: "JobState=CANCELLED" in kept(site) or "JobState=COMPLETED" in kept(site))
    assert "JobName=pytest-" in shown
    assert not [each for each in forms_of(secret) if each in shown.encode()]
    assert seen == []
    assert seen_in_files(secret, (path / ".pytest_multihost").rglob("*")) == []
    assert seen_in_files(secret, site.folder.rglob("*")) == []


def kept(site: SlurmSite) -> str:
    """Return Slurm's records of the jobs that have ended."""
    file = site.folder / "jobs"
    return file.read_text() if file.exists() else ""
