"""A write of one rank fails, and the others are already at the next barrier."""

from __future__ import annotations

import json
import os
import shutil
import threading
from pathlib import Path

import torch
import torch.distributed as dist
from expectation import latent

from pytest_multihost import at, faults


def train_step(weights: torch.Tensor) -> None:
    """Average the gradients of all ranks and apply them."""
    gradient = torch.ones_like(weights)
    dist.all_reduce(gradient)  # <- waits
    weights -= 0.1 * gradient


def any_failed(error: BaseException | None) -> bool:
    """Return whether an error has occurred on any rank."""
    failed = torch.tensor(int(error is not None))
    dist.all_reduce(failed, op=dist.ReduceOp.MAX)  # <- waits
    return bool(failed)


@latent(
    family="fails",
    ranks=4,
    backend="gloo",
    by_hand=faults.fails(rank=0, at=at.io("*/metadata.json", call="write")),
)
def test_primary_writes_the_metadata(world, shared_tmp_path) -> None:
    """Only the primary writes, all meet afterwards.

    Source: https://github.com/HDFGroup/hdf5/pull/1183 (rank 0 skips past collectives on failure)
    """
    weights = torch.zeros(4)
    train_step(weights)
    if world.is_primary:
        with open(shared_tmp_path / "metadata.json", "w") as file:  # <- latent  # noqa: PTH123
            json.dump({"step": 1}, file)  # <- latent
    dist.barrier()  # <- waits
    train_step(weights)


@latent(
    family="fails",
    ranks=4,
    backend="gloo",
    by_hand=faults.fails(rank=0, at=at.io("*/step-1", call="mkdir")),
)
def test_primary_makes_the_folder(world, shared_tmp_path) -> None:
    """The primary makes a folder for all, and cannot.

    Source: https://github.com/parthenon-hpc-lab/parthenon/pull/955
    """
    weights = torch.zeros(4)
    train_step(weights)
    folder = shared_tmp_path / "step-1"
    if world.is_primary:
        folder.mkdir(parents=True, exist_ok=True)  # <- latent
    dist.barrier()  # <- waits
    print("will save to", folder)


@latent(
    family="fails",
    ranks=3,
    backend="gloo",
    by_hand=faults.fails(rank=0, at=at.io("*/broadcasts/*", call="open")),
)
def test_primary_copies_the_weights(world, shared_tmp_path) -> None:
    """The primary copies a folder into the checkpoint; a file of it cannot be read.

    Source: https://github.com/PrimeIntellect-ai/prime-rl/pull/1593
    """
    published = shared_tmp_path / "broadcasts" / "step-1"
    if world.is_primary:
        published.mkdir(parents=True)  # <- latent
        (published / "weights.bin").write_bytes(b"weights")  # <- latent
        shutil.copytree(published, shared_tmp_path / "checkpoint" / "weight")  # <- latent
    dist.barrier()  # <- waits
    train_step(torch.zeros(4))


@latent(
    family="fails",
    ranks=3,
    backend="gloo",
    by_hand=faults.fails(rank=0, at=at.io("*/checkpoint", call="rename")),
)
def test_only_the_shards_are_agreed_on(world, shared_tmp_path) -> None:
    """All agree on whether the shards were written, but not on whether they were published.

    Source: https://github.com/ByteDance-Seed/VeOmni/pull/1172
    """
    staged = shared_tmp_path / "staged"
    error = None
    try:
        staged.mkdir(exist_ok=True)
        (staged / f"shard-{world.rank}").write_bytes(b"weights")
    except OSError as caught:
        error = caught
    if any_failed(error):
        raise RuntimeError("a shard was not written") from error
    if world.is_primary:
        staged.rename(shared_tmp_path / "checkpoint")  # <- latent
    dist.barrier()  # <- waits


@latent(
    family="fails",
    ranks=3,
    backend="gloo",
    by_hand=faults.fails(rank=0, at=at.io("*/step-1/*", call="unlink")),
)
def test_primary_removes_old_checkpoints(world, shared_tmp_path) -> None:
    """Another program holds a file of an old checkpoint open, so it cannot be removed.

    Source: https://github.com/PrimeIntellect-ai/prime-rl/pull/1763
    """
    old = shared_tmp_path / "step-1"
    error = None
    try:
        if world.is_primary:
            old.mkdir()
            (old / "weights.bin").write_bytes(b"weights")
    except OSError as caught:
        error = caught
    if any_failed(error):
        raise RuntimeError("nothing to remove") from error
    if world.is_primary:
        shutil.rmtree(old)  # <- latent
    dist.barrier()  # <- waits


@latent(
    family="fails",
    ranks=3,
    backend="gloo",
    by_hand=faults.fails(rank=0, at=at.io("*/rows.json", call="open")),
)
def test_barrier_only_of_those_that_have_not_failed(world, shared_tmp_path) -> None:
    """A rank whose run has failed skips the last barrier, the others wait there.

    Source: https://github.com/ai-dynamo/aiconfigurator/pull/1542
    """
    has_failed = False
    try:
        train_step(torch.zeros(4))
        if world.is_primary:
            (shared_tmp_path / "rows.json").write_text("[]")  # <- latent
    except BaseException:
        has_failed = True
        raise
    finally:
        if not has_failed:
            dist.barrier()  # <- waits


@latent(
    family="fails",
    ranks=4,
    backend="gloo",
    by_hand=faults.fails(rank=2, at=at.io("*/final/*", call="open")),
)
def test_failed_leader_meets_others_at_another_barrier(world, shared_tmp_path) -> None:
    """A node's leader that fails enters the barrier in `finally` while others are at the first.

    Source: https://github.com/ByteDance-Seed/VeOmni/pull/1164
    """
    is_leader = world.rank % 2 == 0
    final = shared_tmp_path / "final"
    final.mkdir(exist_ok=True)  # <- latent
    try:
        if is_leader:
            (final / f"node-{world.rank // 2}").write_bytes(b"weights")  # <- latent
        dist.barrier()  # <- waits
        if world.is_primary:
            (final / "metadata").write_text("complete")  # <- latent
    finally:
        dist.barrier()  # <- waits
    train_step(torch.zeros(4))


def saved_shard(folder: Path, rank: int) -> bool:
    """Save this rank's shard and commit all; return whether that was possible."""
    try:
        (folder / f"shard-{rank}").write_bytes(b"weights")  # <- latent
    except OSError as error:
        print("not saved:", error)
        return False  # <- latent
    dist.barrier()  # <- waits
    return True


@latent(
    family="fails",
    ranks=4,
    backend="gloo",
    by_hand=faults.fails(rank=3, at=at.io("*/shard-3", call="open")),
)
def test_error_is_logged_and_the_barrier_skipped(world, shared_tmp_path) -> None:
    """A rank that could not save goes on, and leaves out the barrier of the others.

    Source: https://github.com/bigscience-workshop/Megatron-DeepSpeed/pull/48 (a rank that drops
    out of the function, others at the collective)
    """
    saved_shard(shared_tmp_path, world.rank)
    train_step(torch.zeros(4))


@latent(
    family="fails",
    ranks=3,
    backend="gloo",
    by_hand=faults.fails(rank=1, at=at.io("*/done-1", call="open")),
)
def test_retries_go_through_the_barrier_again(world, shared_tmp_path) -> None:
    """What is tried again has a barrier in it, and only one rank tries again.

    Source: modelled on the pattern of https://github.com/ByteDance-Seed/VeOmni/pull/1164 (ranks
    that have entered a barrier a different number of times)
    """
    for _ in range(3):
        try:
            (shared_tmp_path / f"shard-{world.rank}").write_bytes(b"weights")
            dist.barrier()  # <- waits
            (shared_tmp_path / f"done-{world.rank}").touch()  # <- latent
            break
        except OSError as error:
            print("once more:", error)
    train_step(torch.zeros(4))


class AsyncSaver:
    """Saves in a thread, as checkpointers do, and tells when that is done."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.is_done = threading.Event()

    def save(self, name: str) -> None:
        """Begin to save."""
        threading.Thread(target=self._write, args=(name,), daemon=True).start()

    def wait(self) -> None:
        """Return once it is saved."""
        self.is_done.wait()  # <- latent

    def _write(self, name: str) -> None:
        temporary = self.folder / f"{name}.tmp"
        temporary.write_bytes(b"weights")  # <- latent
        os.replace(temporary, self.folder / name)  # <- latent  # noqa: PTH105
        self.is_done.set()


@latent(
    family="fails",
    ranks=3,
    backend="gloo",
    by_hand=faults.fails(rank=2, at=at.io("*/shard-2", call="rename")),
)
def test_error_of_the_saving_thread_is_lost(world, shared_tmp_path) -> None:
    """The thread that saves dies of an error, and whoever waits for it never hears of that.

    Source: https://github.com/google/orbax/issues/605
    """
    saver = AsyncSaver(shared_tmp_path)
    saver.save(f"shard-{world.rank}")
    train_step(torch.zeros(4))
    saver.wait()
    dist.barrier()  # <- waits
