"""Large worlds take many open files, and the usual limit is small."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.worlds

PROGRAM = """
import resource
import pytest
import torch
import torch.distributed as dist

@pytest.mark.multihost(ranks=100, backend="simulated")
def test_sum(world):
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 100
    x = torch.ones(1)
    dist.all_reduce(x)
    assert x.item() == world.size
"""


def run_limited(path: Path, *, hard: int) -> str:
    """Run 100 ranks with 100 open files for a process; return what pytest prints.

    Args:
        hard: How far a process may raise that.
    """
    (path / "test_worlds.py").write_text(PROGRAM)
    (path / "pytest.ini").write_text("[pytest]\n")
    limit = f'ulimit -Sn 100; ulimit -Hn {hard}; exec "$@"'
    command = ["bash", "-c", limit, "bash", sys.executable, "-m", "pytest", "-p", "multihost_hangs"]
    done = subprocess.run(
        command,
        cwd=path,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    return " ".join((done.stdout + done.stderr).split())


def test_as_many_ranks_as_a_process_may_open_files(tmp_path: Path) -> None:
    """The harness raises its own limit; that of the ranks stays the user's."""
    assert "1 passed" in run_limited(tmp_path, hard=4096)


def test_a_world_beyond_the_hard_limit_is_refused_with_the_size_that_fits(tmp_path: Path) -> None:
    """Before a rank is started."""
    output = run_limited(tmp_path, hard=300)
    assert "100 ranks take 400 open files The hard limit of open files is 300." in output
    assert "Raise it (ulimit -Hn), or use at most 50 ranks." in output
