"""One rank is late between what it writes and what others look for, and no barrier is between."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path

import torch
import torch.distributed as dist
from expectation import latent

from pytest_multihost import at, faults

BUILD_S = 0.3
"""What building a model takes here."""


def build_model() -> torch.Tensor:
    """Return the weights of a new model, after a while."""
    time.sleep(BUILD_S)
    return torch.zeros(4)


def train_step(weights: torch.Tensor) -> None:
    """Average the gradients of all ranks and apply them."""
    gradient = torch.ones_like(weights)
    dist.all_reduce(gradient)  # <- waits
    weights -= 0.1 * gradient


@latent(
    family="late",
    ranks=3,
    backend="gloo",
    by_hand=faults.hold(rank=0, at=at.io("*/train_state.json", call="open")),
)
def test_resumes_if_there_is_a_state(world, shared_tmp_path) -> None:
    """Each rank asks by itself whether there is a state to resume from.

    Source: https://github.com/KempnerInstitute/KempnerForge/issues/49
    """
    state = shared_tmp_path / "train_state.json"
    if world.is_primary:
        state.write_text(json.dumps({"step": 7}))  # <- latent
    weights = build_model()
    progress = [{"step": 0}]
    if state.exists():  # <- latent
        if world.is_primary:
            progress = [json.loads(state.read_text())]
        dist.broadcast_object_list(progress)  # <- waits
    for _ in range(progress[0]["step"], 9):
        train_step(weights)


@latent(
    family="late",
    ranks=4,
    backend="gloo",
    by_hand=faults.hold(rank=2, at=at.io("*/output", call="stat")),
)
def test_barrier_inside_if_missing(world, shared_tmp_path) -> None:
    """Who comes late finds the folder made and skips the barrier of all others.

    Source: https://github.com/SeisSol/SeisSol/pull/1107
    """
    output = shared_tmp_path / "output"
    if not output.exists():  # <- latent
        if world.is_primary:
            build_model()
            output.mkdir()
        dist.barrier()  # <- waits
    train_step(torch.zeros(4))


@latent(
    family="late",
    ranks=2,
    backend="gloo",
    by_hand=faults.hold(rank=0, at=at.io("*/log", call="mkdir")),
)
def test_makes_the_log_folder_if_missing(world, shared_tmp_path) -> None:
    """Another rank makes the folder between the question and the answer.

    Source: https://github.com/allenai/allennlp/issues/3841
    """
    weights = torch.zeros(4) if world.is_primary else build_model()
    log = shared_tmp_path / "log"
    if not os.path.exists(log):  # noqa: PTH110 - as in the source
        os.makedirs(log)  # <- latent  # noqa: PTH103
    train_step(weights)
    print("logging to", log / f"rank-{world.rank}.txt")


@latent(
    family="late",
    ranks=3,
    backend="gloo",
    by_hand=faults.hold(rank=1, at=at.io("*/model.pt", call="open")),
)
def test_removes_the_checkpoint_after_loading(world, shared_tmp_path) -> None:
    """The primary removes the file once it has loaded it itself.

    Source: https://github.com/pytorch/pytorch/pull/84881
    """
    file = shared_tmp_path / "model.pt"
    if world.is_primary:
        torch.save(torch.ones(4), file)
    dist.barrier()
    weights = torch.load(file)  # <- latent
    if world.is_primary:
        build_model()
        file.unlink()
    train_step(weights)


@latent(
    family="late",
    ranks=3,
    backend="gloo",
    by_hand=faults.hold(rank=0, at=at.io("*/exit_now", call="open")),
)
def test_each_rank_looks_for_the_exit_file(world, shared_tmp_path) -> None:
    """The file that stops a run is looked for by each rank at its own time.

    Source: https://github.com/uDALES/u-dales/pull/151
    """
    weights = torch.zeros(4)
    for step in range(4):
        if (shared_tmp_path / "exit_now").exists():
            break
        train_step(weights)
        if step == 1 and world.is_primary:
            (shared_tmp_path / "exit_now").touch()  # <- latent
        elif step == 1:
            build_model()


def waited_for(file: Path, tries: int = 25) -> bool:
    """Return whether a file appears within half a second."""
    for _ in range(tries):
        if file.exists():  # <- latent
            return True
        time.sleep(0.02)
    return False


@latent(
    family="late",
    ranks=3,
    backend="gloo",
    by_hand=faults.hold(rank=0, at=at.io("*_completed", call="open"), min_s=2),
)
def test_polls_too_few_times_for_the_prepared_data(world, shared_tmp_path) -> None:
    """Who has not seen the signal file in time prepares the data alone.

    Source: https://github.com/mosaicml/llm-foundry/pull/716 (the file and its polling)
    """
    signal = shared_tmp_path / ".node_0_local_rank0_data_prep_completed"
    rows = torch.arange(4.0)
    if world.is_primary:
        signal.write_text("ok")  # <- latent
        dist.broadcast(rows, src=0)  # <- waits
    elif waited_for(signal):
        dist.broadcast(rows, src=0)  # <- waits
    train_step(rows)


@latent(
    family="late",
    ranks=3,
    backend="gloo",
    by_hand=faults.hold(rank=0, at=at.io("*/latest", call="link", nth=2)),
)
def test_latest_is_gone_for_a_moment(world, shared_tmp_path) -> None:
    """The link to the newest checkpoint is removed and made anew; who looks between starts over.

    Source: https://github.com/KempnerInstitute/KempnerForge/issues/49 (the link `latest`)
    """
    latest = shared_tmp_path / "latest"
    if world.is_primary:
        latest.symlink_to("step-1")
    dist.barrier()
    if world.is_primary:
        latest.unlink()
        latest.symlink_to("step-2")  # <- latent
    weights = build_model()
    start = 0
    if latest.is_symlink():
        start = int(os.readlink(latest).removeprefix("step-"))
    for _ in range(start, 4):
        train_step(weights)


@latent(
    family="late",
    ranks=3,
    backend="gloo",
    by_hand=faults.hold(rank=0, at=at.io("*/download.claim", call="open")),
)
def test_whoever_comes_first_downloads(world, shared_tmp_path) -> None:
    """The first to make the claim downloads, and rank 0 takes itself to be the first.

    Source: https://github.com/huggingface/trl/issues/7223 (several ranks take themselves to be
    the one that prepares)
    """
    weights = torch.zeros(4)
    if not world.is_primary:
        time.sleep(BUILD_S)
    try:
        (shared_tmp_path / "download.claim").touch(exist_ok=False)  # <- latent
        weights = torch.ones(4)
    except FileExistsError:
        dist.barrier()  # <- waits
    if world.is_primary:
        dist.barrier()  # <- waits
    train_step(weights)


@latent(
    family="late",
    ranks=3,
    backend="gloo",
    by_hand=faults.hold(rank=2, at=at.io("*/pending/*", call="rename")),
)
def test_tasks_are_claimed_by_rename(world, shared_tmp_path) -> None:
    """There are as many tasks as ranks; who is late finds its own taken by another.

    Source: https://github.com/warpem/warp/pull/483 (claims by rename in a shared folder)
    """
    pending, running = shared_tmp_path / "pending", shared_tmp_path / "running"
    if world.is_primary:
        running.mkdir()
        pending.mkdir()
        for number in range(world.size):
            (pending / f"task-{number}").touch()
    dist.barrier()
    done = []
    for turn in range(world.size):
        name = f"task-{(world.rank + turn) % world.size}"
        try:
            (pending / name).rename(running / name)  # <- latent
        except FileNotFoundError:
            continue
        done.append(build_model())
    for each in done:
        train_step(each)


@latent(
    family="late",
    ranks=2,
    backend="gloo",
    by_hand=faults.hold(rank=1, at=at.io("*/step-1", call="listdir")),
)
def test_old_checkpoints_are_removed_while_others_load(world, shared_tmp_path) -> None:
    """Rank 1 lists the files of a checkpoint that rank 0 removes, and tries to read them.

    Source: https://github.com/facebookresearch/capi/issues/9
    """
    old = shared_tmp_path / "step-1"
    if world.is_primary:
        old.mkdir()
        (old / "shard-0.json").write_text("[1, 2]")
        dist.barrier()
        build_model()
        shutil.rmtree(old)
        rows = [0]
    else:
        dist.barrier()
        rows = json.loads(next(iter(old.iterdir())).read_text())  # <- latent
    train_step(torch.zeros(4) + len(rows))
