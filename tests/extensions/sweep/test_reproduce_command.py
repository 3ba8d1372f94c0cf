"""`multihost reproduce`: the script that it writes, and what it does not write."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from runtimes import needs

pytestmark = [
    needs("torch"),
    pytest.mark.program(
        """
        import pytest
        import torch.distributed as dist

        @pytest.mark.multihost(ranks=2, backend="gloo", timeout=30)
        def test_it(world, shared_tmp_path):
            if world.rank == 0:
                (shared_tmp_path / "checkpoint").mkdir()
            dist.barrier()
        """,
        "--multihost-sweep=fails",
    ),
]


def reproduce(worlds, *options: str) -> list[str]:
    """Reproduce the weakness that the sweep of `worlds` found; return what the command prints."""
    named = re.search(r"--multihost-replay (\S+)", worlds.stdout)
    assert named is not None
    command = [sys.executable, "-m", "pytest_multihost.core.command.main", "reproduce", named[1]]
    run = subprocess.run(
        [*command, "--yes", *options],
        cwd=worlds.path,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout.splitlines()


def test_a_script_of_torchrun_shows_the_weakness_without_the_plugin(worlds) -> None:
    """It is run before it is written; the issue quotes what it has printed."""
    assert reproduce(worlds) == ["reproduce_test_it.py", "issue.md"]
    script = (worlds.path / "reproduce_test_it.py").read_text()
    assert "OSError(errno.ENOSPC" in script
    assert "OSError: [Errno 28]" in (worlds.path / "issue.md").read_text()


def test_a_folder_for_the_files_need_not_exist(worlds) -> None:
    """It is made with those above it, and keeps only the two files."""
    written = ["new/folder/reproduce_test_it.py", "new/folder/issue.md"]
    assert reproduce(worlds, "--into", "new/folder") == written
    assert {each.name for each in (worlds.path / "new/folder").iterdir()} == {
        "reproduce_test_it.py",
        "issue.md",
    }
