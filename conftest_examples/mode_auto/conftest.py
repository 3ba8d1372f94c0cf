import pytest
import torch.distributed as dist


@pytest.fixture(scope="session")
def process_group():
    """The job's process group, as torchrun has arranged it."""
    dist.init_process_group("gloo")
    yield dist.group.WORLD
    dist.destroy_process_group()
