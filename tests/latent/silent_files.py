"""What ranks leave in files is not what it says, and no rank fails or waits."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from agreement import all_or_none, written_by_primary
from expectation import latent
from left_behind import all_load

from pytest_multihost import at, faults

EVALUATION_S = 0.25


def meet() -> None:
    """Let all ranks average something."""
    dist.all_reduce(torch.ones(4))


def shards(folder: Path, size: int) -> list[Path]:
    """Return the file of each rank."""
    return [folder / f"shard-{rank}.json" for rank in range(size)]


def write_shard(file: Path) -> None:
    """Write what this rank has of the checkpoint."""
    file.write_text("[1.0, 2.0]")  # <- latent


def latest_is_whole(fixtures: Mapping[str, Any]) -> None:
    """Fail if the newest checkpoint lacks a shard."""
    folder = fixtures["shared_tmp_path"]
    all_load(shards(folder / (folder / "latest").read_text(), fixtures["world"].size))


@latent(
    family="fails",
    outcome="wrong",
    names="shard-1.json",
    ranks=3,
    backend="gloo",
    by_hand=faults.fails(rank=1, at=at.io("*/step-2/shard-1.json", call="open")),
    seen_by=latest_is_whole,
)
def test_latest_moves_on_before_the_shards_are_safe(world, shared_tmp_path) -> None:
    """Threads write the shards; `latest` names the step although one of them has died.

    Source: https://github.com/KempnerInstitute/KempnerForge/issues/102
    """
    folder = shared_tmp_path / "step-2"
    with all_or_none("making the folder"):
        folder.mkdir(exist_ok=True)
    saver = threading.Thread(target=write_shard, args=(folder / f"shard-{world.rank}.json",))
    saver.start()
    meet()
    saver.join()  # <- latent
    dist.barrier()
    if world.is_primary:
        (shared_tmp_path / "latest").write_text("step-2")  # <- latent


def save_or_log(file: Path, rows: Sequence[float]) -> None:
    """Write rows, or say that this was not possible."""
    try:
        file.write_text(json.dumps(rows))  # <- latent
    except OSError as error:  # <- latent
        print("not saved:", error)


def success_is_whole(fixtures: Mapping[str, Any]) -> None:
    """Fail if a checkpoint that is marked as complete lacks a shard."""
    folder = fixtures["shared_tmp_path"] / "step-1"
    if (folder / "_SUCCESS").exists():
        all_load(shards(folder, fixtures["world"].size))


@latent(
    family="fails",
    outcome="wrong",
    names="shard-2.json",
    ranks=3,
    backend="gloo",
    by_hand=faults.fails(rank=2, at=at.io("*/step-1/shard-2.json", call="write", onwards=True)),
    seen_by=success_is_whole,
)
def test_failed_shard_is_logged_and_committed(world, shared_tmp_path) -> None:
    """A rank logs that it could not write, and the primary marks the checkpoint as complete.

    Source: https://github.com/sgl-project/SpecForge/pull/659 (a mark only after all have confirmed)
    """
    folder = shared_tmp_path / "step-1"
    with all_or_none("making the folder"):
        folder.mkdir(exist_ok=True)
    save_or_log(folder / f"shard-{world.rank}.json", [1.0, 2.0])  # <- latent
    dist.barrier()
    if world.is_primary:
        (folder / "_SUCCESS").touch()  # <- latent


def index_is_whole(fixtures: Mapping[str, Any]) -> None:
    """Fail if the index names a file that does not load."""
    folder = fixtures["shared_tmp_path"]
    index = json.loads((folder / "model.index.json").read_text())
    all_load(folder / name for name in index["weight_map"].values())


@latent(
    family="fails",
    outcome="wrong",
    names="model-1.pt",
    ranks=2,
    backend="gloo",
    by_hand=faults.fails(rank=1, at=at.io("*/model-1.pt", call="open")),
    seen_by=index_is_whole,
)
def test_index_names_a_file_that_was_not_written(world, shared_tmp_path) -> None:
    """The primary writes an index of all files, whether or not each rank has written its own.

    Source: https://github.com/sgl-project/sglang/pull/32279 (an index with shards that are absent)
    """
    try:
        with (shared_tmp_path / f"model-{world.rank}.pt").open("wb") as file:  # <- latent
            torch.save({f"layer.{world.rank}": torch.ones(2)}, file)  # <- latent
    except OSError as error:  # <- latent
        print("not saved:", error)
    dist.barrier()
    if world.is_primary:
        names = {f"layer.{rank}": f"model-{rank}.pt" for rank in range(world.size)}
        index = json.dumps({"weight_map": names})
        (shared_tmp_path / "model.index.json").write_text(index)  # <- latent


def keep(state: Mapping[str, int], file: Path) -> None:
    """Write a state over the one from before."""
    try:
        with file.open("w") as out:  # <- latent
            json.dump(state, out)  # <- latent
    except OSError as error:  # <- latent
        print("the state from before stays:", error)


def state_loads(fixtures: Mapping[str, Any]) -> None:
    """Fail if there is no whole state."""
    all_load([fixtures["shared_tmp_path"] / "state.json"])


@latent(
    family="fails",
    outcome="wrong",
    names="state.json",
    ranks=2,
    backend="gloo",
    by_hand=faults.fails(rank=0, at=at.io("*/state.json", call="write", nth=2, onwards=True)),
    seen_by=state_loads,
)
def test_good_state_is_overwritten_in_place(world, shared_tmp_path) -> None:
    """The file from before is emptied first, so an error that is handled leaves none.

    Source: https://github.com/Q00/ouroboros/issues/1830
    """
    for step in (1, 2):
        meet()
        if world.is_primary:
            keep({"step": step}, shared_tmp_path / "state.json")  # <- latent


def last_weights_load(fixtures: Mapping[str, Any]) -> None:
    """Fail if the last weights of a rank do not load."""
    folder, size = fixtures["shared_tmp_path"], fixtures["world"].size
    all_load(folder / f"last-{rank}.pt" for rank in range(size))


@latent(
    family="fails",
    outcome="wrong",
    names="last-1.pt",
    ranks=2,
    backend="gloo",
    by_hand=faults.fails(rank=1, at=at.io("*/last-1.pt", call="write", nth=2, onwards=True)),
    seen_by=last_weights_load,
)
def test_last_weights_are_torn(world, shared_tmp_path) -> None:
    """Each rank writes its last weights over those from before; an error is only logged.

    Source: https://github.com/facebookresearch/metaseq/issues/53 (a last checkpoint of zero bytes)
    """
    weights = torch.ones(4096)
    for step in range(2):
        meet()
        try:
            with (shared_tmp_path / f"last-{world.rank}.pt").open("wb") as file:  # <- latent
                torch.save(weights * step, file)  # <- latent
        except (OSError, RuntimeError) as error:  # <- latent
            print("not saved:", error)


@latent(
    family="differs",
    outcome="wrong",
    ranks=3,
    backend="gloo",
    by_hand=faults.clock_skew(rank=2, seconds=7200),
)
def test_shards_are_saved_under_the_hour(world, shared_tmp_path) -> None:
    """Each rank names the folder after its own clock, and one shard lands in another folder.

    Source: https://github.com/TensorAuto/OpenTau/pull/396
    """
    folder = shared_tmp_path / datetime.now().strftime("%Y%m%d_%H")  # <- latent  # noqa: DTZ005
    with all_or_none("saving"):
        folder.mkdir(exist_ok=True)
        (folder / f"shard-{world.rank}.json").write_text("[1.0]")
    if world.is_primary:
        assert len(os.listdir(folder)) == world.size  # <- latent


@latent(
    family="differs",
    outcome="wrong",
    ranks=3,
    backend="gloo",
    by_hand=faults.stale_files(rank=1, seconds=5, path="*/version"),
)
def test_version_is_read_by_each_rank(world, shared_tmp_path) -> None:
    """A rank that does not see the number of the run logs into another run's folder.

    Source: https://github.com/Lightning-AI/pytorch-lightning/issues/8945
    """
    written_by_primary(world, shared_tmp_path, {"version": "3"})
    counter = shared_tmp_path / "version"
    version = 0
    if os.path.exists(counter):  # <- latent  # noqa: PTH110 - False on any error
        version = int(counter.read_text())
    logs = shared_tmp_path / f"version_{version}"
    with all_or_none("logging"):
        logs.mkdir(exist_ok=True)
        (logs / f"rank-{world.rank}.log").write_text("started\n")
    if world.is_primary:
        assert len(os.listdir(shared_tmp_path / "version_3")) == world.size  # <- latent


@latent(
    family="late",
    outcome="wrong",
    ranks=2,
    backend="gloo",
    by_hand=faults.hold(rank=0, at=at.io("*/checkpoint-1.json", call="open")),
)
def test_newest_is_what_was_written_last(world, shared_tmp_path) -> None:
    """Ranks save in turns; a rank that is late makes the older checkpoint the newest file.

    Source: https://github.com/huggingface/transformers/pull/28862
    """
    if not world.is_primary:
        time.sleep(EVALUATION_S)
    with all_or_none("saving"):
        step = world.rank + 1
        (shared_tmp_path / f"checkpoint-{step}.json").write_text("[]")  # <- latent
    if world.is_primary:
        files = list(shared_tmp_path.glob("checkpoint-*.json"))
        kept = max(files, key=lambda file: file.stat().st_mtime_ns)  # <- latent
        for file in files:
            if file != kept:
                file.unlink()
        assert kept.name == "checkpoint-2.json"  # <- latent


@latent(
    family="late",
    outcome="wrong",
    ranks=3,
    backend="gloo",
    by_hand=faults.hold(rank=1, at=at.io("*/scores-1.json", call="open")),
)
def test_primary_merges_the_scores_that_are_there(world, shared_tmp_path) -> None:
    """The primary needs longest, so usually all have written when it begins to merge.

    Source: https://github.com/NVIDIA/DeepLearningExamples/issues/74 (a wait for all, without which
    a rank's part is missing)
    """
    meet()
    (shared_tmp_path / f"scores-{world.rank}.json").write_text("[1.0]")  # <- latent
    if world.is_primary:
        time.sleep(EVALUATION_S)
        files = sorted(shared_tmp_path.glob("scores-*.json"))  # <- latent
        scores = [score for file in files for score in json.loads(file.read_text())]
        assert len(scores) == world.size  # <- latent


@latent(
    family="differs",
    outcome="wrong",
    ranks=3,
    backend="gloo",
    by_hand=faults.shuffled_listing(rank=2, path="*/labels"),
)
def test_features_meet_labels_by_their_place_in_a_folder(world, shared_tmp_path) -> None:
    """Two folders are listed, and what has the same place in both is taken as a pair.

    Source: https://github.com/chuanyangjin/fast-DiT/issues/4
    """
    texts = {f"{kind}/{n}.json": str(n) for kind in ("features", "labels") for n in range(4)}
    written_by_primary(world, shared_tmp_path, texts)
    features = os.listdir(shared_tmp_path / "features")  # <- latent
    labels = os.listdir(shared_tmp_path / "labels")  # <- latent
    meet()
    for feature, label in zip(features, labels, strict=True):  # <- latent
        read = [
            json.loads((shared_tmp_path / part).read_text())
            for part in (f"features/{feature}", f"labels/{label}")
        ]
        assert read[0] == read[1]  # <- latent


def keep_if_possible(weights: torch.Tensor, file: Path) -> None:
    """Write weights; training goes on without them if that is not possible."""
    with suppress(OSError, RuntimeError):  # <- latent
        torch.save(weights, file)  # <- latent


def weights_are_there(fixtures: Mapping[str, Any]) -> None:
    """Fail if training has left no weights."""
    assert list(fixtures["shared_tmp_path"].glob("*.pt"))


@latent(
    family="fails",
    outcome="wrong",
    ranks=2,
    backend="gloo",
    by_hand=faults.fails(rank=0, at=at.io("*/last.pt", call="open", onwards=True)),
    seen_by=weights_are_there,
)
def test_training_ends_without_weights(world, shared_tmp_path) -> None:
    """No error of saving ends the training, and none is reported.

    Source: https://github.com/facebookresearch/ClassyVision/pull/528
    """
    for _ in range(2):
        meet()
        if world.is_primary:
            keep_if_possible(torch.ones(4), shared_tmp_path / "last.pt")  # <- latent
