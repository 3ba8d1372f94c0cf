"""Ranks on three nodes of a Slurm cluster, each with its own slurmd, network and processes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster import GLOO_WORLDS, JAX_WORLDS, WORLDS, drive, project, result_lines
from runs import await_that, living
from slurm_failures import FAILURES, SLURM
from slurm_site import SlurmSite, slurm_site

pytestmark = pytest.mark.launchers

IMPATIENT = """
from pytest_multihost.extensions.engines import peer_server
from pytest_multihost.extensions.engines.driver import byte_pump

peer_server.SILENT_S = 15.0
byte_pump.STUCK_S = 1.0
"""
"""For a conftest.py: peers wait less long for a driver that is silent."""


@pytest.fixture
def site() -> Iterator[SlurmSite]:
    """A cluster of its own for each test, because some break it."""
    with slurm_site() as found:
        yield found


def test_the_summary_is_the_same_as_on_one_machine(site: SlurmSite, tmp_path: Path) -> None:
    """Word by word, for worlds of gloo and jax over three nodes."""
    pytest.importorskip("torch")
    pytest.importorskip("jax")
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
