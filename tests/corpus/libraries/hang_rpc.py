"""torch.distributed.rpc: a partner that does not come or cannot answer."""

from __future__ import annotations

import time

import torch
from expectation import hang
from mishaps import FOREVER_S
from torch.distributed import rpc


def init(world, store_path, threads: int = 4) -> None:
    """Join all ranks' RPC under the names worker0, worker1, ..."""
    rpc.init_rpc(
        f"worker{world.rank}",
        rank=world.rank,
        world_size=world.size,
        rpc_backend_options=rpc.TensorPipeRpcBackendOptions(
            num_worker_threads=threads,
            rpc_timeout=0,
            init_method=f"file://{store_path}/rpc",
        ),
    )


def sleep_long() -> None:
    """Never answer."""
    time.sleep(FOREVER_S)


def answer() -> str:
    """Answer at once."""
    return "here"


def call_back(name: str) -> str:
    """Call the caller from within its call, when both are in one."""
    time.sleep(0.5)
    return rpc.rpc_sync(name, answer)


@hang("deadlock", ranks=2, backend="none", waits_at="rpc.rpc_sync(")
def test_nested_calls_use_up_the_only_thread(world, shared_tmp_path) -> None:
    """Each rank's only RPC thread waits for an answer of the other's only RPC thread.

    Source: https://github.com/pytorch/pytorch/issues/33208
    """
    init(world, shared_tmp_path, threads=1)
    other = f"worker{1 - world.rank}"
    rpc.rpc_sync(other, call_back, args=(f"worker{world.rank}",))


@hang(
    "straggler",
    ranks=3,
    backend="none",
    culprits=[2],
    waiting=[0, 1],
    where="time.sleep(FOREVER_S)",
)
def test_one_rank_never_enters_the_shutdown(world, shared_tmp_path) -> None:
    """rpc.shutdown waits for all workers.

    Source: https://github.com/pytorch/pytorch/issues/63247
    """
    init(world, shared_tmp_path)
    if world.rank == 2:
        time.sleep(FOREVER_S)
    rpc.shutdown(timeout=0)


@hang(
    "straggler",
    ranks=2,
    backend="none",
    culprits=[1],
    waiting=[0],
    where="time.sleep(FOREVER_S)",
)
def test_a_remote_function_never_answers(world, shared_tmp_path) -> None:
    """Rank 0 waits for a function that sleeps in rank 1.

    Source: https://github.com/pytorch/pytorch/issues/33208
    """
    init(world, shared_tmp_path)
    if world.is_primary:
        rpc.rpc_sync("worker1", sleep_long)
    rpc.shutdown(timeout=0)


@hang(
    "straggler",
    ranks=2,
    backend="none",
    culprits=[1],
    waiting=[0],
    where="time.sleep(FOREVER_S)",
)
def test_one_of_several_results_never_comes(world, shared_tmp_path) -> None:
    """Rank 0 gathers the results of calls that it has begun before.

    Source: https://github.com/pytorch/pytorch/issues/33208
    """
    init(world, shared_tmp_path)
    if world.is_primary:
        futures = [rpc.rpc_async("worker1", each) for each in (answer, sleep_long)]
        torch.futures.wait_all(futures)
    rpc.shutdown(timeout=0)


@hang(
    "straggler",
    ranks=3,
    backend="none",
    culprits=[2],
    waiting=[0, 1],
    where="time.sleep(FOREVER_S)",
)
def test_a_remote_value_is_never_made(world, shared_tmp_path) -> None:
    """Rank 0 asks rank 1 for a value, whose function waits for another of rank 2.

    Source: https://github.com/pytorch/pytorch/issues/33208
    """
    init(world, shared_tmp_path)
    if world.is_primary:
        rpc.remote("worker1", ask_in_vain, args=("worker2",)).to_here(timeout=0)
    rpc.shutdown(timeout=0)


def ask_in_vain(name: str) -> None:
    """Ask another worker, which never answers."""
    rpc.rpc_sync(name, sleep_long)
