"""When a world is ended because memory runs out."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping

import pytest

from pytest_multihost.core.launch.control_groups import ControlGroups, FreeMemory
from pytest_multihost.core.launch.memory_guard import MemoryGuard, require_memory
from pytest_multihost.testing import LaunchError

GB, MB = 10**9, 10**6


def problem(left: FreeMemory, pids: Mapping[int, int] | None = None) -> str:
    """Return what was seen if the world is ended; empty if it goes on."""
    try:
        require_memory(left, pids or {})
    except LaunchError as error:
        return error.seen
    return ""


@pytest.mark.parametrize(
    "left",
    [
        pytest.param(FreeMemory(300 * MB, 16 * GB), id="enough"),
        pytest.param(FreeMemory(20 * MB, 512 * MB), id="little in a small container"),
        pytest.param(FreeMemory(1 * MB, 16 * GB, swap=GB), id="there is swap space"),
    ],
)
def test_a_world_goes_on_while_memory_is_left(left: FreeMemory) -> None:
    """Also on a small machine, and on one that can swap."""
    assert problem(left) == ""


@pytest.mark.parametrize("total", [512 * MB, 16 * GB])
def test_a_world_is_ended_before_the_last_memory_is_used(total: int) -> None:
    """With what is left, in the user's units."""
    assert problem(FreeMemory(5 * MB, total)) == f"5 MB of {total / 1e9:.1f} GB are left."


def test_the_rank_that_holds_by_far_the_most_is_named() -> None:
    """Often one rank loads all, and the others a part of it."""
    most = ControlGroups().memory().total  # more than any process holds
    small = [subprocess.Popen(["sleep", "60"]) for _ in range(2)]
    try:
        pids = {0: small[0].pid, 1: os.getpid(), 2: small[1].pid}
        assert "Rank 1 holds" in problem(FreeMemory(0, most), pids)
        for alike in ({0: os.getpid(), 1: os.getpid()}, {0: os.getpid()}, {0: 2**22, 1: 2**22}, {}):
            assert "holds" not in problem(FreeMemory(0, most), alike)
    finally:
        for each in small:
            each.kill()
            each.wait()


def test_the_machine_is_not_looked_at_in_every_turn() -> None:
    """A turn takes less time than a look."""
    looks = []
    guard = MemoryGuard(look=lambda: looks.append(1) or FreeMemory(GB, GB))
    for _ in range(100):
        guard.check()
    assert len(looks) <= 1
