"""What only one rank has, and what all do alike in spite of it; the twins of differs_alone.py."""

from __future__ import annotations

import json
import math
import random
import socket
import time
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from agreement import all_or_none, any_rank
from expectation import robust

CONFIG = Path(__file__).parent / "config.json"
DURATION_S = 30.0


def meet() -> None:
    """Let all ranks average something."""
    dist.all_reduce(torch.ones(4))


def outputs_of(rank: int, step: int) -> torch.Tensor:
    """Return what the model makes of this rank's batch."""
    return torch.arange(1.0, 5.0) / (1 + rank + step)


@robust(ranks=3, backend="gloo")
def test_all_skip_the_batch_of_one_rank(world) -> None:
    """Each rank tests its own loss, and the answers are reduced.

    Source: https://github.com/ecmwf/WeatherGenerator/pull/2718
    """
    for step in range(4):
        loss = outputs_of(world.rank, step).mean()
        if any_rank(not math.isfinite(loss.item())):
            continue
        meet()


def answers_of(rank: int, step: int) -> list[str]:
    """Return the responses of this rank that have an answer."""
    return [f"answer {rank} of step {step}"] * (1 + (rank + step) % 2)


@robust(ranks=3, backend="gloo")
def test_rank_without_answers_counts_none(world) -> None:
    """Rewards are summed on all ranks, with their number."""
    for step in range(3):
        answers = answers_of(world.rank, step)
        reward = float(sum(map(len, answers))) if answers else 0.0
        sums = torch.tensor([reward, float(len(answers))])
        dist.all_reduce(sums)
        if sums[1] > 0:
            meet()


@robust(ranks=3, backend="gloo")
def test_all_skip_the_update_if_one_has_no_answers(world) -> None:
    """Each rank asks for its own answers, and the questions are reduced."""
    for step in range(3):
        answers = answers_of(world.rank, step)
        if any_rank(not answers):
            continue
        meet()


class Stopper:
    """Says whether a metric has stopped to improve."""

    def __init__(self, patience: int) -> None:
        self.patience = patience
        self.best = math.inf
        self.bad_epochs = 0

    def should_stop(self, metric: float) -> bool:
        """Return whether enough epochs were no better than the best one."""
        if metric < self.best:
            self.best, self.bad_epochs = metric, 0
        else:
            self.bad_epochs += 1
        return self.bad_epochs >= self.patience


def validation_loss(rank: int, epoch: int) -> float:
    """Return the loss of this rank's part of the validation data."""
    return 1.0 / (2 + rank + epoch)


@robust(ranks=3, backend="gloo")
def test_stopper_of_the_primary_counts(world) -> None:
    """Every rank has a stopper, and the answer of the primary is broadcast.

    Source: https://github.com/ultralytics/yolov5/pull/8345
    """
    stopper = Stopper(patience=1)
    for epoch in range(4):
        meet()
        stop = torch.tensor(int(stopper.should_stop(validation_loss(world.rank, epoch))))
        dist.broadcast(stop, src=0)
        if stop:
            break


def lengths_of(rank: int) -> list[int]:
    """Return the lengths of this rank's sequences."""
    return [5, 3 + rank, 4, 2, 6]


def micro_batches(lengths: Sequence[int], most: int) -> list[list[int]]:
    """Pack sequences into batches that have at most so many tokens each."""
    batches: list[list[int]] = []
    for length in lengths:
        if batches and sum(batches[-1]) + length <= most:
            batches[-1].append(length)
        else:
            batches.append([length])
    return batches


@robust(ranks=2, backend="gloo")
def test_ranks_without_a_micro_batch_run_an_empty_one(world) -> None:
    """The number of micro-batches is the largest of all ranks.

    Source: https://github.com/hiyouga/EasyR1/pull/11012
    """
    batches = micro_batches(lengths_of(world.rank), most=8)
    count = torch.tensor(len(batches))
    dist.all_reduce(count, op=dist.ReduceOp.MAX)
    for number in range(int(count)):
        tokens = sum(batches[number]) if number < len(batches) else 0
        dist.all_reduce(torch.tensor(float(tokens)))


def requests_of(rank: int) -> list[str]:
    """Return the requests that were routed to this rank."""
    return [f"prompt {number} of rank {rank}" for number in range(3)]


@robust(ranks=3, backend="gloo")
def test_rank_without_requests_makes_the_step_with_none(world) -> None:
    """All step as long as one of them has a request.

    Source: https://github.com/vllm-project/vllm/pull/51984
    """
    waiting = requests_of(world.rank)
    while any_rank(bool(waiting)):
        print("decodes", waiting.pop() if waiting else "nothing")
        meet()


@robust(ranks=3, backend="gloo")
def test_each_rank_fills_its_cache_alone(world, tmp_path) -> None:
    """A miss is handled without the others: nothing that all take part in depends on it.

    Source: https://github.com/modelscope/mcore-bridge/pull/47 (a hit in a local cache, and no
    barrier)
    """
    kernel = tmp_path / "kernel.py"
    with all_or_none("compiling"):
        if not kernel.exists():
            kernel.write_text("pass\n")
        compile(kernel.read_text(), str(kernel), "exec")
    meet()


def is_primary(rank: int) -> bool:
    """Return whether this rank speaks for all."""
    return rank == 0


def shard_of(rows: Sequence[float], rank: int, size: int) -> Sequence[float]:
    """Return the rows that belong to this rank."""
    return rows[rank::size]


@robust(ranks=3, backend="gloo")
def test_number_of_the_rank_says_who_does_what(world) -> None:
    """Roles and shares follow from the rank's number and from what all have, so they agree.

    Source: https://github.com/mosaicml/composer/issues/209 (rank 0 has a task of its own)
    """
    rows = [float(number) for number in range(6)]
    for row in shard_of(rows, world.rank, world.size):
        dist.all_reduce(torch.tensor(row))
    last = world.size - 1
    if is_primary(world.rank):
        dist.send(torch.ones(2), dst=last)
    elif world.rank == last:
        dist.recv(torch.zeros(2), src=0)
    dist.barrier()


@robust(ranks=3, backend="gloo")
def test_all_end_when_the_time_of_one_is_up(world) -> None:
    """Each rank reads its own clock, and the answers are reduced.

    Source: https://github.com/microsoft/superbenchmark/pull/347 (mended like this)
    """
    started = time.monotonic()
    for _ in range(3):
        meet()
        if any_rank(time.monotonic() - started > DURATION_S):
            break
    dist.barrier()


@robust(ranks=3, backend="gloo")
def test_barrier_takes_no_time(world) -> None:
    """The test itself says how long something may take, and how often it is tried.

    Source: https://github.com/dask/distributed/pull/7559 (a time that is asserted)
    """
    started = time.monotonic()
    tries = 0
    with all_or_none("reading"):
        while tries < 2:
            tries += 1
            try:
                CONFIG.read_text()
                break
            except OSError as error:
                print("once more:", error)
    dist.barrier()
    assert time.monotonic() - started < 2.5
    assert tries <= 2


@robust(ranks=3, backend="gloo")
def test_each_rank_logs_what_it_sees(world, shared_tmp_path) -> None:
    """Losses, hosts, times and chances differ between ranks, and are only written down.

    Source: https://github.com/Lightning-AI/pytorch-lightning/issues/241 (a log of each process)
    """
    chance = random.random()
    for step in range(3):
        loss = outputs_of(world.rank, step).mean().item()
        entry = {"loss": loss, "host": socket.gethostname(), "time": time.time(), "chance": chance}
        if loss > chance:
            entry["note"] = "above"
        try:
            with (shared_tmp_path / f"rank-{world.rank}.log").open("a") as log:
                log.write(json.dumps(entry) + "\n")
        except OSError as error:
            print("not logged:", error)
        meet()


def masked(rows: torch.Tensor, chance: random.Random) -> torch.Tensor:
    """Return rows, some of them with a mask."""
    return rows * 0.5 if chance.random() < 0.5 else rows


@robust(ranks=3, backend="gloo")
def test_masks_are_drawn_by_each_rank(world) -> None:
    """Seeds differ between ranks on purpose, and every draw is followed by the same collective.

    Source: https://github.com/goodfire-ai/spd/pull/412
    """
    chance = random.Random(world.rank)
    for step in range(4):
        dist.all_reduce(masked(outputs_of(world.rank, step), chance))


def residual_of(rank: int, iteration: int) -> float:
    """Return what is left to refine on this rank."""
    return (1.0 + rank) / 4**iteration


@robust(ranks=3, backend="gloo")
def test_each_rank_refines_as_long_as_it_needs(world) -> None:
    """The loops of ranks end at different times, have no collectives, and all meet behind them.

    Source: https://github.com/pytorch/pytorch/issues/38174 (ranks that are through join the rest)
    """
    done = 0
    for iteration in range(10):
        done = iteration
        if residual_of(world.rank, iteration) < 0.01:
            break
    dist.all_reduce(torch.tensor(float(done)))
