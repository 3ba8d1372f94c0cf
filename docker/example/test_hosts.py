"""What a world of four containers is: four hosts with names and addresses of their own."""

import socket

import pytest


@pytest.mark.multihost(ranks=4, backend="none")
def test_every_rank_is_on_a_host_of_its_own(world):
    names = world.gather(socket.gethostname())
    assert names == ["host-0", "host-1", "host-2", "host-3"]
    addresses = world.gather(socket.gethostbyname(names[world.rank]))
    assert len(set(addresses)) == world.size


@pytest.mark.multihost(ranks=4, backend="none")
def test_they_reach_each_other(world):
    with socket.create_server(("0.0.0.0", 7000)) as listening:
        world.barrier("listening")
        to = f"host-{(world.rank + 1) % world.size}"
        with socket.create_connection((to, 7000), timeout=10) as outgoing:
            outgoing.sendall(bytes([world.rank]))
        incoming, _ = listening.accept()
        with incoming:
            assert incoming.recv(1)[0] == (world.rank - 1) % world.size


@pytest.mark.multihost(ranks=4)
def test_they_reduce(world):
    if world.backend not in ("gloo", "nccl"):
        pytest.skip("needs torch: PYTEST_MULTIHOST_BACKEND=gloo, or compose.gpu.yaml")
    import torch

    ones = torch.ones(3, device="cuda" if world.backend == "nccl" else "cpu")
    torch.distributed.all_reduce(ones)
    assert ones.tolist() == [4.0] * 3
