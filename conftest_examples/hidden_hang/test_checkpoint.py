import pytest
import torch
from checkpoint import save, save_together


@pytest.mark.multihost(backend="gloo", timeout=60)
def test_save(world, shared_tmp_path):
    path = shared_tmp_path / "weights.pt"
    save(torch.arange(3.0), path)
    assert path.exists()


@pytest.mark.multihost(backend="gloo", timeout=60)
def test_save_together(world, shared_tmp_path):
    path = shared_tmp_path / "weights.pt"
    save_together(torch.arange(3.0), path)
    assert path.exists()
