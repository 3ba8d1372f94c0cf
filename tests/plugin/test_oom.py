"""Ranks for which there is not enough memory, where a memory cgroup can be written."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_multihost import faults
from pytest_multihost.core.registry import new_plugin_manager
from pytest_multihost.faults.kind import kinds_by_name

PRESSURE = kinds_by_name(new_plugin_manager().hook.pytest_multihost_faults())["memory_pressure"]
LACKING = PRESSURE.lacking(faults.memory_pressure(rank=0, oom_kill=True))


def groups() -> list[Path]:
    """Return the cgroups of ranks."""
    return list(Path("/sys/fs/cgroup").glob("**/multihost-*"))


SOURCE = """
import pytest
from pytest_multihost import at, faults

@pytest.mark.multihost(ranks=2, timeout=30, faults=[
    faults.memory_pressure(rank=1, headroom_mb=32, oom_kill=True, at=at.sync_point("x"))])
def test_killed(world):
    world.sync_point("x")
    if world.rank == 1:
        bytearray(500 << 20)
    assert world.rank == 0

@pytest.mark.multihost(ranks=2, timeout=30, faults=[
    faults.memory_pressure(rank=1, headroom_mb=300, oom_kill=True, at=at.sync_point("x"))])
def test_has_enough(world):
    world.sync_point("x")
    bytearray(20 << 20)
"""


@pytest.mark.skipif(LACKING is not None, reason=str(LACKING))
def test_the_kernel_kills_a_rank_and_its_group_is_removed(run_worlds) -> None:
    """The rank is gone and cannot do it itself; one that had enough leaves its group."""
    worlds = run_worlds(SOURCE)
    worlds.run.assert_outcomes(passed=2)
    outcomes = {
        name: [each["outcome"] for each in verdict["rank_results"]]
        for name, verdict in worlds.verdicts.items()
    }
    assert outcomes["test_killed"] == ["passed", "killed_as_planned"]
    assert outcomes["test_has_enough"] == ["passed", "passed"]
    pids = {rank["pid"] for verdict in worlds.verdicts.values() for rank in verdict["rank_results"]}
    assert not {f"multihost-{pid}" for pid in pids} & {group.name for group in groups()}


@pytest.mark.skipif(LACKING is None, reason="a memory cgroup can be written here")
def test_without_a_cgroup_that_can_be_written_the_test_is_skipped(run_worlds) -> None:
    """With the reason."""
    worlds = run_worlds(SOURCE, "-rs")
    worlds.run.assert_outcomes(skipped=2)
    assert "memory_pressure(oom_kill=True): " in worlds.stdout


IN_A_GROUP = """
import os
from pathlib import Path

TOP = Path("/sys/fs/cgroup")
PARENT = TOP / "memory" if (TOP / "memory").is_dir() else TOP
GROUP = PARENT / f"memory-guard-{os.getpid()}"

def pytest_load_initial_conftests():
    GROUP.mkdir()
    limit = "memory.limit_in_bytes" if PARENT != TOP else "memory.max"
    (GROUP / limit).write_text(str(LIMIT_MB << 20))
    (GROUP / "cgroup.procs").write_text(str(os.getpid()))

def pytest_unconfigure():
    (PARENT / "cgroup.procs").write_text(str(os.getpid()))
    GROUP.rmdir()
"""

GREEDY = """
import time
import pytest

@pytest.mark.multihost(ranks=2, timeout=60)
def test_greedy(world):
    held = []
    while world.rank == 1:
        held.append(bytearray(1 << 20))
        time.sleep(0.05)
    world.barrier()

@pytest.mark.multihost(ranks=2, timeout=60)
def test_too_greedy(world):
    bytearray((world.rank == 1) * LIMIT_MB << 20)
    world.barrier()

@pytest.mark.multihost(ranks=2, timeout=60)
def test_modest(world):
    world.barrier()
"""


@pytest.mark.skipif(LACKING is not None, reason=str(LACKING))
def test_a_lack_of_memory_is_said_before_or_after_the_kernel_ends_a_process(
    run_worlds, pytester
) -> None:
    """With the memory of the rank that holds most; the next test has it again."""
    pytester.makepyfile(in_a_group=IN_A_GROUP.replace("LIMIT_MB", "320"))
    source = GREEDY.replace("LIMIT_MB", "320")
    worlds = run_worlds(source, "-p", "in_a_group", "-p", "no:randomly")
    worlds.run.assert_outcomes(passed=1, failed=1, errors=1)
    assert "the machine is about to run out of memory" in worlds.stdout
    assert "Rank 1 holds 0." in worlds.stdout
    assert "rank 1: was killed by SIGKILL in the test; the kernel ran out of" in worlds.stdout
