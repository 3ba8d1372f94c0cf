"""Tensors that do not fit together in simulated worlds: the rank whose tensor differs is named."""

from __future__ import annotations

from typing import Any

from runtimes import needs

pytestmark = needs("torch")

SOURCE = """
import pytest, torch, torch.distributed as dist

@pytest.mark.multihost(ranks=4, backend="simulated")
def test_too_large_for_the_others(world):
    dist.broadcast(torch.ones(5 if world.rank == 0 else 4), src=0)
    dist.barrier()

@pytest.mark.multihost(ranks=4, backend="simulated")
def test_one_sums_less(world):
    work = dist.all_reduce(torch.ones(3 if world.rank == 2 else 4), async_op=True)
    if world.rank != 0:
        dist.barrier()
    work.wait()
    dist.barrier()

@pytest.mark.multihost(ranks=4, backend="simulated")
def test_one_has_a_tensor_less(world):
    with dist._coalescing_manager(async_ops=True) as started:
        for _ in range(1 if world.rank == 1 else 2):
            dist.all_reduce(torch.ones(4))
    started.wait()

@pytest.mark.multihost(ranks=3, backend="simulated")
def test_sends_more_than_is_received(world):
    if world.rank == 0:
        dist.send(torch.ones(8), 1)
    elif world.rank == 1:
        dist.recv(torch.ones(4), 0)
    dist.barrier()

@pytest.mark.multihost(ranks=3, backend="simulated")
def test_an_error_of_its_own(world):
    dist.all_reduce(torch.ones(4))
    if world.rank == 1:
        raise ValueError("bad batch")
    dist.barrier()
"""


def blamed(verdict: Any) -> tuple[str, list[int], str]:  # noqa: ANN401 - JSON
    """Return the kind, the culprits and the confidence of a verdict."""
    found = verdict["diagnosis"]
    return found["kind"], found["culprits"], found["confidence"]


def test_the_rank_whose_tensor_differs_is_named_and_not_the_one_that_raises(run_worlds) -> None:
    """The runtime raises where data arrives that does not fit."""
    worlds = run_worlds(SOURCE)
    verdicts = worlds.verdicts
    assert blamed(verdicts["test_too_large_for_the_others"]) == ("mismatch", [0], "likely")
    assert blamed(verdicts["test_one_sums_less"]) == ("mismatch", [2], "likely")
    assert blamed(verdicts["test_sends_more_than_is_received"]) == ("mismatch", [0, 1], "likely")
    assert "  rank 0 sends f32[8], rank 1 receives f32[4]; a rank raised because" in worlds.stdout
    assert blamed(verdicts["test_an_error_of_its_own"]) == ("raised", [1], "certain")
    said = "different numbers of tensors: rank 0: 16 bytes of float32, rank 1: 0 bytes of none"
    assert "► ranks 0-3  failed" in worlds.stdout
    assert said in worlds.stdout
