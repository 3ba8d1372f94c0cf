"""Tests whose ranks write the CPU time that their body has taken, and how many worlds came before.

Each calls functions of its own, as programs do: a sweep's undisturbed run records these calls.
"""

import json
import os
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

SPENT = Path(os.environ.get("SPENT", "spent.jsonl"))
STEPS = 200


def loss_of(model, batch):
    return model(batch).square().mean()


def batch_of(rank, step):
    return torch.full((32, 64), 0.01 * (rank + step % 7))


def is_bad(loss):
    return not torch.isfinite(loss)


def train(model, optimizer, rank, step):
    optimizer.zero_grad()
    loss = loss_of(model, batch_of(rank, step))
    if not is_bad(loss):
        loss.backward()
        optimizer.step()
    return loss.item()


def save(file, step):
    part = file.with_suffix(".part")
    part.write_text(json.dumps({"step": step}))
    part.replace(file)


def load(file):
    return json.loads(file.read_text()) if file.exists() else None


def words_of(text):
    return [each.strip(".,").lower() for each in text.split()]


def note(world, name, began_s):
    line = json.dumps([name, world.rank, time.process_time() - began_s])
    with SPENT.open("a") as file:
        file.write(line + "\n")


@pytest.mark.multihost(ranks=2, backend="gloo")
def test_training(world):
    """Steps of DDP, and looks at the loss."""
    model = DistributedDataParallel(torch.nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    train(model, optimizer, world.rank, 0)
    began_s = time.process_time()
    for step in range(STEPS):
        train(model, optimizer, world.rank, step)
    note(world, "training", began_s)


@pytest.mark.multihost(ranks=2, backend="gloo")
def test_saving(world, shared_tmp_path):
    """Small files that are written, moved and read."""
    dist.barrier()
    began_s = time.process_time()
    for step in range(STEPS):
        file = shared_tmp_path / f"state-{world.rank}-{step % 5}.json"
        save(file, step)
        load(file)
    note(world, "saving", began_s)


@pytest.mark.multihost(ranks=2, backend="gloo")
def test_calling(world):
    """Many calls of a function that takes some 5 us; to read the source takes 10 ms, once."""
    text = "The quick brown fox jumps over the lazy dog. " * 5
    dist.barrier()
    began_s = time.process_time()
    for _ in range(100 * STEPS):
        words_of(text)
    note(world, "calling", began_s)
