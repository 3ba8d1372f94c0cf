"""Decisions that are made once, or voted on, and waits that end whatever happens."""

from __future__ import annotations

import fcntl
import math
import os
import time
from datetime import UTC, datetime
from pathlib import Path

import torch
import torch.distributed as dist
from agreement import all_or_none, any_rank
from expectation import robust

MINUTE_S = 60.0


def meet() -> None:
    """Let all ranks average something."""
    dist.all_reduce(torch.ones(4))


@robust(ranks=3, backend="gloo")
def test_primary_tells_when_time_is_up(world) -> None:
    """Only the clock of the primary counts.

    Source: https://github.com/ecmwf/anemoi-core/pull/1064 (mended like this)
    """
    end = time.time() + 2 * MINUTE_S
    for _ in range(3):
        is_up = torch.tensor(int(time.time() > end - MINUTE_S))
        dist.broadcast(is_up, src=0)
        if is_up:
            break
        meet()


@robust(ranks=3, backend="gloo")
def test_saves_when_the_first_clock_says_so(world) -> None:
    """Whether a checkpoint is due is reduced over all ranks.

    Source: https://github.com/foundation-model-stack/foundation-model-stack/pull/213
    """
    saved_at = time.time()
    for _ in range(4):
        meet()
        if any_rank(time.time() - saved_at > 30 * MINUTE_S):
            dist.barrier()
            saved_at = time.time()


@robust(ranks=3, backend="gloo")
def test_name_of_the_run_is_broadcast(world, shared_tmp_path) -> None:
    """The primary names the folder after its clock, and tells the name.

    Source: https://github.com/DiamondLightSource/httomo/pull/721 (mended like this)
    """
    name = [datetime.now(UTC).strftime("%Y%m%d_%H%M%S")]
    dist.broadcast_object_list(name)
    folder = shared_tmp_path / name[0]
    with all_or_none("making the folder"):
        folder.mkdir(exist_ok=True)
        (folder / f"rank-{world.rank}").touch()
    meet()


@robust(ranks=3, backend="gloo")
def test_names_are_sorted_before_they_are_reduced(world) -> None:
    """Sets are only iterated in the order of their names.

    Source: https://github.com/ludwig-ai/ludwig/pull/3195 (sorted before it counts)
    """
    reduced = {"loss", "accuracy", "tokens", "seconds", "recall"}
    gathered = {"examples", "lengths", "perplexities", "files", "errors"}
    parts = [torch.zeros(4) for _ in range(world.size)]
    for name in sorted(reduced | gathered):
        if name in reduced:
            meet()
        else:
            dist.all_gather(parts, torch.ones(4))


def local_loss(step: int, rank: int) -> float:
    """Return the loss of this rank's batch."""
    batch = torch.rand(8, generator=torch.Generator().manual_seed(rank))
    return float(batch.mean()) / (step + 1)


def is_worse(losses: list[float]) -> bool:
    """Return whether the last epoch was no improvement."""
    return len(losses) > 1 and losses[-1] >= losses[-2]


@robust(ranks=3, backend="gloo")
def test_all_stop_early_if_one_does(world) -> None:
    """Whether to stop is voted on.

    Source: https://github.com/Lightning-AI/pytorch-lightning/pull/2467 (mended like this)
    """
    losses: list[float] = []
    for epoch in range(4):
        meet()
        losses.append(local_loss(epoch, world.rank))
        if any_rank(is_worse(losses)):
            break


def is_preempted() -> bool:
    """Return whether this process has been asked to end, by a signal."""
    return False


@robust(ranks=4, backend="gloo")
def test_signal_of_one_rank_reaches_all(world) -> None:
    """The flag of a signal is reduced at the end of each step.

    Source: https://github.com/kyutai-labs/pocket-tts/pull/277 (mended like this)
    """
    for _ in range(3):
        meet()
        if any_rank(is_preempted()):
            dist.barrier()
            break


@robust(ranks=3, backend="gloo")
def test_all_skip_the_step_without_a_number(world) -> None:
    """A loss that is no number on one rank makes all ranks skip the step.

    Source: https://github.com/NVIDIA-NeMo/Speech/pull/637 (mended like this)
    """
    for step in range(4):
        if any_rank(not math.isfinite(local_loss(step, world.rank))):
            continue
        meet()


def share_of_tokens(rank: int) -> float:
    """Return which share of the tokens was routed to this rank's expert."""
    return 0.25 * (1 + rank)


@robust(ranks=3, backend="gloo", sweep={"values": ["robust_decisions:share_of_tokens"]})
def test_expert_without_tokens_takes_part(world) -> None:
    """A rank without tokens computes with one of zeros.

    Source: https://github.com/NVIDIA/Megatron-LM/pull/4851 (mended like this)
    """
    share = share_of_tokens(world.rank)
    count = math.ceil(16 * share) if share > 0 else 1
    dist.all_reduce(torch.zeros(count, 4).sum(0))
    dist.barrier()


@robust(ranks=3, backend="none")
def test_lock_is_the_kernels(world, shared_tmp_path) -> None:
    """Whoever builds holds a lock that ends with its process; all build what is missing.

    Source: https://github.com/ModelCloud/GPTQModel/pull/3019 (mended like this)
    """
    library = shared_tmp_path / "extension.so"
    with (shared_tmp_path / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not library.exists():
            library.with_suffix(".tmp").write_bytes(b"ELF")
            os.replace(library.with_suffix(".tmp"), library)  # noqa: PTH105


def waited_for(done: Path, failed: Path) -> None:
    """Return once a file is there; raise if another says why it never will be."""
    while True:
        names = os.listdir(done.parent)
        if done.name in names:
            return
        if failed.name in names:
            raise RuntimeError("the primary has failed")
        time.sleep(0.02)


@robust(ranks=3, backend="none")
def test_others_hear_that_the_download_failed(world, shared_tmp_path) -> None:
    """Who waits for a file also looks for the news that it will not come.

    Source: https://github.com/mosaicml/streaming/pull/723 (what a wait for a file should tell)
    """
    index, failed = shared_tmp_path / "index.json", shared_tmp_path / "index.failed"
    if world.is_primary:
        try:
            index.with_suffix(".part").write_text("{}")
            index.with_suffix(".part").rename(index)
        except OSError:
            failed.touch()
            raise
    waited_for(index, failed)


@robust(ranks=3, backend="none")
def test_every_rank_writes_for_itself(world, shared_tmp_path) -> None:
    """No rank needs another: each has a folder and files of its own.

    Source: https://github.com/DARMA-tasking/vt/pull/1029 (a folder of each rank's own)
    """
    folder = shared_tmp_path / f"rank-{world.rank}"
    folder.mkdir(exist_ok=True)
    (folder / "part.tmp").write_text("rows")
    (folder / "part.tmp").rename(folder / "part")
    assert (folder / "part").read_text() == "rows"
