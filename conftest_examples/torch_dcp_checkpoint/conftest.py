import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor


@pytest.fixture
def mesh(world):
    """All ranks of the world, side by side."""
    return init_device_mesh("cpu", (world.size,))


@pytest.fixture
def new_state(mesh):
    """Make a state whose weights are spread over the ranks."""

    def make(values):
        return {"weights": distribute_tensor(values, mesh, [Shard(0)]), "step": torch.tensor(0)}

    return make
