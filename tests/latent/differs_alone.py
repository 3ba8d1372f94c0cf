"""One rank decides otherwise, from what it alone has; no program here names that for the sweep."""

from __future__ import annotations

import json
import math
import os
import queue
import random
import time
from collections.abc import Sequence
from pathlib import Path

import torch
import torch._dynamo  # an optimizer imports it, for seconds
import torch.distributed as dist
from agreement import all_or_none
from expectation import latent

from pytest_multihost import at, faults

CONFIG = Path(__file__).parent / "config.json"
DURATION_S = 30.0
MINIBATCH = 2


def meet() -> None:
    """Let all ranks average something."""
    dist.all_reduce(torch.ones(4))  # <- waits


def outputs_of(rank: int, step: int) -> torch.Tensor:
    """Return what the model makes of this rank's batch."""
    return torch.arange(1.0, 5.0) / (1 + rank + step)


@latent(
    family="differs",
    ranks=3,
    backend="gloo",
    by_hand=faults.returns(rank=2, value=False, at=at.call("math:isfinite", nth=2)),
)
def test_loss_is_tested_in_the_loop(world) -> None:
    """A rank whose loss is not finite skips the batch; the test stands in the loop itself.

    Source: https://github.com/Project-MONAI/monai-physio/pull/137
    """
    for step in range(4):
        loss = outputs_of(world.rank, step).mean()  # <- latent
        if not math.isfinite(loss.item()):  # <- latent
            continue
        meet()


class Trainer:
    """Trains on the data of one rank."""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def loss_at(self, step: int) -> float:
        """Return the loss of this rank's batch."""
        return 1.0 / (1 + self.rank + step)

    def check(self, loss: float) -> None:
        """Raise if the loss is not a number."""
        if math.isnan(loss) or math.isinf(loss):  # <- latent
            raise RuntimeError(f"the loss is {loss}")  # <- latent

    def train_step(self, step: int) -> None:
        """Train on one batch."""
        loss = self.loss_at(step)  # <- latent
        self.check(loss)  # <- latent
        meet()


@latent(
    family="differs",
    ranks=3,
    backend="gloo",
    by_hand=faults.returns(
        rank=1,
        value=float("nan"),
        at=at.call("differs_alone:Trainer.loss_at", nth=3, when="after"),
    ),
)
def test_trainer_checks_its_loss_and_raises(world) -> None:
    """The rank with the bad loss raises before its collective.

    Source: https://github.com/pytorch/torchtitan/pull/3863
    """
    trainer = Trainer(world.rank)
    for step in range(4):
        trainer.train_step(step)


class Stopper:
    """Says whether a metric has stopped to improve."""

    def __init__(self, patience: int) -> None:
        self.patience = patience
        self.best = math.inf
        self.bad_epochs = 0

    def should_stop(self, metric: float) -> bool:
        """Return whether enough epochs were no better than the best one."""
        if metric < self.best:  # <- latent
            self.best, self.bad_epochs = metric, 0
        else:
            self.bad_epochs += 1
        return self.bad_epochs >= self.patience  # <- latent


def validation_loss(rank: int, epoch: int) -> float:
    """Return the loss of this rank's part of the validation data."""
    return 1.0 / (2 + rank + epoch)


@latent(
    family="differs",
    ranks=3,
    backend="gloo",
    by_hand=faults.returns(
        rank=2, value=True, at=at.call("differs_alone:Stopper.should_stop", nth=2)
    ),
)
def test_stopper_of_each_rank_watches_its_own_metric(world) -> None:
    """A rank whose metric is no better leaves the loop, and the others train on.

    Source: https://github.com/speechbrain/speechbrain/issues/1939
    """
    stopper = Stopper(patience=1)
    for epoch in range(4):
        meet()
        metric = validation_loss(world.rank, epoch)  # <- latent
        if stopper.should_stop(metric):  # <- latent
            break


def rewards_of(rank: int) -> list[float]:
    """Return the rewards of this rank's rollouts."""
    return [0.5 + rank, 1.5, 2.5 + rank, 3.5, 4.5]


def informative(rewards: Sequence[float]) -> list[float]:
    """Return the rewards that say something."""
    return [reward for reward in rewards if reward > 0]


@latent(
    family="differs",
    ranks=3,
    backend="gloo",
    by_hand=faults.returns(
        rank=0, value=[0.5], at=at.call("differs_alone:informative", when="after")
    ),
)
def test_rollouts_are_filtered_before_they_are_split(world) -> None:
    """A rank that keeps fewer rollouts has fewer minibatches.

    Source: https://github.com/Emerge-Lab/PufferDrive/pull/563 (a filter that keeps a different
    count on each rank)
    """
    kept = informative(rewards_of(world.rank))  # <- latent
    for first in range(0, len(kept), MINIBATCH):  # <- latent
        print(sum(kept[first : first + MINIBATCH]))
        meet()
    dist.barrier()  # <- waits


def requests_of(rank: int) -> list[str]:
    """Return the requests that were routed to this rank."""
    return [f"prompt {number} of rank {rank}" for number in range(3)]


@latent(
    family="differs",
    ranks=3,
    backend="gloo",
    by_hand=faults.returns(
        rank=1, value=["prompt"], at=at.call("differs_alone:requests_of", when="after")
    ),
)
def test_rank_without_requests_makes_no_step(world) -> None:
    """An engine steps as long as its own queue is not empty.

    Source: https://github.com/vllm-project/vllm/issues/43547
    """
    waiting: queue.Queue[str] = queue.Queue()
    for request in requests_of(world.rank):  # <- latent
        waiting.put(request)
    while not waiting.empty():  # <- latent
        print("decodes", waiting.get())
        meet()
    dist.barrier()  # <- waits


def gradients_of(rank: int, step: int) -> list[torch.Tensor]:
    """Return the gradients of the parameters of this rank that were used."""
    return [torch.full((2,), 1.0 + rank + step)]


def apply(gradients: Sequence[torch.Tensor], size: int) -> None:
    """Update the parameters, and gather those of all ranks."""
    if not gradients:  # <- latent
        return
    parts = [torch.zeros(2) for _ in range(size)]
    dist.all_gather(parts, torch.stack(list(gradients)).sum(0))  # <- waits


@latent(
    family="differs",
    ranks=3,
    backend="gloo",
    by_hand=faults.returns(
        rank=2, value=[], at=at.call("differs_alone:gradients_of", nth=2, when="after")
    ),
)
def test_expert_without_gradients_leaves_out_the_gather(world) -> None:
    """A rank whose expert was not used has nothing to update, and returns at once.

    Source: https://github.com/facebookresearch/optimizers/pull/149
    """
    for step in range(3):
        gradients = gradients_of(world.rank, step)  # <- latent
        apply(gradients, world.size)  # <- latent
    dist.barrier()  # <- waits


def answers_of(rank: int, step: int) -> list[str]:
    """Return the responses of this rank that have an answer."""
    return [f"answer {rank} of step {step}"] * (1 + (rank + step) % 2)


@latent(
    family="differs",
    ranks=3,
    backend="gloo",
    by_hand=faults.returns(rank=1, value=[], at=at.call("differs_alone:answers_of", when="after")),
)
def test_rank_without_answers_skips_the_update(world) -> None:
    """Rewards are averaged only on ranks that have some."""
    for step in range(3):
        answers = answers_of(world.rank, step)  # <- latent
        if len(answers) == 0:  # <- latent
            continue
        meet()  # <- waits


def scaled_loss(weights: torch.Tensor, rank: int, step: int) -> torch.Tensor:
    """Return the loss of this rank's batch."""
    return (weights * (1 + rank + step)).sum()


@latent(
    family="differs",
    ranks=3,
    backend="gloo",
    by_hand=faults.returns(
        rank=1,
        value=float("nan"),
        at=at.call("differs_alone:scaled_loss", nth=2, when="after"),
    ),
)
def test_overflow_of_one_rank_shifts_its_count_of_steps(world) -> None:
    """Weights are averaged every other step, and a rank whose scaler skips one counts behind.

    Source: https://github.com/dylanyunlon/Neuron_SP/issues/2
    """
    weights = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weights], lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    taken = 0
    for step in range(4):
        optimizer.zero_grad()
        scaler.scale(scaled_loss(weights, world.rank, step)).backward()  # <- latent
        before = scaler.get_scale()
        scaler.step(optimizer)  # <- latent
        scaler.update()
        if scaler.get_scale() < before:  # <- latent
            continue
        taken += 1
        if taken % 2 == 0:  # <- latent
            meet()
    dist.barrier()  # <- waits


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


@latent(
    family="differs",
    ranks=2,
    backend="gloo",
    by_hand=faults.returns(
        rank=1, value=[2, 2], at=at.call("differs_alone:lengths_of", when="after")
    ),
)
def test_micro_batches_are_packed_by_tokens(world) -> None:
    """Ranks with other lengths need another number of micro-batches.

    Source: https://github.com/verl-project/verl/issues/6176
    """
    lengths = lengths_of(world.rank)  # <- latent
    for batch in micro_batches(lengths, most=8):  # <- latent
        print("tokens", sum(batch))
        meet()
    dist.barrier()  # <- waits


@latent(family="differs", ranks=3, backend="gloo")
def test_benchmark_ends_by_the_clock_of_each_rank(world) -> None:
    """A rank on whose clock the time is up leaves out the steps that are left.

    Source: https://github.com/microsoft/superbenchmark/pull/347
    """
    started = time.monotonic()  # <- latent
    for _ in range(3):
        meet()
        if time.monotonic() - started > DURATION_S:  # <- latent
            break
    dist.barrier()  # <- waits


def expired(since: dict[str, float], now: float) -> list[str]:
    """Return the requests that have waited for too long."""
    return [name for name, start in since.items() if now - start > DURATION_S]  # <- latent


@latent(
    family="differs",
    ranks=2,
    backend="gloo",
    by_hand=faults.returns(rank=1, value=["b"], at=at.call("differs_alone:expired", nth=2)),
)
def test_requests_are_aborted_by_the_clock_of_each_rank(world) -> None:
    """Each rank aborts what has waited for too long on its own clock.

    Source: https://github.com/sgl-project/sglang/pull/27164
    """
    running = dict.fromkeys("abc", time.perf_counter())
    for _ in range(3):
        for name in expired(running, time.perf_counter()):  # <- latent
            del running[name]
        for name in running:  # <- latent
            print("decodes", name)
            meet()
    dist.barrier()  # <- waits


def fetched(file: Path, seconds: float) -> str | None:
    """Return the text of a file, or None if it cannot be read for so long."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:  # <- latent
        try:
            return file.read_text()  # <- latent
        except OSError as error:
            print("once more:", error)
            time.sleep(0.02)
    return None  # <- latent


@latent(
    family="fails",
    ranks=3,
    backend="gloo",
    by_hand=faults.fails(rank=1, at=at.io("*/config.json", call="open", onwards=True)),
)
def test_each_rank_tries_again_until_its_own_deadline(world) -> None:
    """A rank that has given up goes on without the file, and without what follows from it.

    Source: https://github.com/mosaicml/composer/pull/3345 (a download that fails on one rank only)
    """
    text = fetched(CONFIG, seconds=0.2)  # <- latent
    if text is not None:  # <- latent
        print("steps:", json.loads(text)["steps"])
        meet()
    dist.barrier()  # <- waits


def trains_discriminator(epoch: int, chance: random.Random) -> bool:
    """Return whether the discriminator is trained in this epoch, too."""
    return epoch > 0 and chance.random() < 0.99  # <- latent


@latent(
    family="differs",
    ranks=3,
    backend="gloo",
    by_hand=faults.returns(
        rank=2, value=False, at=at.call("differs_alone:trains_discriminator", nth=3)
    ),
)
def test_each_rank_draws_by_itself(world) -> None:
    """Nearly always all ranks draw the same answer, from seeds of their own.

    Source: https://github.com/ZhikangNiu/encodec-pytorch/issues/30
    """
    chance = random.Random(world.rank)
    for epoch in range(4):
        meet()
        if trains_discriminator(epoch, chance):  # <- latent
            dist.broadcast(torch.ones(2), src=0)  # <- waits


@latent(
    family="fails",
    ranks=3,
    backend="gloo",
    by_hand=faults.fails(rank=1, at=at.io("*/best.json", call="stat")),
)
def test_each_rank_asks_for_its_own_copy(world, tmp_path) -> None:
    """Every rank has a copy of the best weights, and each asks for its own only.

    Source: https://github.com/LibreYOLO/libreyolo/pull/782 (a file that one rank does not find)
    """
    best = tmp_path / "best.json"
    with all_or_none("writing the copies"):
        best.write_text("[0.5, 0.25]")
    if os.path.exists(best):  # <- latent  # noqa: PTH110 - as in the source
        meet()
    dist.barrier()  # <- waits


class PrefixCache:
    """Remembers the prefixes whose keys and values have been computed."""

    def __init__(self, prefixes: Sequence[str]) -> None:
        self.known = set(prefixes)

    def has(self, prompt: str) -> bool:
        """Return whether the prefix of a prompt is known."""
        return prompt.partition(":")[0] in self.known  # <- latent


def prompt_of(rank: int, step: int) -> str:
    """Return the next prompt of this rank."""
    return f"system: prompt {step} of rank {rank}"


@latent(
    family="differs",
    ranks=3,
    backend="gloo",
    by_hand=faults.returns(rank=0, value=False, at=at.call("differs_alone:PrefixCache.has", nth=2)),
)
def test_miss_in_the_cache_is_computed_by_all(world) -> None:
    """What a cache lacks is computed by all ranks, and each looks into its own.

    Source: https://github.com/pytorch/pytorch/pull/193043 (a hit or a miss that ranks agree on)
    """
    cache = PrefixCache(["system"])
    for step in range(3):
        prompt = prompt_of(world.rank, step)  # <- latent
        if not cache.has(prompt):  # <- latent
            dist.barrier()  # <- waits
        meet()


class Compiled:
    """A function that is compiled for a number of rows, by all ranks together."""

    def __init__(self) -> None:
        self.rows = -1

    def __call__(self, rows: Sequence[float]) -> float:
        if len(rows) != self.rows:  # <- latent
            self.rows = len(rows)
            dist.barrier()  # <- waits
        return sum(rows)


def rows_at(rank: int, step: int) -> list[float]:
    """Return the rows of this rank's batch."""
    return [1.0 + rank, 2.0 + step, 3.0]


@latent(
    family="differs",
    ranks=3,
    backend="gloo",
    by_hand=faults.returns(
        rank=2, value=[1.0, 2.0], at=at.call("differs_alone:rows_at", nth=2, when="after")
    ),
)
def test_one_rank_compiles_anew(world) -> None:
    """Compiling takes part in a collective, and only one rank has a batch of another size.

    Source: https://github.com/pytorch/pytorch/pull/155558
    """
    step = Compiled()
    for number in range(3):
        rows = rows_at(world.rank, number)  # <- latent
        print(step(rows))  # <- latent
        meet()


def stored(source: str, folder: Path) -> bool:
    """Write a compiled source into a cache; return whether that was possible."""
    try:
        folder.mkdir(exist_ok=True)  # <- latent
        (folder / "kernel.py").write_text(source)  # <- latent
    except OSError as error:
        print("compiles in memory:", error)
        return False  # <- latent
    return True


@latent(
    family="fails",
    ranks=3,
    backend="gloo",
    by_hand=faults.fails(rank=2, error="EROFS", at=at.io("*/cache/kernel.py", call="open")),
)
def test_cache_of_one_rank_is_read_only(world, tmp_path) -> None:
    """A rank that cannot write into its cache leaves out the barrier behind the writing.

    Source: https://github.com/unslothai/unsloth-zoo/pull/967
    """
    if stored("pass\n", tmp_path / "cache"):  # <- latent
        dist.barrier()  # <- waits
    meet()


def prefills_in_chunks() -> bool:
    """Return whether the environment of this host asks for chunks."""
    return int(os.environ["PREFILL_CHUNK"]) > 0  # <- latent


@latent(
    family="differs",
    ranks=2,
    backend="gloo",
    by_hand=faults.returns(
        rank=1, value=False, at=at.call("differs_alone:prefills_in_chunks", nth=2)
    ),
)
def test_environment_reaches_one_host_only(world, monkeypatch) -> None:
    """Each host takes the size of its chunks from its own environment.

    Source: https://github.com/tenstorrent/tt-metal/issues/54885
    """
    monkeypatch.setenv("PREFILL_CHUNK", str(64 + world.rank))  # as its launcher has
    for _ in range(3):
        if prefills_in_chunks():  # <- latent
            dist.barrier()  # <- waits
        meet()
