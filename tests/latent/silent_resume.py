"""A resumed or saved run is not whole on one rank, and neither a rank nor a test notices it."""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo  # wrapping a model imports it, for seconds
import torch.distributed as dist
from agreement import all_or_none, written_by_primary
from expectation import latent
from left_behind import all_load

from pytest_multihost import at, faults

DRAWN: dict[str, float] = {}
"""What each rank has drawn after it resumed, for the programs run by hand."""


def meet() -> None:
    """Let all ranks average something."""
    dist.all_reduce(torch.ones(4))


def save_states(world, folder: Path) -> None:
    """Let the primary save a state of torch's random numbers for each rank."""
    dist.barrier()  # so that for every rank they are new
    with all_or_none("saving the states"):
        if world.is_primary:
            for rank in range(world.size):
                made = torch.Generator().manual_seed(100 + rank)
                torch.save({"torch": made.get_state()}, folder / f"rng-{rank}.pt")


def all_have_resumed(fixtures: Mapping[str, Any]) -> None:
    """Fail if a rank's next random number is not the one of its saved state."""
    rank = fixtures["world"].rank
    wanted = torch.rand(1, generator=torch.Generator().manual_seed(100 + rank))
    assert DRAWN["first"] == float(wanted)


def restore_if_there(file: Path) -> None:
    """Restore the state of the random numbers, if this rank has one."""
    if not file.exists():  # <- latent
        print("no random state for this rank; the run may not be reproducible")
        return
    torch.set_rng_state(torch.load(file)["torch"])


@latent(
    family="differs",
    outcome="wrong",
    names="random",
    ranks=3,
    backend="gloo",
    by_hand=faults.stale_files(rank=1, seconds=5, path="*/rng-1.pt"),
    seen_by=all_have_resumed,
)
def test_rank_without_its_random_state_goes_on(world, shared_tmp_path) -> None:
    """A rank that does not see its file keeps its seed, and only says so.

    Source: transformers, Trainer._load_rng_state ("Didn't find an RNG file for process ...")
    """
    torch.manual_seed(7)
    save_states(world, shared_tmp_path)
    restore_if_there(shared_tmp_path / f"rng-{world.rank}.pt")  # <- latent
    DRAWN["first"] = float(torch.rand(1))
    meet()


@latent(
    family="fails",
    outcome="wrong",
    names="random",
    ranks=3,
    backend="gloo",
    by_hand=faults.fails(rank=2, at=at.io("*/rng-2.pt", call="open")),
    seen_by=all_have_resumed,
)
def test_unreadable_random_state_is_logged(world, shared_tmp_path) -> None:
    """Any error of loading the states is logged, and training goes on from the seed.

    Source: accelerate, load_accelerator_state ("Could not load random states")
    """
    torch.manual_seed(7)
    save_states(world, shared_tmp_path)
    try:
        states = torch.load(shared_tmp_path / f"rng-{world.rank}.pt")  # <- latent
        torch.set_rng_state(states["torch"])
        print("all random states were loaded")
    except Exception:  # noqa: BLE001  # <- latent
        print("could not load random states")
    DRAWN["first"] = float(torch.rand(1))
    meet()


class Shuffle:
    """The order of the samples; a resumed run goes on in the saved order."""

    def __init__(self) -> None:
        random.seed(3)

    def restore(self, folder: Path) -> bool:
        """Restore the order, if the checkpoint has it; return whether it has."""
        names = [each.name for each in folder.iterdir()]  # <- latent
        if "shuffle.json" not in names:  # <- latent
            return False
        version, inner, gauss = json.loads((folder / "shuffle.json").read_text())
        random.setstate((version, tuple(inner), gauss))
        return True


def all_draw_alike(fixtures: Mapping[str, Any]) -> None:
    """Fail if the ranks draw different samples."""
    found: list[object] = [None] * fixtures["world"].size
    dist.all_gather_object(found, DRAWN["sample"])
    assert all(each == found[0] for each in found), found


@latent(
    family="differs",
    outcome="wrong",
    names="random",
    ranks=3,
    backend="gloo",
    by_hand=faults.stale_files(rank=2, seconds=5, path="*/checkpoint/shuffle.json"),
    seen_by=all_draw_alike,
)
def test_order_of_samples_is_resumed_by_who_lists_it(world, shared_tmp_path) -> None:
    """One rank shuffles anew, so some samples are seen twice and others never.

    Source: https://github.com/mosaicml/composer/pull/2146 (state that each rank resumes by itself)
    """
    state = random.Random(11).getstate()
    texts = {"checkpoint/shuffle.json": json.dumps(state), "checkpoint/step": "4"}
    written_by_primary(world, shared_tmp_path, texts)
    shuffle = Shuffle()
    if shuffle.restore(shared_tmp_path / "checkpoint"):  # <- latent
        print("the order was resumed")
    DRAWN["sample"] = random.random()
    meet()


def in_one_folder(fixtures: Mapping[str, Any]) -> None:
    """Fail if the shards of a checkpoint are not in one folder."""
    files = [
        *fixtures["shared_tmp_path"].rglob("*.pt"),
        *fixtures["shared_tmp_path"].rglob("*.npy"),
    ]
    assert len({each.parent for each in files}) == 1, files


@latent(
    family="differs",
    outcome="wrong",
    names="shard-1.pt",
    ranks=3,
    backend="gloo",
    by_hand=faults.clock_skew(rank=1, seconds=7200),
    seen_by=in_one_folder,
)
def test_checkpoint_lies_under_the_hour_of_each_rank(world, shared_tmp_path) -> None:
    """Each rank names the folder after its own clock; nobody looks whether all are in one.

    Source: https://github.com/TensorAuto/OpenTau/pull/396
    """
    meet()
    stamp = time.strftime("%Y-%m-%d_%H")  # <- latent
    folder = shared_tmp_path / f"checkpoint-{stamp}"  # <- latent
    with all_or_none("saving"):
        folder.mkdir(exist_ok=True)
        torch.save(torch.ones(2), folder / f"shard-{world.rank}.pt")
    meet()


@latent(
    family="differs",
    outcome="wrong",
    names="model_2.pt",
    ranks=4,
    backend="gloo",
    by_hand=faults.clock_skew(rank=2, seconds=90_000),
    seen_by=in_one_folder,
)
def test_run_is_named_after_the_day_of_each_rank(world, shared_tmp_path) -> None:
    """Shortly after midnight some ranks are in yesterday's folder.

    Source: https://github.com/TensorAuto/OpenTau/pull/396
    """
    root = shared_tmp_path / "runs" / time.strftime("%y%m%d")  # <- latent
    for step in range(2):
        meet()
        with all_or_none("saving"):
            (root / f"step_{step}").mkdir(parents=True, exist_ok=True)
            if step:
                torch.save(torch.ones(2), root / f"step_{step}" / f"model_{world.rank}.pt")


def save_or_log(file: Path) -> None:
    """Save this rank's shard, or log that it was not possible."""
    try:
        torch.save(torch.ones(2), file)  # <- latent
    except (OSError, RuntimeError) as error:  # <- latent
        print("this shard was not saved:", error)


def published_is_whole(fixtures: Mapping[str, Any]) -> None:
    """Fail if the published checkpoint lacks a shard."""
    folder = fixtures["shared_tmp_path"] / "step-3"
    all_load(folder / f"shard-{rank}.pt" for rank in range(fixtures["world"].size))


@latent(
    family="fails",
    outcome="wrong",
    names="shard-2.pt",
    ranks=3,
    backend="gloo",
    by_hand=faults.fails(rank=2, at=at.io("*/step-3.tmp/shard-2.pt", call="open", onwards=True)),
    seen_by=published_is_whole,
)
def test_folder_is_renamed_without_a_shard(world, shared_tmp_path) -> None:
    """The primary publishes the folder by its final name once all are at the barrier.

    Source: https://github.com/sgl-project/SpecForge/pull/659 (published only after all confirm)
    """
    part = shared_tmp_path / "step-3.tmp"
    with all_or_none("making the folder"):
        part.mkdir(exist_ok=True)
    save_or_log(part / f"shard-{world.rank}.pt")  # <- latent
    dist.barrier()
    with all_or_none("publishing"):
        if world.is_primary:
            os.rename(part, shared_tmp_path / "step-3")  # noqa: PTH104


def index_has_all(fixtures: Mapping[str, Any]) -> None:
    """Fail if the index names fewer shards than there are ranks."""
    index = json.loads((fixtures["shared_tmp_path"] / "model.index.json").read_text())
    assert len(index["shards"]) == fixtures["world"].size


@latent(
    family="differs",
    outcome="wrong",
    names="model.index.json",
    ranks=3,
    backend="gloo",
    by_hand=faults.stale_files(rank=0, seconds=5, path="*/model-2.pt"),
    seen_by=index_has_all,
)
def test_index_has_the_shards_that_the_primary_sees(world, shared_tmp_path) -> None:
    """A shard that the primary's file system does not show yet is in no index, and never loaded.

    Source: https://github.com/sgl-project/sglang/pull/32279 (an index that does not fit the shards)
    """
    with all_or_none("saving"):
        torch.save(torch.ones(2), shared_tmp_path / f"model-{world.rank}.pt")
    with all_or_none("publishing"):
        if world.is_primary:
            shards = sorted(each.name for each in shared_tmp_path.glob("model-*.pt"))  # <- latent
            text = json.dumps({"shards": shards})
            (shared_tmp_path / "model.index.json").write_text(text)  # <- latent


@pytest.mark.parametrize("keeps", [2])
@latent(
    family="fails",
    outcome="wrong",
    names="shard-1.pt",
    ranks=2,
    backend="gloo",
    by_hand=faults.fails(rank=1, at=at.io("*/step-3/shard-1.pt", call="open", onwards=True)),
    seen_by=published_is_whole,
)
def test_newest_checkpoint_lacks_a_shard_and_older_ones_are_removed(
    world, shared_tmp_path, keeps
) -> None:
    """The primary removes old checkpoints although the newest one is not whole.

    Source: https://github.com/NVIDIA/Megatron-LM/issues/1052 (old checkpoints that are removed)
    """
    for step in range(1, 4):
        folder = shared_tmp_path / f"step-{step}"
        with all_or_none("making the folder"):
            folder.mkdir(exist_ok=True)
        save_or_log(folder / f"shard-{world.rank}.pt")  # <- latent
        dist.barrier()
        with all_or_none("removing"):
            if world.is_primary and step > keeps:
                old = shared_tmp_path / f"step-{step - keeps}"
                for file in sorted(old.iterdir()):
                    file.unlink()
                old.rmdir()
