"""One rank lists files in another order, or does not see yet what another has written."""

from __future__ import annotations

import json
import os

import torch
import torch.distributed as dist
from agreement import written_by_primary
from expectation import latent

from pytest_multihost import faults


def meet() -> None:
    """Let all ranks average something."""
    dist.all_reduce(torch.ones(4))  # <- waits


@latent(
    family="differs",
    ranks=3,
    backend="gloo",
    by_hand=faults.shuffled_listing(rank=1, path="*/shards"),
)
def test_shards_are_dealt_in_the_order_of_the_folder(world, shared_tmp_path) -> None:
    """Each rank reads its share of the files, and then needs the rows of its neighbour's.

    Source: https://github.com/alibaba/TorchEasyRec/pull/667
    """
    names = [f"part-{number}" for number in range(4)]
    written_by_primary(world, shared_tmp_path, {f"shards/{name}": "8" for name in names})
    files = os.listdir(shared_tmp_path / "shards")  # <- latent
    mine = {name: len(name) for name in files[world.rank :: world.size]}  # <- latent
    found = [None] * world.size
    dist.all_gather_object(found, mine)  # <- waits
    rows = {name: count for part in found for name, count in part.items()}
    neighbour = (world.rank + 1) % world.size
    print(sum(rows[name] for name in files[neighbour :: world.size]))  # <- latent
    meet()


@latent(
    family="differs",
    ranks=3,
    backend="gloo",
    by_hand=faults.shuffled_listing(rank=2, path="*/checkpoint"),
)
def test_tensors_are_loaded_in_the_order_of_the_folder(world, shared_tmp_path) -> None:
    """Replicated tensors are broadcast and sharded ones reduced, in the order of the files.

    Source: https://github.com/MoonshotAI/checkpoint-engine/pull/103
    """
    kinds = {
        "embedding.replicated": "",
        "layer.sharded": "",
        "norm.replicated": "",
        "z.sharded": "",
    }
    written_by_primary(world, shared_tmp_path / "checkpoint", kinds)
    tensor = torch.ones(4)
    for file in (shared_tmp_path / "checkpoint").iterdir():  # <- latent
        if file.suffix == ".replicated":
            dist.broadcast(tensor, src=0)  # <- waits
        else:
            dist.all_reduce(tensor)  # <- waits


@latent(
    family="differs",
    ranks=2,
    backend="gloo",
    by_hand=faults.shuffled_listing(rank=1, path="*/runs"),
)
def test_first_run_in_the_folder_is_resumed(world, shared_tmp_path) -> None:
    """Each rank resumes the first run that it finds, and these have different steps left.

    Source: https://github.com/ByteDance-Seed/VeOmni/issues/330 (listings in another order)
    """
    runs = {f"runs/run-{step}": str(step) for step in (1, 4)}
    written_by_primary(world, shared_tmp_path, runs)
    with os.scandir(shared_tmp_path / "runs") as entries:  # <- latent
        first = next(iter(entries))
    for _ in range(int(first.name.removeprefix("run-")), 6):
        meet()


@latent(
    family="differs",
    ranks=3,
    backend="gloo",
    by_hand=faults.stale_files(rank=2, seconds=5, path="*/ckpt/*"),
)
def test_each_host_looks_for_the_latest_step(world, shared_tmp_path) -> None:
    """A host that does not see the newest checkpoint yet resumes from an older one.

    Source: https://github.com/LMResiliency/lm-resiliency/pull/85
    """
    checkpoints = shared_tmp_path / "ckpt"
    written_by_primary(world, shared_tmp_path, {"ckpt/step-2.json": "{}"})
    steps = [int(file.stem.removeprefix("step-")) for file in checkpoints.glob("*")]  # <- latent
    for _ in range(max(steps, default=0), 4):
        meet()


@latent(
    family="differs",
    ranks=3,
    backend="gloo",
    by_hand=faults.stale_files(rank=1, seconds=5, path="*/train_state.json"),
)
def test_exists_is_asked_on_every_host(world, shared_tmp_path) -> None:
    """After a barrier all ask for a file that has been written; one host does not see it yet.

    Source: https://github.com/KempnerInstitute/KempnerForge/pull/50
    """
    written_by_primary(world, shared_tmp_path, {"train_state.json": json.dumps({"step": 2})})
    state = [{"step": 0}]
    if (shared_tmp_path / "train_state.json").exists():  # <- latent
        dist.broadcast_object_list(state)  # <- waits
    meet()


@latent(
    family="differs",
    ranks=3,
    backend="gloo",
    by_hand=faults.stale_files(rank=2, seconds=5, path="*/output"),
)
def test_folder_is_not_there_yet_on_another_node(world, shared_tmp_path) -> None:
    """The primary makes a folder, all meet, and one node cannot find it.

    Source: https://github.com/KratosMultiphysics/Kratos/pull/8835
    """
    output = shared_tmp_path / "output"
    written_by_primary(world, shared_tmp_path, {"output/README": "results"})
    if not output.is_dir():  # <- latent
        raise FileNotFoundError(output)  # <- latent
    meet()


@latent(
    family="differs",
    ranks=3,
    backend="gloo",
    by_hand=faults.stale_files(rank=1, seconds=5, path="*/queue/*"),
)
def test_one_collective_for_each_file_seen(world, shared_tmp_path) -> None:
    """Results are reduced for as many files as each rank has seen.

    Source: https://github.com/vllm-project/speculators/pull/867 (ranks that have different numbers
    of samples)
    """
    written_by_primary(world, shared_tmp_path, {f"queue/sample-{n}": "1" for n in range(3)})
    for _ in sorted((shared_tmp_path / "queue").iterdir()):  # <- latent
        meet()
    dist.barrier()  # <- waits
