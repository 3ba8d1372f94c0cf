"""torch.distributed.rpc: a partner that is late, and answers."""

from __future__ import annotations

import time

import torch
from expectation import innocent
from hang_rpc import answer, init
from torch.distributed import rpc

LATE_S = 3.0


def slow_answer() -> str:
    """Answer after a while."""
    time.sleep(LATE_S)
    return answer()


def answer_through(name: str) -> str:
    """Ask another worker, slowly, for the answer."""
    return rpc.rpc_sync(name, slow_answer)


@innocent(ranks=2, backend="none")
def test_a_remote_function_answers_late(world, shared_tmp_path) -> None:
    """Rank 0 waits for it; rank 1 waits in the shutdown meanwhile."""
    init(world, shared_tmp_path)
    if world.is_primary:
        assert rpc.rpc_sync("worker1", slow_answer) == "here"
    rpc.shutdown(timeout=0)


@innocent(ranks=2, backend="none")
def test_nested_calls_have_threads_enough(world, shared_tmp_path) -> None:
    """Both ranks are in a call of the other's, which calls back, slowly."""
    init(world, shared_tmp_path)
    mine, other = f"worker{world.rank}", f"worker{1 - world.rank}"
    assert rpc.rpc_sync(other, answer_through, args=(mine,)) == "here"
    rpc.shutdown(timeout=0)


@innocent(ranks=3, backend="none")
def test_one_rank_is_late_for_the_shutdown(world, shared_tmp_path) -> None:
    """rpc.shutdown waits for it."""
    init(world, shared_tmp_path)
    time.sleep(LATE_S * (world.rank == 2))
    rpc.shutdown(timeout=0)


def compute() -> None:
    """Use the processor for a while."""
    until_s = time.monotonic() + LATE_S
    while time.monotonic() < until_s:
        torch.ones(64, 64) @ torch.ones(64, 64)


@innocent(ranks=2, backend="none")
def test_a_remote_function_computes_for_long(world, shared_tmp_path) -> None:
    """Both main threads wait: one for its result, the other for the caller."""
    init(world, shared_tmp_path)
    if world.is_primary:
        torch.futures.wait_all([rpc.rpc_async("worker1", compute)])
    rpc.shutdown(timeout=0)


@innocent(ranks=3, backend="none")
def test_one_rank_is_late_for_the_start_of_rpc(world, shared_tmp_path) -> None:
    """The others wait for its address."""
    time.sleep(LATE_S * (world.rank == 0))
    init(world, shared_tmp_path)
    rpc.shutdown(timeout=0)


@innocent(ranks=2, backend="none")
def test_a_value_made_late_is_fetched(world, shared_tmp_path) -> None:
    """Its maker sleeps, and nothing that it runs is awaited any more when it is fetched again."""
    init(world, shared_tmp_path)
    if world.is_primary:
        value = rpc.remote("worker1", slow_answer)
        assert [value.to_here(timeout=0) for _ in range(2)] == ["here", "here"]
        time.sleep(LATE_S)
    rpc.shutdown(timeout=0)


@innocent(ranks=2, backend="none")
def test_one_rank_leaves_without_the_shutdown_of_all(world, shared_tmp_path) -> None:
    """Neither of them waits for the other's calls, which are over."""
    init(world, shared_tmp_path)
    if world.is_primary:
        assert rpc.rpc_async("worker1", slow_answer).wait() == "here"
    world.barrier()
    rpc.shutdown(graceful=False)
