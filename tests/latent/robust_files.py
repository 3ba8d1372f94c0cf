"""Checkpoints that are written and read so that a failure of one rank reaches all."""

from __future__ import annotations

import json
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
import torch.distributed as dist
from agreement import all_or_none, any_rank
from expectation import robust


def train_step(weights: torch.Tensor) -> None:
    """Average the gradients of all ranks and apply them."""
    gradient = torch.ones_like(weights)
    dist.all_reduce(gradient)
    weights -= 0.1 * gradient


@robust(ranks=4, backend="gloo")
def test_metadata_is_agreed_on(world, shared_tmp_path) -> None:
    """The primary writes, and all hear whether it could.

    Source: https://github.com/HDFGroup/hdf5/pull/1183 (mended like this)
    """
    weights = torch.zeros(4)
    train_step(weights)
    with all_or_none("writing the metadata"):
        if world.is_primary:
            (shared_tmp_path / "metadata.json").write_text(json.dumps({"step": 1}))
    train_step(weights)


@robust(ranks=4, backend="gloo")
def test_folder_is_made_by_all(world, shared_tmp_path) -> None:
    """Every rank makes the folder, whoever else does, and all agree that it is there.

    Source: https://github.com/NVIDIA-BioNeMo/CodonFM/pull/1
    """
    folder = shared_tmp_path / "run" / "step-1"
    with all_or_none("making the folder"):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"rank-{world.rank}.txt").write_text("started")
    train_step(torch.zeros(4))


@robust(ranks=3, backend="gloo")
def test_checkpoint_is_published_by_agreement(world, shared_tmp_path) -> None:
    """Shards are staged by all, renamed by one, and both are agreed on.

    Source: https://github.com/ByteDance-Seed/VeOmni/pull/1172
    """
    staged = shared_tmp_path / "staged"
    with all_or_none("staging"):
        staged.mkdir(exist_ok=True)
        (staged / f"shard-{world.rank}").write_bytes(b"weights")
    with all_or_none("publishing"):
        if world.is_primary:
            staged.rename(shared_tmp_path / "checkpoint")
    train_step(torch.zeros(4))


@robust(ranks=3, backend="gloo")
def test_old_checkpoints_are_removed_if_possible(world, shared_tmp_path) -> None:
    """What cannot be removed stays; nobody waits for it.

    Source: https://github.com/PrimeIntellect-ai/prime-rl/pull/1763 (mended like this)
    """
    old = shared_tmp_path / "step-1"
    with all_or_none("preparing"):
        if world.is_primary:
            old.mkdir()
            (old / "weights.bin").write_bytes(b"weights")
    if world.is_primary:
        shutil.rmtree(old, ignore_errors=True)
    dist.barrier()


@robust(ranks=3, backend="gloo")
def test_all_try_again_together(world, shared_tmp_path) -> None:
    """If a rank could not write, all write again; after three times all give up.

    Source: modelled on the pattern of https://github.com/ByteDance-Seed/VeOmni/pull/1164
    """
    for _ in range(3):
        has_failed = False
        try:
            (shared_tmp_path / f"shard-{world.rank}").write_bytes(b"weights")
        except OSError:
            has_failed = True
        if not any_rank(has_failed):
            break
    else:
        raise RuntimeError("a shard could not be written three times")
    train_step(torch.zeros(4))


def written(file: Path) -> None:
    """Write a shard under a temporary name, then under its own."""
    file.with_suffix(".tmp").write_bytes(b"weights")
    os.replace(file.with_suffix(".tmp"), file)  # noqa: PTH105


@robust(ranks=3, backend="gloo")
def test_error_of_the_saving_thread_is_raised_by_all(world, shared_tmp_path) -> None:
    """Whoever waits for the thread gets its error, and tells the others before they meet.

    Source: https://github.com/ByteDance-Seed/VeOmni/pull/1181 (asked for in its review)
    """
    with ThreadPoolExecutor(1) as saver:
        saved = saver.submit(written, shared_tmp_path / f"shard-{world.rank}")
        train_step(torch.zeros(4))
        with all_or_none("saving"):
            saved.result()


@robust(ranks=4, backend="gloo")
def test_primary_tells_its_error_with_the_configuration(world) -> None:
    """What is broadcast is the configuration, or why there is none.

    Source: https://github.com/NVIDIA/cosmos-framework/pull/65
    """
    told: list[object] = [None, None]
    if world.is_primary:
        try:
            told[0] = json.loads((Path(__file__).parent / "config.json").read_text())
        except (OSError, ValueError) as error:
            told[1] = repr(error)
    dist.broadcast_object_list(told)
    if told[0] is None:
        raise RuntimeError(told[1])
    train_step(torch.zeros(4))


@robust(ranks=3, backend="gloo")
def test_primary_decides_whether_there_is_a_state(world, shared_tmp_path) -> None:
    """Only the primary asks whether there is a state and reads it; all get the same answer.

    Source: https://github.com/KempnerInstitute/KempnerForge/pull/50 (mended like this)
    """
    state = shared_tmp_path / "train_state.json"
    answer: list[object] = [None]
    if world.is_primary:
        try:
            state.write_text(json.dumps({"step": 2}))
            answer = [json.loads(state.read_text())["step"] if state.exists() else 0]
        except OSError as error:
            answer = [repr(error)]
    dist.broadcast_object_list(answer)
    if not isinstance(answer[0], int):
        raise TypeError(answer[0])  # the primary's error
    for _ in range(answer[0], 4):
        train_step(torch.zeros(4))


@robust(ranks=3, backend="gloo")
def test_others_are_let_in_even_after_an_error(world, shared_tmp_path) -> None:
    """The primary goes first, and opens the door whether it could or not.

    Source: https://github.com/mosaicml/composer/pull/334 (barriers in `finally`)
    """
    cache = shared_tmp_path / "cache.json"
    with all_or_none("preparing the data"):
        try:
            if world.is_primary:
                cache.write_text("[1.0, 2.0]")
        finally:
            dist.barrier()
        rows = json.loads(cache.read_text())
    train_step(torch.tensor(rows))


@robust(ranks=4, backend="gloo")
def test_run_goes_on_without_a_tracker(world, shared_tmp_path) -> None:
    """If the tracker of the primary cannot start, there is none.

    Source: https://github.com/starVLA/starVLA/pull/369 (mended like this)
    """
    log = None
    if world.is_primary:
        try:
            log = (shared_tmp_path / "run.log").open("w")
            log.write("started\n")
            log.flush()
        except OSError as error:
            print("without a tracker:", error)
    train_step(torch.zeros(4))
    print("tracked:", log is not None)


@robust(ranks=3, backend="gloo")
def test_removed_only_after_all_have_loaded(world, shared_tmp_path) -> None:
    """All load, all agree that they have, and then the primary removes the file.

    Source: https://github.com/pytorch/pytorch/pull/84881 (mended like this)
    """
    file = shared_tmp_path / "model.json"
    with all_or_none("saving"):
        if world.is_primary:
            file.write_text("[1.0, 1.0]")
    with all_or_none("loading"):
        weights = torch.tensor(json.loads(file.read_text()))
    with all_or_none("removing"):
        if world.is_primary:
            file.unlink()
    train_step(weights)
