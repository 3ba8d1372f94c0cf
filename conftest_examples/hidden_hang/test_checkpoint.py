import pytest
import torch
import torch.distributed as dist
from checkpoint import save, save_together


@pytest.mark.multihost(backend="gloo", timeout=60)
def test_save(world, shared_tmp_path):
    save(torch.arange(3.0), shared_tmp_path / "weights.pt")
    dist.all_reduce(torch.ones(1))  # the next step of the training


@pytest.mark.multihost(backend="gloo", timeout=60)
def test_save_together(world, shared_tmp_path):
    reason = save_together(torch.arange(3.0), shared_tmp_path / "weights.pt")
    if reason is not None:
        print("not saved:", reason)
    dist.all_reduce(torch.ones(1))
