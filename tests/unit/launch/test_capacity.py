"""How many ranks fit on a machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_multihost.core.launch.capacity import RANK_BYTES, Room, look, memory, require_room
from pytest_multihost.testing import LaunchError

AMPLE = Room(memory=1000 * RANK_BYTES, processes=None)


def test_ranks_that_fit_are_not_refused() -> None:
    """Up to the last one."""
    assert AMPLE.problem(1000) == ""


@pytest.mark.parametrize(
    ("room", "what"),
    [
        (Room(memory=100 * RANK_BYTES, processes=None), "0.8 GB of memory"),
        (Room(memory=1000 * RANK_BYTES, processes=100), "100 processes"),
    ],
)
def test_the_scarcest_resource_is_named_with_the_most_ranks_that_fit(room: Room, what: str) -> None:
    """So that the next try is right."""
    with pytest.raises(LaunchError, match="101 ranks do not fit on this machine") as refused:
        require_room(101, room)
    assert what in refused.value.seen
    assert "at most 100 ranks fit" in refused.value.seen


def test_a_crowd_that_fits_is_warned_of_with_the_most_ranks_that_fit() -> None:
    """Before the first rank starts; up to some ranks per core there is no warning."""
    assert AMPLE.warning(128, cores=2) == ""
    warning = AMPLE.warning(129, cores=2)
    assert "129 ranks share 2 cores" in warning
    assert "at most 1000 ranks fit" in warning


def test_this_machine_has_room_for_the_ranks_of_a_test() -> None:
    """The limits of its control group count, if it has any."""
    assert not look().problem(4)


@pytest.mark.parametrize(
    "files",
    [
        pytest.param(
            {
                "memory.max": "1000000",
                "memory.current": "900000",
                "memory.stat": "anon 400000\nactive_file 300000\ninactive_file 200000",
                "pids.max": "100",
                "pids.current": "60",
            },
            id="version 2",
        ),
        pytest.param(
            {
                "memory/memory.limit_in_bytes": "1000000",
                "memory/memory.usage_in_bytes": "900000",
                "memory/memory.stat": "total_active_file 300000\ntotal_inactive_file 200000",
                "pids/pids.max": "100",
                "pids/pids.current": "60",
            },
            id="version 1",
        ),
    ],
)
def test_the_limits_of_a_control_group_count(tmp_path: Path, files: dict[str, str]) -> None:
    """Without cached files, which the kernel drops."""
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert look(tmp_path) == Room(memory=600_000, processes=40)


@pytest.mark.parametrize("version", ["version 1", "version 2"])
@pytest.mark.parametrize("limited", ["job", "job/step"])
def test_the_limits_of_a_job_count_for_its_steps(
    tmp_path: Path, limited: str, version: str
) -> None:
    """Slurm, for example, puts a limit on a job, and each of its steps into a group below."""
    own = tmp_path / "own"
    own.write_text("3:cpu,memory:/job/step\n" if version == "version 1" else "0::/job/step\n")
    limit, used, top = (
        ("memory.limit_in_bytes", "memory.usage_in_bytes", tmp_path / "memory")
        if version == "version 1"
        else ("memory.max", "memory.current", tmp_path)
    )
    for folder in ("job", "job/step"):
        (top / folder).mkdir(parents=True)
        (top / folder / limit).write_text("1000000" if folder == limited else "9" * 18)
        (top / folder / used).write_text("400000")
        (top / folder / "memory.stat").write_text("")
    assert memory(tmp_path, own).available == 600_000


def test_a_group_that_only_the_host_sees_is_no_error(tmp_path: Path) -> None:
    """In a container the group's path is often that on the host; the root has its limits."""
    (tmp_path / "own").write_text("0::/docker/0123\n")
    (tmp_path / "memory.max").write_text("1000000")
    (tmp_path / "memory.current").write_text("400000")
    (tmp_path / "memory.stat").write_text("")
    assert memory(tmp_path, tmp_path / "own").available == 600_000


def test_a_control_group_without_limits_leaves_the_machine(tmp_path: Path) -> None:
    """The root group, for example, has no such files."""
    room = look(tmp_path)
    assert room.memory > 1 << 20
    assert room.processes is None
