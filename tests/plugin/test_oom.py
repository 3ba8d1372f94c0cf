"""A rank that the kernel kills for its memory, where a memory cgroup can be written."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_multihost import faults
from pytest_multihost.core.nemesis import BUILT_IN_KINDS, kinds_by_name

PRESSURE = kinds_by_name([BUILT_IN_KINDS])["memory_pressure"]
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
