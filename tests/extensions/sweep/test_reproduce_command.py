"""`multihost reproduce`: the script that it writes, and what it does not write."""

from __future__ import annotations

import re
import subprocess
import sys

from runtimes import needs


@needs("torch")
def test_a_script_of_torchrun_shows_the_weakness_without_the_plugin(run_worlds) -> None:
    """It is run before it is written; the issue quotes what it has printed."""
    worlds = run_worlds(
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
    )
    result = worlds.directory("test_it") / "sweep.json"
    named = re.search(r"--multihost-replay (\S+)", worlds.stdout)
    assert result.exists()
    assert named is not None
    run = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest_multihost.core.command.main",
            "reproduce",
            named[1],
            "--yes",
        ],
        cwd=worlds.path,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.splitlines() == ["reproduce_test_it.py", "issue.md"]
    script = (worlds.path / "reproduce_test_it.py").read_text()
    assert "OSError(errno.ENOSPC" in script
    assert "OSError: [Errno 28]" in (worlds.path / "issue.md").read_text()
