"""What the control groups of a process leave."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from pytest_multihost.core.launch.capacity import Room, look
from pytest_multihost.core.launch.control_groups import ControlGroups

GB = 1 << 30


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
    assert look(ControlGroups(tmp_path)) == Room(memory=600_000, processes=40)


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
    assert ControlGroups(tmp_path, own).memory().available == 600_000


def test_a_group_that_only_the_host_sees_is_no_error(tmp_path: Path) -> None:
    """In a container the group's path is often that on the host; the root has its limits."""
    (tmp_path / "own").write_text("0::/docker/0123\n")
    (tmp_path / "memory.max").write_text("1000000")
    (tmp_path / "memory.current").write_text("400000")
    (tmp_path / "memory.stat").write_text("")
    assert ControlGroups(tmp_path, tmp_path / "own").memory().available == 600_000


@pytest.mark.parametrize("limit", ["max", "9223372036854771712"])
def test_a_limit_above_the_memory_of_the_machine_counts_for_nothing(
    tmp_path: Path, limit: str
) -> None:
    """Version 1 writes its highest number where there is no limit; what is used is not read."""
    (tmp_path / "memory.max").write_text(limit)
    (tmp_path / "memory.current").write_text("9223372036854771711")
    (tmp_path / "memory.stat").write_text("")
    found = ControlGroups(tmp_path).memory()
    assert found.total == psutil.virtual_memory().total


def test_a_control_group_without_limits_leaves_the_machine(tmp_path: Path) -> None:
    """The root group, for example, has no such files."""
    room = look(ControlGroups(tmp_path))
    assert room.memory > 1 << 20
    assert room.processes is None


@pytest.mark.parametrize(("most", "left"), [("0", 0), ("1000", 1000)])
def test_a_group_that_may_not_swap_has_no_swap_space(tmp_path: Path, most: str, left: int) -> None:
    """Although the machine has; that is usual in Kubernetes."""
    files = {"memory.max": 1_000_000, "memory.current": 900_000, "memory.stat": ""}
    swap = {"memory.swap.max": most, "memory.swap.current": 0}
    for name, content in {**files, **swap}.items():
        (tmp_path / name).write_text(str(content))
    assert ControlGroups(tmp_path, free_swap=lambda: GB).memory().swap == left


def test_memory_and_swap_space_are_limited_together_in_version_1(
    tmp_path: Path,
) -> None:
    """What memory leaves is no swap space."""
    files = {
        "limit_in_bytes": 1_000_000,
        "usage_in_bytes": 900_000,
        "memsw.limit_in_bytes": 1_200_000,
        "memsw.usage_in_bytes": 900_000,
        "stat": "",
    }
    (tmp_path / "memory").mkdir()
    for name, content in files.items():
        (tmp_path / "memory" / f"memory.{name}").write_text(str(content))
    assert ControlGroups(tmp_path, free_swap=lambda: GB).memory().swap == 200_000


@pytest.mark.parametrize(
    "file", ["memory.events", "memory/memory.oom_control"], ids=["version 2", "version 1"]
)
def test_only_kills_in_the_own_group_count(tmp_path: Path, file: str) -> None:
    """Another container of the machine may lack memory, too."""
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text("under_oom 0\noom_kill 7\n")
    assert ControlGroups(tmp_path, tmp_path / "none").oom_kills() == 7


def test_without_such_a_group_the_kills_of_the_machine_count(tmp_path: Path) -> None:
    """The root group of version 2 has no events."""
    assert ControlGroups(tmp_path, tmp_path / "none").oom_kills() >= 0


def test_files_that_hold_no_number_limit_nothing(tmp_path: Path) -> None:
    """Nor do they end the run: the machine's own memory counts."""
    names = ("memory.max", "memory.current", "memory.stat", "pids.max", "pids.current")
    for name in (*names, "memory.events", "memory.swap.max", "memory.swap.current"):
        (tmp_path / name).write_bytes(b"oom_kill x\xff\nmax nan")
    groups = ControlGroups(root=tmp_path, own=tmp_path / "none")
    assert groups.memory().total > 0
    assert groups.processes_left() is None
    assert groups.oom_kills() >= 0
