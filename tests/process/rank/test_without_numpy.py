"""torch can be installed without numpy: values of ranks are compared and sent all the same."""

from __future__ import annotations

import subprocess
import sys

from runtimes import needs

PROGRAM = """
import sys
sys.modules["numpy"] = None  # an import raises, as if it were not installed
import pytest, torch

@pytest.mark.multihost(ranks=3, backend="simulated")
def test_it(world):
    import torch.distributed as dist
    x = torch.ones(3, dtype=torch.bfloat16) * world.rank
    dist.all_reduce(x)
    assert x.tolist() == [3.0] * 3
    world.same("x", x)
    parts = [torch.zeros(2) for _ in range(3)]
    dist.all_gather(parts, torch.ones(4)[::2] * world.rank)
    assert [each[0].item() for each in parts] == [0.0, 1.0, 2.0]
    assert sys.modules["numpy"] is None
"""


@needs("torch")
def test_tensors_are_sent_and_compared_without_numpy(tmp_path) -> None:
    """The README's command installs torch, which does not need it."""
    (tmp_path / "test_it.py").write_text(PROGRAM)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "multihost_hangs", "test_it.py"]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env={"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert "1 passed" in done.stdout, done.stdout + done.stderr
