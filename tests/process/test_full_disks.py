"""A full disk of temporary files or artifacts is called so, and full shared memory."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from runs import start_pytest

SOURCE = """
import pytest

@pytest.mark.multihost(ranks=2)
def test_it(world, tmp_path):
    world.barrier("one")
"""


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A disk of a megabyte."""
    folder = tmp_path / "small"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small disk is not allowed here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.parametrize("left", [4, 24, 64])
def test_a_full_disk_of_temporary_files_is_named(tmp_path: Path, small: Path, left: int) -> None:
    """With the file that did not fit, and not as a lost connection."""
    (small / "fill").write_bytes(bytes((1024 - left) << 10))
    with start_pytest(tmp_path, SOURCE, "-q", TMPDIR=str(small), COLUMNS="300") as run:
        output, _ = run.communicate(timeout=100)
    assert run.returncode == 1
    assert f"No space left on device: '{small}" in output
    assert "lost its connection" not in output


@pytest.mark.parametrize("left", [4, 12])
def test_a_full_disk_of_artifacts_is_named(tmp_path: Path, small: Path, left: int) -> None:
    """The world runs, or says what did not fit; nothing is said to be lost."""
    artifacts = small / "artifacts"
    artifacts.mkdir()
    (small / "fill").write_bytes(bytes((1024 - left) << 10))
    options = ("-q", f"--multihost-artifacts={artifacts}")
    with start_pytest(tmp_path, SOURCE, *options, COLUMNS="300") as run:
        output, _ = run.communicate(timeout=100)
    assert "No space left on device" in output
    assert str(small) in output
    assert "lost its connection" not in output


SHARED = "/dev/shm"  # noqa: S108 - its own, in a mount namespace
WRITES = """
import pytest
from multiprocessing.shared_memory import SharedMemory

@pytest.mark.multihost(ranks=2)
def test_it(world):
    if world.rank == 1:
        memory = SharedMemory(create=True, size=SIZE)
        for at in range(0, SIZE, 4096):
            memory.buf[at] = 1
        memory.unlink()
        import os, signal
        os.kill(os.getpid(), signal.SIGBUS)
    world.barrier("one")
"""


@pytest.mark.parametrize(
    ("space", "size", "is_full"),
    [("1m", 4 << 20, True), ("1m", 1 << 16, False), ("0", 1 << 16, False)],
    ids=["full", "with space left", "without a bound"],
)
def test_full_shared_memory_is_named_where_a_rank_dies_of_it(
    tmp_path: Path, space: str, size: int, is_full: bool
) -> None:
    """With space left, nothing is said of it: another fault has raised SIGBUS."""
    (tmp_path / "test_worlds.py").write_text(WRITES.replace("SIZE", str(size)))
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    pytest_here = f"{sys.executable} -m pytest -p multihost_hangs -q"
    mounted = f"mount -t tmpfs -o size={space} tmpfs {SHARED} && exec {pytest_here}"
    done = subprocess.run(
        ["unshare", "--mount", "--map-root-user", "sh", "-c", mounted],
        cwd=tmp_path,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "COLUMNS": "300"},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    died = "CRASHED  rank 1: was killed by SIGBUS in the test"
    assert died in done.stdout, done.stdout + done.stderr
    assert (f"{died}; {SHARED} was full" in done.stdout) == is_full
