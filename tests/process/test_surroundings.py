"""Surroundings that a run gets from others: a full disk, ignored signals, a new folder."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from runs import start_pytest

WITH_SERVER = """
import pytest

@pytest.mark.multihost(ranks=2, backend="none", timeout=60, env={"A": "1"})
def test_a(world):
    world.barrier()
"""


def test_a_server_starts_on_a_full_disk_of_artifacts(tmp_path: Path) -> None:
    """What it would write into its log is dropped; the test passes."""
    folder = tmp_path / ".pytest_multihost"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=8k", "tmpfs", str(folder)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small disk is not allowed here")
    try:
        with start_pytest(tmp_path, WITH_SERVER, "-p", "no:cacheprovider") as run:
            output, _ = run.communicate(timeout=100)
    finally:
        subprocess.run(["umount", str(folder)], check=True)
    assert "1 passed" in output
    assert "could not be written" in output


def test_a_new_folder_of_artifacts_elsewhere_moves_no_root(tmp_path: Path) -> None:
    """The server, which starts when the folder exists, has pytest's rootdir and test ids."""
    project = tmp_path / "project"
    project.mkdir()
    new = str(tmp_path / "new" / "folder")
    with start_pytest(project, WITH_SERVER, "--multihost-artifacts", new) as run:
        output, _ = run.communicate(timeout=100)
    assert "1 passed" in output


def test_a_starter_that_ignores_sigchld_does_no_harm(tmp_path: Path) -> None:
    """The kernel would forget ended children before anybody could wait for them."""
    (tmp_path / "test_a.py").write_text(WITH_SERVER)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-q"],
        cwd=tmp_path,
        preexec_fn=lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN),
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert (ended.returncode, "Traceback" in ended.stdout + ended.stderr) == (0, False)


@pytest.mark.shared
@pytest.mark.program(
    """
    import pytest

    @pytest.mark.multihost(ranks=2, backend="none", timeout=60)
    def test_a(world):
        with pytest.raises(ValueError, match="rank=99.*the ranks are 0 to 1"):
            world.breakpoint(rank=99)
    """
)
def test_a_rank_that_does_not_exist_cannot_stop(worlds) -> None:
    """Silence would look as if nothing had reached the line."""
    worlds.run.assert_outcomes(passed=1)
