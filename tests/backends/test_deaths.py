"""Real worlds in which one rank goes wrong: who is accused, and who is not.

A false accusation is worse than none: who was once sent to the wrong rank does not read the page
again. All disasters of a backend happen in one run of pytest, each followed by its aftermath: the
same test, in which nothing goes wrong.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from runtimes import skip_if_missing

ON_GLOO = """
import os, signal, time
from datetime import timedelta
import pytest, torch
import torch.distributed as dist

pytestmark = pytest.mark.multihost(ranks=4, backend="gloo", timeout=60)

@pytest.fixture(params=["disaster", "aftermath"])
def is_disaster(request):
    return request.param == "disaster"

def meet(group=None):
    total = torch.ones(1)
    dist.all_reduce(total, group=group)
    assert total.item() == 4

def test_killed(world, is_disaster):
    meet()
    if is_disaster and world.rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    meet()

def test_exits(world, is_disaster):
    meet()
    if is_disaster and world.rank == 0:
        os._exit(3)
    meet()

def test_raises(world, is_disaster):
    meet()
    if is_disaster and world.rank == 1:
        raise ValueError("bad shard")
    meet()

def test_late(world, is_disaster):
    group = dist.new_group(timeout=timedelta(seconds=1 if is_disaster else 60))
    meet(group)
    if is_disaster and world.rank == 0:
        time.sleep(300)
    meet(group)

def test_late_for_the_store(world, is_disaster):
    if is_disaster and world.rank == 3:
        time.sleep(300)
    dist.new_group(timeout=timedelta(seconds=1 if is_disaster else 60))

def test_late_for_a_wait(world, is_disaster):
    meet()
    if is_disaster and world.rank == 1:
        time.sleep(300)
    work = dist.all_reduce(torch.ones(1), async_op=True)
    work.wait(timedelta(seconds=1 if is_disaster else 60))

def test_returns(world, is_disaster):
    group = dist.new_group(timeout=timedelta(seconds=1 if is_disaster else 60))
    meet(group)
    if is_disaster and world.rank == 3:
        return
    meet(group)

@pytest.mark.multihost(backend="none")
def test_host_of_the_store_killed(world, is_disaster):
    dist.init_process_group("gloo")
    meet()
    if is_disaster and world.rank == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.new_group()
    dist.distributed_c10d._get_default_store().set(f"from {world.rank}", "done")
"""

ON_JAX = """
import os, signal
import jax, pytest
import jax.numpy as jnp
from jax._src.distributed import global_state
from jax.experimental import multihost_utils

pytestmark = pytest.mark.multihost(ranks=4, backend="jax", timeout=60)

@pytest.fixture(params=["disaster", "aftermath"])
def is_disaster(request):
    return request.param == "disaster"

def meet():
    assert multihost_utils.process_allgather(jnp.ones(1)).sum() == 4

def test_killed(world, is_disaster):
    meet()
    if is_disaster and world.rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    meet()

def test_killed_before_all_were_connected(world, is_disaster):
    if is_disaster and world.rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    meet()

def test_killed_while_the_others_are_in_a_barrier(world, is_disaster):
    if is_disaster and world.rank == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    global_state.client.wait_at_barrier("here", 100_000)

def test_coordinator_killed(world, is_disaster):
    meet()
    if is_disaster and world.rank == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    meet()

def test_raises(world, is_disaster):
    meet()
    if is_disaster and world.rank == 1:
        raise ValueError("bad shard")
    meet()

def test_coordinator_raises(world, is_disaster):
    meet()
    if is_disaster and world.rank == 0:
        raise ValueError("bad shard")
    meet()
"""


SOURCES = {"gloo": ON_GLOO, "jax": ON_JAX}


@dataclass(frozen=True)
class Disaster:
    """What happens in a world and what is to be found.

    Attributes:
        backend: The backend of the run that it is part of.
        test: The test's name.
        victim: The rank that goes wrong.
        outcome: The world's outcome.
        of_victim: The outcome of the rank that goes wrong.
        headline: What the short summary says, from the first rank that it names.
    """

    backend: str
    test: str
    victim: int
    outcome: str
    of_victim: str
    headline: str

    def __str__(self) -> str:
        return f"{self.backend}-{self.test}"


DISASTERS = [
    Disaster("gloo", "killed", 2, "crashed", "crashed", "rank 2: was killed by SIGKILL"),
    Disaster("gloo", "exits", 0, "crashed", "crashed", "rank 0: exited with code 3"),
    Disaster("gloo", "raises", 1, "failed", "failed", "rank 1: ValueError: bad shard"),
    Disaster("gloo", "late", 0, "hung", "hung", "rank 0 never reached"),
    Disaster("gloo", "late_for_the_store", 3, "hung", "hung", "rank 3"),
    Disaster("gloo", "late_for_a_wait", 1, "hung", "hung", "rank 1"),
    Disaster("gloo", "returns", 3, "hung", "passed", "rank 3 returned from the test"),
    Disaster(
        *("gloo", "host_of_the_store_killed", 0, "crashed", "crashed"),
        headline="rank 0: was killed by SIGKILL",
    ),
    Disaster("jax", "killed", 2, "crashed", "crashed", "rank 2: was killed by SIGKILL"),
    Disaster(
        *("jax", "killed_before_all_were_connected", 2, "crashed", "crashed"),
        headline="rank 2: was killed by SIGKILL",
    ),
    Disaster(
        *("jax", "killed_while_the_others_are_in_a_barrier", 3, "crashed", "crashed"),
        headline="rank 3: was killed by SIGKILL",
    ),
    Disaster("jax", "coordinator_killed", 0, "crashed", "crashed", "rank 0: was killed by SIGKILL"),
    Disaster("jax", "raises", 1, "failed", "failed", "rank 1: ValueError: bad shard"),
    Disaster("jax", "coordinator_raises", 0, "failed", "failed", "rank 0: ValueError: bad shard"),
]


@dataclass(frozen=True)
class Run:
    """A finished run of pytest: its output, and its verdicts by test."""

    output: str
    verdicts: Mapping[str, Mapping[str, Any]]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Run]:
    """One run per backend, made when it is first asked for."""
    return _Runs(tmp_path_factory)


class _Runs(dict[str, Run]):
    def __init__(self, factory: pytest.TempPathFactory) -> None:
        self._factory = factory

    def __missing__(self, backend: str) -> Run:
        path = self._factory.mktemp(backend)
        (path / "pytest.ini").write_text("[pytest]\n")
        (path / "test_disasters.py").write_text(SOURCES[backend])
        self[backend] = _run(path)
        return self[backend]


def _run(path: Path) -> Run:
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "COLUMNS": "160"}
    finished = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "multihost_hangs"],
        cwd=path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=100,
        check=False,
        text=True,
    )
    print(finished.stdout)
    skip_if_missing(finished.stdout)
    lines = (path / ".pytest_multihost" / "verdicts.jsonl").read_text().splitlines()
    found = [json.loads(line) for line in lines]
    return Run(finished.stdout, {each["nodeid"].rpartition("::test_")[2]: each for each in found})


@pytest.fixture(params=DISASTERS, ids=str)
def disaster(request: pytest.FixtureRequest) -> Disaster:
    """Each disaster."""
    found: Disaster = request.param
    return found


def test_the_outcome_tells_cause_from_consequence(
    runs: Mapping[str, Run], disaster: Disaster
) -> None:
    """One rank is to blame, and all that befell the others is collateral."""
    verdict = runs[disaster.backend].verdicts[f"{disaster.test}[disaster]"]
    outcomes = {each["rank"]: each["outcome"] for each in verdict["rank_results"]}

    assert (verdict["status"], verdict["outcome"]) == ("failed", disaster.outcome)
    assert outcomes == dict.fromkeys(range(4), "collateral") | {disaster.victim: disaster.of_victim}


def test_the_short_summary_names_the_rank_and_what_it_did(
    runs: Mapping[str, Run], disaster: Disaster
) -> None:
    """Who reads one line only is not sent to a rank that only lost another."""
    word = "HUNG" if disaster.outcome == "hung" else "FAILED"
    start = f"{word} test_disasters.py::test_{disaster.test}[disaster] - "
    lines = runs[disaster.backend].output.splitlines()
    line = next(line.removeprefix(start) for line in lines if line.startswith(start))

    first = re.findall(r"ranks? [\d,-]+", line)[0]
    assert disaster.headline.startswith(first), line
    assert disaster.headline in line


def test_the_reason_of_the_verdict_names_nobody_else_first(
    runs: Mapping[str, Run], disaster: Disaster
) -> None:
    """Why the harness ended the world is told from the cause, not from who complained first."""
    reason = runs[disaster.backend].verdicts[f"{disaster.test}[disaster]"]["reason"]

    assert reason is None or re.findall(r"ranks? ([\d,-]+)", reason)[0] == str(disaster.victim)


def test_the_aftermath_of_a_disaster_passes(runs: Mapping[str, Run], disaster: Disaster) -> None:
    """No rank, port, file or lock of the world before is in the way of the next."""
    verdict = runs[disaster.backend].verdicts[f"{disaster.test}[aftermath]"]

    assert (verdict["status"], verdict["outcome"]) == ("passed", "passed")
