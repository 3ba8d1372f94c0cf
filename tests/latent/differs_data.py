"""One rank has fewer batches than the others, or none."""

from __future__ import annotations

import torch
import torch._dynamo  # wrapping a model imports it, for seconds
import torch.distributed as dist
from expectation import latent
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from pytest_multihost import at, faults

BATCHES = 6
LOADER = "torch.utils.data:DataLoader"


def make_loader() -> DataLoader:
    """Return the batches of this rank."""
    return DataLoader(TensorDataset(torch.ones(2 * BATCHES, 4)), batch_size=2)


def average(value: float) -> float:
    """Return the mean over all ranks."""
    total = torch.tensor([value, 1.0])
    dist.all_reduce(total)  # <- waits
    return float(total[0] / total[1])


@latent(
    family="differs",
    ranks=3,
    backend="gloo",
    by_hand=faults.short_data(rank=1, at=at.batch(LOADER, nth=BATCHES)),
)
def test_ddp_with_a_batch_less(world) -> None:
    """The backward pass averages gradients; a rank that has no batch left does none.

    Source: https://github.com/pytorch/pytorch/issues/33148
    """
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    for (batch,) in make_loader():  # <- latent
        model.zero_grad()
        model(batch).sum().backward()  # <- waits
        for weights in model.parameters():
            weights.data -= 0.1 * weights.grad


@latent(
    family="differs",
    ranks=3,
    backend="gloo",
    by_hand=faults.empty_data(rank=2, at=at.batch(LOADER)),
)
def test_metrics_only_of_ranks_with_images(world) -> None:
    """The metrics of an epoch are computed by those whose shard was not empty.

    Source: https://github.com/weecology/DeepForest/issues/1407
    """
    truths = [batch for (batch,) in make_loader()]  # <- latent
    if len(truths) > 0:  # <- latent
        print("score", average(float(truths[0].sum())))
    dist.barrier()  # <- waits


@latent(
    family="differs",
    ranks=3,
    backend="gloo",
    by_hand=faults.short_data(rank=0, at=at.batch(LOADER, nth=3)),
)
def test_first_to_finish_goes_to_the_validation(world) -> None:
    """A rank without data goes on to the validation, the others are still in training.

    Source: https://github.com/lifeiteng/vall-e/pull/93
    """
    for (batch,) in make_loader():  # <- latent
        average(float(batch.sum()))
    parts = [torch.zeros(4) for _ in range(world.size)]
    dist.all_gather(parts, torch.ones(4))  # <- waits


@latent(
    family="differs",
    ranks=2,
    backend="gloo",
    by_hand=faults.short_data(rank=1, at=at.batch(LOADER, nth=BATCHES)),
)
def test_last_gradients_are_applied_at_the_length_of_the_loader(world) -> None:
    """Gradients are averaged every fourth batch and at the last, as `len` tells it.

    Source: https://github.com/modelscope/FunASR/pull/3472 (which batch averages)
    """
    loader = make_loader()
    for number, (batch,) in enumerate(loader, 1):  # <- latent
        gradient = batch.sum()
        if number % 4 == 0 or number == len(loader):  # <- latent
            average(float(gradient))
    dist.barrier()  # <- waits


@latent(
    family="differs",
    ranks=3,
    backend="gloo",
    by_hand=faults.empty_data(rank=1, at=at.batch(LOADER)),
)
def test_each_key_of_the_metrics_is_averaged(world) -> None:
    """A rank that has seen no batch has no loss to average.

    Source: https://github.com/Lightning-AI/pytorch-lightning/issues/7129
    """
    metrics = {"epoch": 1.0}
    for (batch,) in make_loader():  # <- latent
        metrics["loss"] = float(batch.mean())
    for name in sorted(metrics):  # <- latent
        print(name, average(metrics[name]))


@latent(
    family="differs",
    ranks=3,
    backend="gloo",
    by_hand=faults.short_data(rank=2, at=at.batch(LOADER, nth=4)),
)
def test_steps_are_counted_beforehand(world) -> None:
    """Each rank takes as many batches as its loader says it has, and one raises at the end of data.

    Source: https://github.com/argonne-lcf/dlio_benchmark/pull/339
    """
    loader = make_loader()
    batches = iter(loader)
    for _ in range(len(loader)):
        (batch,) = next(batches)  # <- latent
        average(float(batch.sum()))


@latent(
    family="differs",
    ranks=3,
    backend="gloo",
    by_hand=faults.short_data(rank=1, at=at.batch(LOADER, nth=BATCHES)),
)
def test_epochs_begin_with_a_shared_seed(world) -> None:
    """Who is through its data begins the next epoch and waits for the seed of the shuffle.

    Source: https://github.com/pytorch/pytorch/issues/85775 (loaders of different lengths, and a
    seed that is shared at the beginning of an epoch)
    """
    loader = make_loader()
    for epoch in range(2):
        seed = torch.tensor([epoch])
        dist.broadcast(seed, src=0)  # <- waits
        for (batch,) in loader:  # <- latent
            average(float(batch.sum()))


@latent(
    family="differs",
    ranks=3,
    backend="gloo",
    by_hand=faults.short_data(rank=0, at=at.batch(LOADER, nth=BATCHES)),
)
def test_logs_every_other_batch(world) -> None:
    """The loss is averaged at every other batch that a rank has seen.

    Source: https://github.com/microsoft/PyMarlin/issues/80
    """
    losses = []
    for (batch,) in make_loader():  # <- latent
        losses.append(float(batch.mean()))
        if len(losses) % 2 == 0:
            print("loss", average(sum(losses) / len(losses)))
    dist.barrier()  # <- waits
