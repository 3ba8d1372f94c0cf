"""Runs that are resumed and saved in order on all ranks: twins of silent_resume.py and others."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import torch
import torch._dynamo  # wrapping a model imports it, for seconds
import torch.distributed as dist
from agreement import all_or_none, any_rank, written_by_primary
from expectation import robust
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel


def meet() -> None:
    """Let all ranks average something."""
    dist.all_reduce(torch.ones(4))


def save_states(world, folder: Path) -> None:
    """Let the primary save a state of torch's random numbers for each rank."""
    dist.barrier()
    with all_or_none("saving the states"):
        if world.is_primary:
            for rank in range(world.size):
                made = torch.Generator().manual_seed(100 + rank)
                torch.save({"torch": made.get_state()}, folder / f"rng-{rank}.pt")


@robust(ranks=3, backend="gloo")
def test_random_states_are_restored_by_all_or_by_none(world, shared_tmp_path) -> None:
    """A rank without its file lets all keep their seeds."""
    torch.manual_seed(7)
    save_states(world, shared_tmp_path)
    file = shared_tmp_path / f"rng-{world.rank}.pt"
    if any_rank(not os.path.exists(file)):  # noqa: PTH110 - False on any error
        print("some rank has no random state; all keep their seeds")
        return
    with all_or_none("loading the states"):
        torch.set_rng_state(torch.load(file)["torch"])


@robust(ranks=3, backend="gloo")
def test_rank_without_a_random_state_draws_a_new_seed(world, shared_tmp_path) -> None:
    """Each rank has random numbers of its own in any case, so another seed is as good."""
    torch.manual_seed(7)
    save_states(world, shared_tmp_path)
    try:
        torch.set_rng_state(torch.load(shared_tmp_path / f"rng-{world.rank}.pt")["torch"])
    except (OSError, RuntimeError) as error:
        print("another seed instead of the random state:", error)
        torch.manual_seed(1000 + world.rank)
    meet()


@robust(ranks=3, backend="gloo")
def test_random_state_is_read_again_after_an_error(world, shared_tmp_path) -> None:
    """A rank waits for a random time before it tries again; at last all or none have read it."""
    torch.manual_seed(7)
    save_states(world, shared_tmp_path)
    state = None
    for _ in range(3):
        try:
            state = torch.load(shared_tmp_path / f"rng-{world.rank}.pt")["torch"]
            break
        except (OSError, RuntimeError):
            time.sleep(random.uniform(0.01, 0.05))
    if any_rank(state is None):
        raise RuntimeError("some rank has no random state")
    torch.set_rng_state(state)


@robust(ranks=3, backend="gloo")
def test_only_the_primary_restores_its_random_state(world, shared_tmp_path) -> None:
    """The others get what the primary has drawn, so they need no state."""
    save_states(world, shared_tmp_path)
    with all_or_none("loading the state"):
        if world.is_primary:
            torch.set_rng_state(torch.load(shared_tmp_path / "rng-0.pt")["torch"])
    order = torch.randperm(8) if world.is_primary else torch.zeros(8, dtype=torch.long)
    dist.broadcast(order, src=0)


@robust(ranks=3, backend="gloo")
def test_dropout_is_replayed_with_the_state_before(world) -> None:
    """A recomputed layer restores the random state, as often as its rank has batches."""
    torch.manual_seed(world.rank)
    for number in range(2 + world.rank):
        state = torch.get_rng_state()
        torch.nn.functional.dropout(torch.ones(4))
        torch.set_rng_state(state)
        torch.nn.functional.dropout(torch.ones(4))
        if number < 2:
            meet()


@robust(ranks=3, backend="gloo")
def test_primary_names_the_folder_for_all(world, shared_tmp_path) -> None:
    """Its clock counts for all ranks."""
    names = [time.strftime("%Y-%m-%d_%H")]
    dist.broadcast_object_list(names)
    folder = shared_tmp_path / f"checkpoint-{names[0]}"
    with all_or_none("saving"):
        folder.mkdir(exist_ok=True)
        torch.save(torch.ones(2), folder / f"shard-{world.rank}.pt")


@robust(ranks=3, backend="gloo")
def test_logs_lie_under_the_hour_of_each_rank(world, shared_tmp_path) -> None:
    """Logs and metrics of ranks are read one by one; a folder for each hour is what is wanted."""
    folder = shared_tmp_path / time.strftime("%Y-%m-%d_%H")
    with all_or_none("logging"):
        folder.mkdir(exist_ok=True)
        (folder / f"rank-{world.rank}.log").write_text("started\n")
        (folder / f"metrics-{world.rank}.jsonl").write_text(json.dumps({"loss": 1.0}) + "\n")
    meet()


@robust(ranks=3, backend="gloo")
def test_each_rank_has_a_folder_of_its_own(world, shared_tmp_path) -> None:
    """Replicas that do not belong together: each has its weights in its own folder, with a time."""
    folder = shared_tmp_path / f"replica-{world.rank}-{time.strftime('%Y-%m-%d_%H')}"
    with all_or_none("saving"):
        folder.mkdir(exist_ok=True)
        torch.save(torch.ones(2), folder / "weights.pt")
    meet()


@robust(ranks=2, backend="gloo")
def test_primary_begins_a_new_folder_each_hour(world, shared_tmp_path) -> None:
    """Two saves lie in one folder or in two, as the hour wants it."""
    for step in range(2):
        meet()
        with all_or_none("saving"):
            if world.is_primary:
                folder = shared_tmp_path / time.strftime("%Y-%m-%d_%H")
                folder.mkdir(exist_ok=True)
                torch.save(torch.ones(2), folder / f"weights-{step}.pt")


@robust(ranks=3, backend="gloo")
def test_folder_is_published_if_all_shards_are_there(world, shared_tmp_path) -> None:
    """The primary renames the folder only after every rank has confirmed its shard."""
    part = shared_tmp_path / "step-3.tmp"
    with all_or_none("saving"):
        part.mkdir(exist_ok=True)
        torch.save(torch.ones(2), part / f"shard-{world.rank}.pt")
    with all_or_none("publishing"):
        if world.is_primary:
            os.rename(part, shared_tmp_path / "step-3")  # noqa: PTH104


@robust(ranks=3, backend="gloo")
def test_checkpoint_that_lacks_a_shard_stays_unpublished(world, shared_tmp_path) -> None:
    """An error is printed, and all go on with the checkpoint from before."""
    for step in (1, 2):
        part = shared_tmp_path / f"step-{step}.tmp"
        error = ""
        try:
            part.mkdir(exist_ok=True)
            torch.save(torch.ones(2), part / f"shard-{world.rank}.pt")
        except (OSError, RuntimeError) as caught:
            error = repr(caught)
            print("not saved:", error)
        if any_rank(bool(error)):
            print(f"step {step} is not published")
            continue
        with all_or_none("publishing"):
            if world.is_primary:
                os.rename(part, shared_tmp_path / f"step-{step}")  # noqa: PTH104


@robust(ranks=3, backend="gloo")
def test_index_names_what_each_rank_says_it_has_saved(world, shared_tmp_path) -> None:
    """The primary does not list the folder: it gathers the names."""
    name = f"model-{world.rank}.pt"
    with all_or_none("saving"):
        torch.save(torch.ones(2), shared_tmp_path / name)
    names: list[object] = [None] * world.size
    dist.all_gather_object(names, name)
    with all_or_none("publishing"):
        if world.is_primary:
            text = json.dumps({"shards": names})
            (shared_tmp_path / "model.index.json").write_text(text)


def read_batches(file: Path) -> Iterator[torch.Tensor]:
    """Yield the rows of a rank's own file, one after the other."""
    with file.open() as rows:
        for row in rows:
            yield torch.tensor([json.loads(row)])


@robust(ranks=3, backend="gloo")
def test_generators_of_different_lengths_are_joined(world, shared_tmp_path) -> None:
    """Who is through takes part until the last one is."""
    texts = {f"part-{rank}.jsonl": "[1.0, 2.0]\n" * 4 for rank in range(world.size)}
    written_by_primary(world, shared_tmp_path, texts)
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(2, 1))
    with all_or_none("reading"):
        batches = list(read_batches(shared_tmp_path / f"part-{world.rank}.jsonl"))
    with Join([model]):
        for batch in batches:
            model.zero_grad()
            model(batch).sum().backward()


class Saver:
    """Saves in a process of its own, which a thread starts."""

    def __init__(self) -> None:
        self.pipe = None
        self.thread = threading.Thread(target=self.start)
        self.thread.start()

    def start(self) -> None:
        """Start the process, and wait until it says that it is ready."""
        ours, theirs = multiprocessing.get_context("fork").Pipe()
        process = multiprocessing.get_context("fork").Process(target=serve, args=(theirs,))
        process.start()
        theirs.close()
        ours.recv()
        self.pipe = ours


def serve(pipe) -> None:
    """Take values until the rank ends."""
    pipe.send("ready")
    while True:
        try:
            pipe.recv()
        except EOFError:
            return


@robust(ranks=3, backend="gloo")
def test_process_is_used_once_all_have_theirs(world) -> None:
    """Whether the process is ready is agreed on before each save."""
    saver = Saver()
    time.sleep(0.3)
    for _ in range(2):
        if any_rank(saver.pipe is None):
            meet()
        else:
            saver.pipe.send(1.0)
    dist.barrier()
    saver.thread.join()
    saver.pipe.close()
