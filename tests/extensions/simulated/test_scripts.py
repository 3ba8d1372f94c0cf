"""Scripts run on simulated ranks, forked from one process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.worlds

SCRIPT = """
import torch
import torch.distributed as dist

dist.init_process_group("nccl")
total = torch.ones(1)
dist.all_reduce(total)
if dist.get_rank() == 0:
    print("sum", total.item())
if dist.get_rank() % 4 == 1 and {is_wrong}:
    dist.all_reduce(total)
dist.barrier()
"""


@pytest.mark.parametrize("is_wrong", [False, True])
def test_a_script_runs_and_its_hang_is_told(tmp_path: Path, *, is_wrong: bool) -> None:
    """Under the name of NCCL, which this machine lacks."""
    (tmp_path / "train.py").write_text(SCRIPT.format(is_wrong=is_wrong))
    command = [str(Path(sys.executable).with_name("multihost")), "run"]
    command += ["--ranks", "8", "--backend", "simulated", "train.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "sum 8.0" in done.stdout
    assert (done.returncode != 0) == is_wrong
    assert ("ranks 1,5" in done.stdout) == is_wrong
