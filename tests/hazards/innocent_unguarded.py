"""Calls of some ranks that can fail, after which all meet whether they did or not."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist
from expectation import innocent

from pytest_multihost import World


@contextmanager
def all_or_none(what: str) -> Iterator[None]:
    """Raise on all ranks if the body has failed on one of them."""
    failed = torch.zeros(1)
    try:
        yield
    except OSError:
        failed += 1
    dist.all_reduce(failed)
    if failed:
        raise RuntimeError(what)


@innocent(ranks=3)
def test_metadata_is_agreed_on(world: World, shared_tmp_path: Path) -> None:
    """The primary writes, and all hear whether it could."""
    with all_or_none("writing"):
        if world.is_primary:
            (shared_tmp_path / "metadata.json").write_text("{}")
    dist.barrier()


@innocent()
def test_the_error_is_broadcast(world: World, shared_tmp_path: Path) -> None:
    """What is sent is the configuration, or why there is none."""
    config, told = shared_tmp_path / "config.json", [None, None]
    if world.is_primary:
        try:
            config.write_text("{}")
            told[0] = json.loads(config.read_text())
        except (OSError, ValueError) as error:
            told[1] = repr(error)  # type: ignore[call-overload]
    dist.broadcast_object_list(told)
    assert told[1] is None


@innocent()
def test_the_door_is_opened_in_any_case(world: World, shared_tmp_path: Path) -> None:
    """The primary goes first, and lets the others in whether it could or not."""
    try:
        if world.is_primary:
            (shared_tmp_path / "cache").write_text("1")
    finally:
        dist.barrier()


@innocent(ranks=3)
def test_old_checkpoints_are_removed_if_possible(world: World, shared_tmp_path: Path) -> None:
    """What cannot be removed stays."""
    old = shared_tmp_path / f"step-{world.rank}"
    old.mkdir()
    dist.barrier()
    if world.is_primary:
        shutil.rmtree(old, ignore_errors=True)
    dist.barrier()


@innocent()
def test_the_run_goes_on_without_a_tracker(world: World, shared_tmp_path: Path) -> None:
    """If the log of the primary cannot be opened, there is none."""
    if world.is_primary:
        try:
            (shared_tmp_path / "run.log").write_text("started")
        except OSError as error:
            print("without a tracker:", error)
    dist.all_reduce(torch.ones(1))


@innocent(ranks=3)
def test_every_rank_writes_its_shard(world: World, shared_tmp_path: Path) -> None:
    """All do the same: one line, and no rank alone."""
    (shared_tmp_path / f"shard-{world.rank}").write_bytes(b"weights")
    dist.barrier()


@innocent()
def test_one_rank_writes_when_nobody_waits_any_more(world: World, shared_tmp_path: Path) -> None:
    """After the last operation."""
    dist.all_reduce(torch.ones(1))
    if world.is_primary:
        (shared_tmp_path / "done").touch()


def point_to(folder: Path, step: str) -> None:
    """Note which step is the latest."""
    (folder / "latest").write_text(step)


@innocent()
def test_a_helper_is_guarded_where_one_rank_uses_it(world: World, shared_tmp_path: Path) -> None:
    """All ranks use it first, where a failure is every rank's own."""
    own = shared_tmp_path / str(world.rank) if world.rank else shared_tmp_path
    own.mkdir(exist_ok=True)
    point_to(own, "0")
    dist.barrier()
    failed = torch.zeros(1)
    if world.is_primary:
        try:
            point_to(shared_tmp_path, "1")
        except OSError:
            failed += 1
    dist.all_reduce(failed)
    assert not failed
