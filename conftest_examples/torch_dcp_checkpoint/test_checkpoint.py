import pytest
import torch
from checkpointing import load, save

from pytest_multihost import faults

pytestmark = pytest.mark.multihost(backend="gloo", timeout=60)

WEIGHTS = torch.arange(64.0).reshape(16, 4)


def check_that_it_comes_back(world, path, new_state):
    save(path, new_state(WEIGHTS))
    world.barrier("saved")
    assert (path / "COMPLETE").exists()
    back = new_state(torch.zeros(16, 4))
    load(path, back)
    assert torch.equal(back["weights"].full_tensor(), WEIGHTS)


def test_what_was_saved_comes_back(world, shared_tmp_path, new_state):
    check_that_it_comes_back(world, shared_tmp_path / "ckpt", new_state)


@pytest.mark.multihost(faults=[faults.slow_io(rank=1, seconds=0.05, path="*/ckpt/*.distcp*")])
def test_a_slow_disk_delays_the_marker_and_breaks_nothing(world, shared_tmp_path, new_state):
    check_that_it_comes_back(world, shared_tmp_path / "ckpt", new_state)
