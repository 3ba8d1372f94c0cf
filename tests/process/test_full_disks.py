"""A full disk of temporary files or artifacts is called so."""

from __future__ import annotations

import subprocess
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


@pytest.mark.parametrize("left", [4, 24])
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
