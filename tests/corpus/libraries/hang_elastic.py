"""Rendezvous: of torch's elastic agents, and of init_process_group."""

from __future__ import annotations

import os
import time
from datetime import timedelta

import torch.distributed as dist
from expectation import hang
from mishaps import FOREVER_S
from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousParameters
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import create_backend
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import create_handler
from torch.distributed.elastic.utils.store import barrier


def make_handler(world, path, least: int = 0, **timeouts: int) -> RendezvousHandler:
    """Return the handler with which one agent per rank meets the others, or `least` of them."""
    parameters = RendezvousParameters(
        "c10d",
        str(path / "rendezvous"),
        "run",
        least or world.size,
        world.size,
        store_type="file",
        rank=world.rank,
        join_timeout=1800,
        **timeouts,
    )
    backend, store = create_backend(parameters)
    return create_handler(store, backend, parameters)


@hang(
    "straggler",
    ranks=3,
    backend="none",
    culprits=[2],
    waiting=[0, 1],
    where="time.sleep(FOREVER_S)",
)
def test_one_node_never_joins_the_elastic_rendezvous(world, shared_tmp_path) -> None:
    """Agents of three nodes rendezvous; one is still elsewhere.

    Source: https://github.com/pytorch/pytorch/issues/147064
    """
    if world.rank == 2:
        time.sleep(FOREVER_S)
    make_handler(world, shared_tmp_path).next_rendezvous()


@hang(
    "finished",
    ranks=3,
    backend="none",
    culprits=[1],
    waiting=[0, 2],
    waits_at="barrier(store",
)
def test_one_agent_leaves_without_the_exit_barrier(world, shared_tmp_path) -> None:
    """Agents wait for each other at the end, and one has gone.

    Source: https://github.com/pytorch/pytorch/issues/67616
    """
    store = dist.FileStore(str(shared_tmp_path / "store"), world.size)
    if world.rank == 1:
        return
    barrier(store, world.size, "torchelastic/exit", barrier_timeout=1800)


@hang(
    "straggler",
    ranks=3,
    backend="none",
    culprits=[1],
    waiting=[0, 2],
    where="time.sleep(FOREVER_S)",
)
def test_one_rank_is_late_for_init_process_group(world, shared_tmp_path) -> None:
    """The others wait in the store for its address.

    Source: https://github.com/pytorch/pytorch/issues/123678
    """
    if world.rank == 1:
        time.sleep(FOREVER_S)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{shared_tmp_path}/store",
        rank=world.rank,
        world_size=world.size,
        timeout=timedelta(minutes=30),
    )


@hang(
    "straggler",
    ranks=3,
    backend="none",
    culprits=[0],
    waiting=[1, 2],
    where="time.sleep(FOREVER_S)",
)
def test_the_host_of_the_store_never_comes(world) -> None:
    """The others try again and again to connect to it, ever more seldom.

    Source: https://github.com/pytorch/pytorch/issues/123678
    """
    if world.is_primary:
        time.sleep(FOREVER_S)
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))


@hang(
    "straggler",
    ranks=3,
    backend="none",
    culprits=[2],
    waiting=[0],
    where="time.sleep(FOREVER_S)",
)
def test_the_host_of_a_store_waits_for_all_clients(world) -> None:
    """One of them has come, and does something else since.

    Source: https://github.com/pytorch/pytorch/issues/123678
    """
    if world.rank == 2:
        time.sleep(FOREVER_S)
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    long = timedelta(minutes=30)
    dist.TCPStore(address, port, world.size, is_master=world.is_primary, timeout=long)
    time.sleep(FOREVER_S)
