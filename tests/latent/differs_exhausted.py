"""Under DDP the data of one rank are exhausted early, and no DataLoader of torch yields them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import torch
import torch._dynamo  # wrapping a model imports it, for seconds
from agreement import written_by_primary
from expectation import latent
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset

from pytest_multihost import at, faults

ROWS = 6


def write_rows(world, folder: Path) -> None:
    """Let the primary write a file of rows for each rank."""
    text = "\n".join(json.dumps([float(number)] * 4) for number in range(ROWS))
    texts = {f"part-{rank}.jsonl": text for rank in range(world.size)}
    written_by_primary(world, folder, texts)


def read_batches(file: Path) -> Iterator[torch.Tensor]:
    """Yield the rows of a rank's own file, one after the other."""
    with file.open() as rows:
        for row in rows:
            yield torch.tensor([json.loads(row)])


def make_model() -> DistributedDataParallel:
    """Return a small model."""
    torch.manual_seed(0)
    return DistributedDataParallel(torch.nn.Linear(4, 1))


def train(model: DistributedDataParallel, batch: torch.Tensor) -> None:
    """Make one step."""
    model.zero_grad()
    model(batch).sum().backward()  # <- waits
    for each in model.parameters():
        each.data -= 0.01 * each.grad


@latent(
    family="differs",
    ranks=3,
    backend="gloo",
    by_hand=faults.short_data(rank=1, at=at.batch("differs_exhausted:read_batches", nth=ROWS)),
)
def test_generator_over_the_ranks_own_file_ends_early(world, shared_tmp_path) -> None:
    """A rank whose file has a row less makes a step less.

    Source: https://github.com/pytorch/pytorch/issues/33148
    """
    write_rows(world, shared_tmp_path)
    model = make_model()
    for batch in read_batches(shared_tmp_path / f"part-{world.rank}.jsonl"):  # <- latent
        train(model, batch)  # <- latent


class Rows(IterableDataset):
    """The rows of one file."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __iter__(self) -> Iterator[torch.Tensor]:
        for row in self.file.read_text().splitlines():
            yield torch.tensor(json.loads(row))


@latent(
    family="differs",
    ranks=3,
    backend="gloo",
    by_hand=faults.short_data(rank=2, at=at.batch("torch.utils.data:DataLoader", nth=3)),
)
def test_iterable_dataset_of_one_rank_is_shorter(world, shared_tmp_path) -> None:
    """A stream has no length, so nothing is dropped or padded.

    Source: https://github.com/pytorch/pytorch/issues/38174
    """
    write_rows(world, shared_tmp_path)
    model = make_model()
    rows = Rows(shared_tmp_path / f"part-{world.rank}.jsonl")
    for batch in DataLoader(rows, batch_size=2):  # <- latent
        train(model, batch)  # <- latent


class Sampler:
    """Batches of this rank, which a trainer draws one at a time."""

    def __init__(self, rows: list[list[float]]) -> None:
        self.rows = rows
        self.place = 0

    def __iter__(self) -> Sampler:
        return self

    def __next__(self) -> torch.Tensor:
        if self.place >= len(self.rows):
            raise StopIteration
        self.place += 1
        return torch.tensor([self.rows[self.place - 1]])


@latent(
    family="differs",
    ranks=3,
    backend="gloo",
    by_hand=faults.short_data(rank=1, at=at.batch("differs_exhausted:Sampler", nth=ROWS)),
)
def test_own_iterator_stops_early(world, shared_tmp_path) -> None:
    """The class of the project has `__next__`, and a rank with fewer rows raises StopIteration.

    Source: https://github.com/pytorch/pytorch/issues/33148
    """
    write_rows(world, shared_tmp_path)
    text = (shared_tmp_path / f"part-{world.rank}.jsonl").read_text()
    model = make_model()
    for batch in Sampler([json.loads(row) for row in text.splitlines()]):  # <- latent
        train(model, batch)  # <- latent


def load_rows(file: Path) -> list[torch.Tensor]:
    """Return the rows of a rank, those with a number that is not finite left out."""
    rows = [json.loads(each) for each in file.read_text().splitlines()]
    return [torch.tensor([row]) for row in rows if all(abs(each) < 1e30 for each in row)]


@latent(
    family="differs",
    ranks=2,
    backend="gloo",
    by_hand=faults.short_data(rank=1, at=at.batch("differs_exhausted:load_rows", nth=ROWS)),
)
def test_rows_are_filtered_by_each_rank(world, shared_tmp_path) -> None:
    """A rank drops a bad row, and makes as many steps as it has rows.

    Source: https://github.com/argonne-lcf/dlio_benchmark/pull/339
    """
    write_rows(world, shared_tmp_path)
    rows = load_rows(shared_tmp_path / f"part-{world.rank}.jsonl")  # <- latent
    model = make_model()
    for step in range(len(rows)):  # <- latent
        train(model, rows[step])  # <- latent
