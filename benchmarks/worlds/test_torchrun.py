"""Collected and run by every rank that torchrun starts; the group stays for the whole run."""

import pytest
import torch.distributed as dist
import work


@pytest.fixture(scope="session")
def size():
    dist.init_process_group("gloo")
    yield dist.get_world_size()
    dist.destroy_process_group()


def test_one(tmp_path, size, value):
    assert work.work(size, value) == size * value
