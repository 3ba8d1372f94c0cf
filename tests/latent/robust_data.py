"""Loops that go on with uneven, empty or unreadable data, and listings that all see alike."""

from __future__ import annotations

import json
import os

import torch
import torch._dynamo  # wrapping a model imports it, for seconds
import torch.distributed as dist
from agreement import all_or_none, any_rank
from expectation import robust
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

BATCHES = 6


def make_loader() -> DataLoader:
    """Return the batches of this rank."""
    return DataLoader(TensorDataset(torch.ones(2 * BATCHES, 4)), batch_size=2)


def average(value: float) -> float:
    """Return the mean over all ranks."""
    total = torch.tensor([value, 1.0])
    dist.all_reduce(total)
    return float(total[0] / total[1])


@robust(ranks=3, backend="gloo")
def test_ddp_joins_uneven_inputs(world) -> None:
    """Ranks that are through take part in the averaging until the last one is.

    Source: https://github.com/pytorch/pytorch/issues/38174
    """
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    with Join([model]):
        for (batch,) in make_loader():
            model.zero_grad()
            model(batch).sum().backward()


@robust(ranks=3, backend="gloo")
def test_all_stop_at_the_first_end_of_data(world) -> None:
    """Before each step all agree that everybody has a batch.

    Source: https://github.com/pytorch/pytorch/issues/33148 (has_next, reduced)
    """
    batches = iter(make_loader())
    while True:
        found = next(batches, None)
        if any_rank(found is None):
            break
        average(float(found[0].sum()))


@robust(ranks=3, backend="gloo")
def test_all_go_on_until_the_last_end_of_data(world) -> None:
    """A rank without a batch takes part with nothing.

    Source: https://github.com/lifeiteng/vall-e/pull/93 (the state of all iterators, gathered)
    """
    batches = iter(make_loader())
    while True:
        found = next(batches, None)
        if not any_rank(found is not None):
            break
        average(0.0 if found is None else float(found[0].sum()))


@robust(ranks=3, backend="gloo")
def test_steps_are_what_the_shortest_has(world) -> None:
    """The number of steps is agreed on from what each rank really has.

    Source: https://github.com/argonne-lcf/dlio_benchmark/pull/339 (mended like this)
    """
    batches = list(make_loader())
    steps = torch.tensor(len(batches))
    dist.all_reduce(steps, op=dist.ReduceOp.MIN)
    for (batch,) in batches[: int(steps)]:
        average(float(batch.sum()))


@robust(ranks=3, backend="gloo")
def test_metrics_of_an_empty_shard_take_part(world) -> None:
    """Sums and counts are reduced by all ranks, whatever they have seen.

    Source: https://github.com/weecology/DeepForest/pull/1426
    """
    total = torch.zeros(2)
    for (batch,) in make_loader():
        total += torch.tensor([float(batch.sum()), 1.0])
    dist.all_reduce(total)
    print("score", float(total[0] / total[1].clamp(min=1)))


@robust(ranks=3, backend="gloo")
def test_keys_of_all_ranks_are_averaged(world) -> None:
    """First the names are gathered, then each is reduced by all, in one order.

    Source: https://github.com/Lightning-AI/pytorch-lightning/pull/21434
    """
    metrics = {"epoch": 1.0}
    for (batch,) in make_loader():
        metrics["loss"] = float(batch.mean())
    names: list[list[str]] = [[] for _ in range(world.size)]
    dist.all_gather_object(names, sorted(metrics))
    for name in sorted({each for part in names for each in part}):
        average(metrics.get(name, 0.0))


@robust(ranks=3, backend="gloo")
def test_unreadable_batch_is_skipped_by_all(world, shared_tmp_path) -> None:
    """If one rank cannot read its batch, no rank makes that step.

    Source: https://github.com/NVIDIA-NeMo/Automodel/pull/2468 (mended like this)
    """
    with all_or_none("writing the rows"):
        for number in range(3):
            (shared_tmp_path / f"rows-{world.rank}-{number}.json").write_text("[1.0, 2.0]")
    for number in range(3):
        rows = None
        try:
            rows = json.loads((shared_tmp_path / f"rows-{world.rank}-{number}.json").read_text())
        except (OSError, ValueError) as error:
            print("skipped:", error)
        if any_rank(rows is None):
            continue
        average(sum(rows or [0.0]))


@robust(ranks=3, backend="gloo")
def test_listing_is_sorted(world, shared_tmp_path) -> None:
    """Shards are dealt in the order of their names, and all agree on how many there are.

    Source: https://github.com/MoonshotAI/checkpoint-engine/pull/103 (mended like this)
    """
    with all_or_none("writing the shards"):
        if world.is_primary:
            for number in range(4):
                (shared_tmp_path / f"shard-{number}").write_text("8")
    with all_or_none("listing the shards"):
        files = sorted(os.listdir(shared_tmp_path))
    listings: list[list[str]] = [[] for _ in range(world.size)]
    dist.all_gather_object(listings, files)
    if any(each != listings[0] for each in listings):
        raise RuntimeError("not all ranks see the same shards")
    for file in files:
        if file.endswith(("0", "2")):
            dist.barrier()
        else:
            average(1.0)


@robust(ranks=3, backend="gloo")
def test_primary_lists_for_all(world, shared_tmp_path) -> None:
    """Which files there are is what the primary sees.

    Source: https://github.com/alibaba/TorchEasyRec/pull/667 (one order for all)
    """
    listing: list[object] = [None]
    with all_or_none("preparing"):
        if world.is_primary:
            (shared_tmp_path / "run-4").touch()
            (shared_tmp_path / "run-1").touch()
            listing = [[entry.name for entry in os.scandir(shared_tmp_path)]]
    dist.broadcast_object_list(listing)
    first = str(listing[0][0])
    for _ in range(int(first.removeprefix("run-")), 6):
        average(1.0)


@robust(ranks=3, backend="gloo")
def test_latest_step_is_one_that_all_see(world, shared_tmp_path) -> None:
    """All resume from the newest step that every rank sees.

    Source: https://github.com/LMResiliency/lm-resiliency/pull/85 (mended like this)
    """
    with all_or_none("saving"):
        (shared_tmp_path / "ckpt").mkdir(exist_ok=True)
        if world.is_primary:
            (shared_tmp_path / "ckpt" / "step-2").touch()
    with all_or_none("looking"):
        seen = {
            int(file.name.removeprefix("step-")) for file in (shared_tmp_path / "ckpt").iterdir()
        }
    parts: list[set[int]] = [set() for _ in range(world.size)]
    dist.all_gather_object(parts, seen)
    for _ in range(max(set.intersection(*parts), default=0), 4):
        average(1.0)
