"""Rendezvous that one rank is late for, and that completes."""

from __future__ import annotations

import time
from datetime import timedelta

import torch.distributed as dist
from expectation import innocent
from hang_elastic import make_handler
from torch.distributed.elastic.utils.store import barrier

LATE_S = 3.0


@innocent(ranks=3, backend="none")
def test_one_node_joins_the_elastic_rendezvous_late(world, shared_tmp_path) -> None:
    """The agents of the other nodes wait for it."""
    time.sleep(LATE_S * (world.rank == 2))
    handler = make_handler(world, shared_tmp_path)
    assert handler.next_rendezvous().world_size == world.size


@innocent(ranks=3, backend="none")
def test_one_agent_is_late_for_the_exit_barrier(world, shared_tmp_path) -> None:
    """The others wait in the store for the last member."""
    store = dist.FileStore(str(shared_tmp_path / "store"), world.size)
    time.sleep(LATE_S * (world.rank == 1))
    barrier(store, world.size, "torchelastic/exit", barrier_timeout=1800)


@innocent(ranks=3, backend="none")
def test_one_rank_is_late_for_the_process_group(world, shared_tmp_path) -> None:
    """The others wait in the store for its address."""
    time.sleep(LATE_S * (world.rank == 1))
    dist.init_process_group(
        "gloo",
        init_method=f"file://{shared_tmp_path}/store",
        rank=world.rank,
        world_size=world.size,
        timeout=timedelta(minutes=30),
    )
    dist.destroy_process_group()


@innocent(ranks=2, backend="none")
def test_one_rank_is_late_for_the_process_group_over_tcp(world, shared_tmp_path) -> None:
    """The host of the store comes last."""
    if world.is_primary:
        time.sleep(LATE_S)
        store = dist.TCPStore("localhost", 0, world.size, is_master=True, wait_for_workers=False)
        (shared_tmp_path / "port.new").write_text(str(store.port))
        (shared_tmp_path / "port.new").rename(shared_tmp_path / "port")
        store.wait(["done"])
        return
    while not (shared_tmp_path / "port").exists():
        time.sleep(0.05)
    port = int((shared_tmp_path / "port").read_text())
    store = dist.TCPStore("localhost", port, world.size, is_master=False)
    time.sleep(LATE_S)
    store.set("done", "1")


@innocent(ranks=3, backend="none")
def test_the_host_of_the_store_is_late(world) -> None:
    """The others may sleep for 20 s before they try to connect again, while it waits for them."""
    time.sleep(LATE_S * world.is_primary)
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    dist.destroy_process_group()


@innocent(ranks=3, backend="none")
def test_the_rendezvous_goes_on_without_the_last_node(world, shared_tmp_path) -> None:
    """Two nodes are enough, after a last call of five seconds; the third does something else."""
    if world.rank == 2:
        store = dist.FileStore(str(shared_tmp_path / "done"), world.size)
        store.wait(["done"], timedelta(minutes=30))
        return
    handler = make_handler(world, shared_tmp_path, least=2, last_call_timeout=5)
    assert handler.next_rendezvous().world_size == 2
    dist.FileStore(str(shared_tmp_path / "done"), world.size).set("done", "1")
