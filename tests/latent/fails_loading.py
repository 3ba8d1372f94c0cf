"""A read of one rank fails, and the others wait for what it would have told them."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import shutil
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from expectation import latent
from torch.utils.data import DataLoader, Dataset

from pytest_multihost import at, faults

BATCHES = 4


def train_step(batch: torch.Tensor) -> None:
    """Average the gradients of all ranks."""
    gradient = torch.ones(4) * batch.sum()
    dist.all_reduce(gradient)  # <- waits


def write_rows(folder: Path, world) -> None:
    """Write a file of rows for each batch of each rank; an error reaches all ranks."""
    errors: list[object] = [None]
    if world.is_primary:
        try:
            for rank in range(world.size):
                for number in range(BATCHES):
                    (folder / f"rows-{rank}-{number}.json").write_text("[1.0, 2.0]")
        except OSError as error:
            errors = [repr(error)]
    dist.broadcast_object_list(errors)
    if errors[0] is not None:
        raise RuntimeError(errors[0])


class Rows(Dataset):
    """The rows of a rank, each batch in a file of its own."""

    def __init__(self, files: Sequence[Path]) -> None:
        self.files = files

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor(json.loads(self.files[index].read_text()))  # <- latent


def files_of(folder: Path, rank: int) -> list[Path]:
    """Return the files of a rank."""
    return [folder / f"rows-{rank}-{number}.json" for number in range(BATCHES)]


@latent(
    family="fails",
    ranks=4,
    backend="gloo",
    by_hand=faults.fails(rank=0, at=at.io("*/config.json", call="open")),
)
def test_primary_reads_the_configuration(world) -> None:
    """One rank reads for all; if it cannot, the others are in the broadcast for ever.

    Source: https://github.com/quatrex/quatrex/pull/277
    """
    config = [None]
    if world.is_primary:
        text = (Path(__file__).parent / "config.json").read_text()  # <- latent
        config = [json.loads(text)]
    dist.broadcast_object_list(config)  # <- waits
    for _ in range(config[0]["steps"]):
        train_step(torch.ones(2))


@latent(
    family="fails",
    ranks=3,
    backend="gloo",
    by_hand=faults.fails(rank=1, at=at.io("*/config.json", call="stat")),
)
def test_error_of_exists_is_a_no(world) -> None:
    """A rank whose file system errs finds no checkpoint and starts afresh, the others load it.

    Source: https://github.com/KempnerInstitute/KempnerForge/issues/49
    """
    weights = torch.zeros(4)
    if os.path.exists(Path(__file__).parent / "config.json"):  # <- latent  # noqa: PTH110
        dist.broadcast(weights, src=0)  # <- waits
    train_step(weights)


@latent(
    family="fails",
    ranks=3,
    backend="gloo",
    by_hand=faults.fails(rank=2, at=at.io("*/rows-2-1.json", call="open")),
)
def test_loader_meets_an_unreadable_file(world, shared_tmp_path) -> None:
    """One rank's loader raises in the middle of the epoch.

    Source: https://github.com/kohya-ss/musubi-tuner/pull/1088
    """
    write_rows(shared_tmp_path, world)
    for batch in DataLoader(Rows(files_of(shared_tmp_path, world.rank)), batch_size=None):
        train_step(batch)


@latent(
    family="fails",
    ranks=3,
    backend="gloo",
    by_hand=faults.fails(rank=1, at=at.io("*/rows-1-2.json", call="read")),
)
def test_unreadable_batch_is_skipped(world, shared_tmp_path) -> None:
    """A rank skips a batch that it cannot read, so it has one step less.

    Source: https://github.com/facebookresearch/fairseq/pull/3989 (a batch that only one rank skips)
    """
    write_rows(shared_tmp_path, world)
    rows = Rows(files_of(shared_tmp_path, world.rank))
    for number in range(len(rows)):
        try:
            batch = rows[number]  # <- latent
        except OSError as error:
            print("skipped:", error)
            continue
        train_step(batch)


@contextlib.contextmanager
def main_process_first(world) -> Iterator[None]:
    """Let the primary run the body before all others, as accelerate does."""
    if not world.is_primary:
        dist.barrier()  # <- waits
    yield
    if world.is_primary:
        dist.barrier()  # <- waits


@latent(
    family="fails",
    ranks=3,
    backend="gloo",
    by_hand=faults.fails(rank=0, at=at.io("*/cache.json", call="open")),
)
def test_main_process_first_cannot_write_the_cache(world, shared_tmp_path) -> None:
    """The primary prepares the data for all; an error keeps it from letting the others in.

    Source: https://github.com/huggingface/trl/pull/7241 (what is guarded, and by which barriers)
    """
    cache = shared_tmp_path / "cache.json"
    with main_process_first(world):
        if world.is_primary:
            cache.write_text(json.dumps([1.0, 2.0]))  # <- latent
        rows = json.loads(cache.read_text())  # <- latent
    train_step(torch.tensor(rows))


class RunLog:
    """Writes to a file of the run, as a tracker's client does in its offline mode."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "run-1.log"
        self.file.write_text("started\n")  # <- latent


@latent(
    family="fails",
    ranks=4,
    backend="gloo",
    by_hand=faults.fails(rank=0, at=at.io("*/run-1.log", call="open")),
)
def test_tracker_of_the_primary_cannot_start(world, shared_tmp_path) -> None:
    """Only rank 0 has a tracker; the others are in the first collective when it fails to start.

    Source: https://github.com/EleutherAI/bergson/pull/249
    """
    log = RunLog(shared_tmp_path) if world.is_primary else None  # <- latent
    group = dist.new_group(list(range(world.size)))  # <- waits
    dist.all_reduce(torch.ones(4), group=group)  # <- waits
    print("tracked:", log is not None)


@latent(
    family="fails",
    ranks=3,
    backend="gloo",
    by_hand=faults.fails(rank=0, at=at.io("*/mesh.inp", call="open")),
)
def test_primary_downloads_the_mesh(world, shared_tmp_path) -> None:
    """The others wait for a download that has failed.

    Source: https://github.com/trixi-framework/Trixi.jl/pull/2990
    """
    mesh = shared_tmp_path / "mesh.inp"
    if world.is_primary and not mesh.exists():
        shutil.copyfile(Path(__file__).parent / "config.json", mesh)  # <- latent
    dist.barrier()  # <- waits
    train_step(torch.ones(2))


def prefetched(files: Sequence[Path]) -> Iterator[torch.Tensor]:
    """Read files ahead in a thread."""
    found: queue.Queue[torch.Tensor] = queue.Queue(maxsize=1)
    rows = Rows(files)

    def read() -> None:
        for number in range(len(rows)):
            found.put(rows[number])  # <- latent

    threading.Thread(target=read, daemon=True).start()
    for _ in files:
        yield found.get()  # <- latent


@latent(
    family="fails",
    ranks=3,
    backend="gloo",
    by_hand=faults.fails(rank=1, at=at.io("*/rows-1-3.json", call="open")),
)
def test_thread_that_reads_ahead_dies(world, shared_tmp_path) -> None:
    """A thread that reads ahead dies of an error, and its consumer waits for the next batch.

    Source: https://github.com/RadarML/red-rover/issues/23
    """
    write_rows(shared_tmp_path, world)
    for batch in prefetched(files_of(shared_tmp_path, world.rank)):  # <- latent
        train_step(batch)


@latent(
    family="fails",
    ranks=3,
    backend="gloo",
    by_hand=faults.fails(rank=2, at=at.io("*/config.json", call="open")),
)
def test_unreadable_state_means_a_new_run(world) -> None:
    """A rank that cannot read the state begins at step 0, the others go on at step 2.

    Source: https://github.com/mosaicml/composer/pull/2054 (a checkpoint that only some nodes have)
    """
    try:
        state = json.loads((Path(__file__).parent / "config.json").read_text())  # <- latent
    except OSError:
        state = {"steps": 0}
    for _ in range(state["steps"], 5):
        train_step(torch.ones(2))
