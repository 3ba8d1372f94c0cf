"""Calls of some ranks before all meet, whose failure nobody tells the others."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch
import torch.distributed as dist
from expectation import guilty

from pytest_multihost import World


@guilty(
    "unguarded",
    '(published / "weights.bin").write_bytes',
    "dist.barrier()",
    ranks=3,
    confirmed=True,
    like="PrimeIntellect-ai/prime-rl pull 1593: the primary copies weights into the checkpoint",
)
def test_the_primary_publishes_weights(world: World, shared_tmp_path: Path) -> None:
    """The others are in the barrier already."""
    published = shared_tmp_path / "step-1"
    published.mkdir(exist_ok=True)
    if world.is_primary:
        (published / "weights.bin").write_bytes(b"weights")
    dist.barrier()


@guilty(
    "unguarded",
    "staged.rename(folder",
    "dist.barrier()",
    ranks=3,
    confirmed=True,
    like="ByteDance-Seed/VeOmni pull 1172: shards are agreed on, and publishing them is not",
)
def test_publishing_is_not_agreed_on(world: World, shared_tmp_path: Path) -> None:
    """All agree on the shards; the primary alone renames their folder."""
    staged = shared_tmp_path / "staged"
    failed = torch.zeros(1)
    try:
        staged.mkdir(exist_ok=True)
        (staged / f"shard-{world.rank}").write_bytes(b"weights")
    except OSError:
        failed += 1
    dist.all_reduce(failed)
    assert not failed
    if world.is_primary:
        publish(staged, shared_tmp_path)
    dist.barrier()


def publish(staged: Path, folder: Path) -> None:
    """Publish what was staged."""
    staged.rename(folder / "checkpoint")


@guilty(
    "unguarded",
    "told = [json.loads(config.read_text())]",
    "dist.broadcast_object_list(told)",
    confirmed=True,
    like="NVIDIA/cosmos-framework pull 65: the primary reads the configuration and sends it",
)
def test_the_configuration_is_read_by_the_primary(world: World, shared_tmp_path: Path) -> None:
    """If it cannot be read, the others wait for it."""
    config = shared_tmp_path / "config.json"
    if world.rank == 1:
        config.write_text("{}")
    dist.barrier()
    told: list[object] = [None]
    if world.is_primary:
        told = [json.loads(config.read_text())]
    dist.broadcast_object_list(told)


def saved(folder: Path, world: World) -> bool:
    """Let the leader of each node save, and return whether all is saved."""
    try:
        if world.rank % 2 == 0:
            (folder / f"node-{world.rank}").write_bytes(b"weights")
    except OSError as error:
        print("not saved:", error)
        return False
    dist.barrier()
    return True


@guilty(
    "unguarded",
    '(folder / f"node-{world.rank}").write_bytes',
    "dist.barrier()",
    ranks=4,
    confirmed=True,
    like="bigscience-workshop/Megatron-DeepSpeed pull 48: a rank drops out of the function",
)
def test_the_error_is_logged_and_the_barrier_skipped(world: World, shared_tmp_path: Path) -> None:
    """The leader that could not save goes on without the others."""
    saved(shared_tmp_path, world)
    dist.all_reduce(torch.ones(1))


@guilty(
    "unguarded",
    "shutil.copyfile(",
    "dist.all_reduce(loss)",
    confirmed=True,
    like="HDFGroup/hdf5 pull 1183: metadata written by one rank between two collectives",
)
def test_the_barrier_is_in_the_try_of_the_copy(world: World, shared_tmp_path: Path) -> None:
    """What failed is told to the log alone."""
    loss, log = torch.ones(1), shared_tmp_path / f"log-{world.rank}"
    log.touch()
    dist.all_reduce(loss)
    try:
        if world.rank == 1:
            shutil.copyfile(log, shared_tmp_path / "best")
        dist.all_reduce(loss)
    except OSError as error:
        print("no copy:", error)


def point_to(folder: Path, step: str) -> None:
    """Note which step is the latest."""
    (folder / "latest").write_text(step)


@guilty(
    "unguarded",
    '(folder / "latest").write_text(step)',
    "dist.barrier()",
    confirmed=True,
    like="ByteDance-Seed/VeOmni pull 1172: one of two uses of a helper is agreed on",
)
def test_the_second_use_of_a_helper_is_not_agreed_on(world: World, shared_tmp_path: Path) -> None:
    """The first failure would be told to all."""
    failed = torch.zeros(1)
    if world.is_primary:
        try:
            point_to(shared_tmp_path, "1")
        except OSError:
            failed += 1
    dist.all_reduce(failed)
    assert not failed
    if world.is_primary:
        point_to(shared_tmp_path, "2")
    dist.barrier()
