"""One rank decides otherwise: by its clock, by the order of its sets, by its own loss."""

from __future__ import annotations

import math
import time
from datetime import datetime

import torch
import torch.distributed as dist
from expectation import latent

from pytest_multihost import at, faults

MINUTE_S = 60.0


def meet() -> None:
    """Let all ranks average something."""
    dist.all_reduce(torch.ones(4))  # <- waits


@latent(
    family="differs",
    ranks=3,
    backend="gloo",
    by_hand=faults.clock_skew(rank=1, seconds=3600),
)
def test_stops_before_the_end_of_the_job(world) -> None:
    """Each rank compares its clock with the end of the job, which the primary has told.

    Source: https://github.com/ecmwf/anemoi-core/pull/1064
    """
    end = torch.tensor([time.time() + 2 * MINUTE_S], dtype=torch.float64)
    dist.broadcast(end, src=0)
    for _ in range(3):
        if time.time() > float(end) - MINUTE_S:  # <- latent
            break
        meet()


@latent(
    family="differs",
    ranks=3,
    backend="gloo",
    by_hand=faults.clock_skew(rank=2, seconds=3600, at=at.collective("all_reduce", nth=2)),
)
def test_saves_by_the_clock(world) -> None:
    """A checkpoint is due an hour after the last; one clock is set right in the middle of the run.

    Source: https://github.com/foundation-model-stack/foundation-model-stack/pull/213
    """
    saved_at = time.time()
    for _ in range(4):
        meet()
        if time.time() - saved_at > 30 * MINUTE_S:  # <- latent
            dist.barrier()  # <- waits
            saved_at = time.time()


@latent(
    family="differs",
    ranks=2,
    backend="gloo",
    by_hand=faults.clock_skew(rank=1, seconds=-300),
)
def test_folder_is_named_after_the_time(world, shared_tmp_path) -> None:
    """Each rank names the folder of the run after its own clock.

    Source: https://github.com/tier4/Diffusion-Planner/pull/429
    """
    name = datetime.now().strftime("%Y%m%d_%H%M")  # <- latent  # noqa: DTZ005
    failed = [None]
    if world.is_primary:
        try:
            (shared_tmp_path / name).mkdir()
            (shared_tmp_path / name / "roots.json").write_text("[]")
        except OSError as error:
            failed = [repr(error)]
    dist.broadcast_object_list(failed)
    if failed[0] is not None:
        raise RuntimeError(failed[0])
    roots = (shared_tmp_path / name / "roots.json").read_text()  # <- latent
    meet()
    print(roots)


@latent(
    family="differs",
    ranks=3,
    backend="gloo",
    by_hand=faults.hash_seed(rank="all", seed=None),
)
def test_metrics_are_reduced_in_the_order_of_a_set(world) -> None:
    """What is reduced and what is gathered comes in the order of a set of names.

    Source: https://github.com/MP-Gadget/pfft-python/issues/5
    """
    reduced = {"loss", "accuracy", "tokens", "seconds", "recall"}
    gathered = {"examples", "lengths", "perplexities", "files", "errors"}
    parts = [torch.zeros(4) for _ in range(world.size)]
    for name in reduced | gathered:  # <- latent
        if name in reduced:
            meet()
        else:
            dist.all_gather(parts, torch.ones(4))  # <- waits


@latent(
    family="differs",
    ranks=3,
    backend="gloo",
    by_hand=faults.hash_seed(rank="all", seed=None),
)
def test_sharding_plan_is_searched_in_the_order_of_a_set(world) -> None:
    """The first of several equal plans wins, and they need different collectives.

    Source: https://github.com/meta-pytorch/torchrec/pull/4648
    """
    kernels = {"dense", "fused", "uvm", "quantized", "cached", "sparse", "split", "paged"}
    allowed = ["fused", "dense", "cached", "sparse", "paged", "uvm", "split"]
    plan = list(kernels & set(allowed))[:3]  # <- latent
    for kernel in plan:
        tensor = torch.ones(4)
        if kernel in ("fused", "cached", "split"):
            dist.all_reduce(tensor)  # <- waits
        elif kernel in ("dense", "paged"):
            dist.broadcast(tensor, src=0)  # <- waits
        else:
            dist.barrier()  # <- waits


def validation_loss(epoch: int, rank: int) -> float:
    """Return the loss of this rank's part of the validation data."""
    part = torch.rand(8, generator=torch.Generator().manual_seed(rank))
    return float(part.mean()) / (epoch + 1)


def is_worse(losses: list[float]) -> bool:
    """Return whether the last epoch was no improvement."""
    return len(losses) > 1 and losses[-1] >= losses[-2]


@latent(
    family="differs",
    ranks=3,
    backend="gloo",
    by_hand=faults.returns(rank=1, value=True, at=at.call("differs_decisions:is_worse", nth=2)),
)
def test_each_rank_stops_early_by_itself(world) -> None:
    """Whether the loss has become worse is decided by each rank from its own data.

    Source: https://github.com/Lightning-AI/pytorch-lightning/issues/379
    """
    losses: list[float] = []
    for epoch in range(4):
        meet()
        losses.append(validation_loss(epoch, world.rank))
        if is_worse(losses):  # <- latent
            break


def is_preempted() -> bool:
    """Return whether this process has been asked to end, by a signal."""
    return False


@latent(
    family="differs",
    ranks=4,
    backend="gloo",
    by_hand=faults.returns(rank=3, value=True, at=at.call("differs_decisions:is_preempted", nth=2)),
)
def test_signal_reaches_one_rank_only(world) -> None:
    """A rank that is to be preempted saves, the others go on with the next step.

    Source: https://github.com/kyutai-labs/pocket-tts/pull/277
    """
    for _ in range(3):
        if is_preempted():  # <- latent
            dist.barrier()  # <- waits
            break
        meet()


def local_loss(step: int, rank: int) -> float:
    """Return the loss of this rank's batch."""
    batch = torch.rand(8, generator=torch.Generator().manual_seed(rank))
    return float(batch.mean()) / (step + 1)


@latent(
    family="differs",
    ranks=3,
    backend="gloo",
    by_hand=faults.returns(
        rank=2,
        value=float("nan"),
        at=at.call("differs_decisions:local_loss", nth=2, when="after"),
    ),
)
def test_step_without_a_number_is_skipped(world) -> None:
    """A rank whose loss is not a number skips the step, and with it the averaging.

    Source: https://github.com/dylanyunlon/Neuron_SP/issues/154
    """
    for step in range(4):
        if not math.isfinite(local_loss(step, world.rank)):  # <- latent
            continue
        meet()


@latent(
    family="differs",
    ranks=3,
    backend="gloo",
    sweep={"values": ["differs_decisions:local_loss"]},
    by_hand=faults.returns(
        rank=0,
        value=float("nan"),
        at=at.call("differs_decisions:local_loss", nth=3, when="after"),
    ),
)
def test_loss_that_is_no_number_ends_one_rank(world) -> None:
    """Each rank checks its own loss and raises, while the others are in the backward pass.

    Source: https://github.com/ai2cm/ace/pull/850
    """
    for step in range(4):
        if not math.isfinite(local_loss(step, world.rank)):  # <- latent
            raise ValueError("the loss is not a number")  # <- latent
        meet()


def tokens_for_expert(rank: int) -> int:
    """Return how many tokens were routed to this rank's expert."""
    return 4 + rank


@latent(
    family="differs",
    ranks=3,
    backend="gloo",
    by_hand=faults.returns(
        rank=1, value=0, at=at.call("differs_decisions:tokens_for_expert", when="after")
    ),
)
def test_expert_without_tokens(world) -> None:
    """A rank to whose expert no token was routed leaves out its collectives.

    Source: https://github.com/NVIDIA/Megatron-LM/pull/4851
    """
    if tokens_for_expert(world.rank) > 0:  # <- latent
        meet()
    dist.barrier()  # <- waits
