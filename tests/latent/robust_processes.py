"""Work beside the training that may be late: twins of late_processes.py."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
import torch._dynamo  # wrapping a model imports it, for seconds
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from agreement import all_or_none, any_rank
from expectation import robust


def meet() -> None:
    """Let all ranks average something."""
    dist.all_reduce(torch.ones(4))


@robust(ranks=3, backend="gloo")
def test_all_skip_a_save_while_one_is_still_saving(world, shared_tmp_path) -> None:
    """Whether the last save is done is agreed on."""
    group = dist.new_group(backend="gloo")
    save = None
    for step in range(2):
        if not any_rank(save is not None and not save.done()):
            with all_or_none("the last save"):
                if save is not None:
                    save.result()
            save = dcp.async_save(
                {"weight": torch.ones(4)},
                checkpoint_id=shared_tmp_path / f"step-{step}",
                process_group=group,
            )
        time.sleep(1.0)
        meet()
    with all_or_none("the last save"):
        save.result()


@robust(ranks=3, backend="gloo")
def test_save_is_awaited_before_it_is_asked(world, shared_tmp_path) -> None:
    """A save whose result is there is done on every rank, however late it was."""
    save = dcp.async_save(
        {"weight": torch.ones(4)},
        checkpoint_id=shared_tmp_path / "step-1",
        process_group=dist.new_group(backend="gloo"),
    )
    with all_or_none("saving"):
        save.result()
    if save.done():
        meet()
    dist.barrier()


@robust(ranks=3, backend="gloo")
def test_shard_that_is_still_written_only_changes_what_is_printed(world, shared_tmp_path) -> None:
    """A rank asks its thread, and does the same in any case."""
    with ThreadPoolExecutor(1) as pool:
        file = shared_tmp_path / f"shard-{world.rank}.pt"
        writing = pool.submit(torch.save, torch.ones(4), file)
        time.sleep(0.4)
        if not writing.done():
            print("still writing")
        meet()
        with all_or_none("writing"):
            writing.result()


@robust(ranks=3, backend="gloo")
def test_primary_says_whether_the_metadata_are_there(world, shared_tmp_path) -> None:
    """All load, or none does."""
    folder = shared_tmp_path / "step-1"
    state = {"weight": torch.ones(4)}
    save = dcp.async_save(state, checkpoint_id=folder, process_group=dist.new_group(backend="gloo"))
    with all_or_none("saving"):
        save.result()
    is_there = [False]
    with all_or_none("looking"):
        if world.is_primary:
            is_there = [(folder / ".metadata").exists()]
    dist.broadcast_object_list(is_there)
    if is_there[0]:
        dcp.load(state, checkpoint_id=folder)
    dist.barrier()


@robust(ranks=2, backend="gloo")
def test_program_is_asked_by_all_or_after_its_end(world) -> None:
    """Whether a program still runs is agreed on; after its end it has ended on every rank."""
    upload = subprocess.Popen([sys.executable, "-S", "-c", "pass"])
    time.sleep(0.8)
    if not any_rank(upload.poll() is None):
        meet()
    upload.wait()
    if upload.poll() is not None:
        meet()
    dist.barrier()


def set_when_ready(ready) -> None:
    """Say that the process is there."""
    ready.set()


@robust(ranks=2, backend="gloo")
def test_process_is_awaited_before_its_event_is_asked(world) -> None:
    """The event is set once the rank has waited for it, or for the end of the process."""
    context = multiprocessing.get_context("fork")
    ready = context.Event()
    process = context.Process(target=set_when_ready, args=(ready,))
    process.start()
    ready.wait()
    if ready.is_set():
        meet()
    process.join()
    if ready.is_set() and not process.is_alive():
        meet()
    dist.barrier()


def compress(value: int) -> int:
    """Stand for work in another process."""
    return value


@robust(ranks=2, backend="gloo")
def test_pool_is_asked_by_all(world) -> None:
    """Whether the results are there is agreed on."""
    with multiprocessing.get_context("fork").Pool(1) as pool:
        work = pool.apply_async(compress, (world.rank,))
        time.sleep(0.6)
        if not any_rank(not work.ready()):
            meet()
        work.get()
    dist.barrier()


class Writer(threading.Thread):
    """Writes a rank's shard, and says then that it is done."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.file = file
        self.error: Exception | None = None
        self.is_done = False

    def run(self) -> None:
        try:
            torch.save(torch.ones(2), self.file)
        except (OSError, RuntimeError) as error:
            self.error = error
        self.is_done = True


@robust(ranks=3, backend="gloo")
def test_own_thread_is_joined_before_it_is_asked(world, shared_tmp_path) -> None:
    """After that it is done on every rank, or has failed, which is agreed on."""
    writer = Writer(shared_tmp_path / f"shard-{world.rank}.pt")
    writer.start()
    writer.join()
    if writer.is_done:
        meet()
    with all_or_none("writing"):
        if writer.error is not None:
            raise writer.error


@robust(ranks=2, backend="gloo")
def test_helper_that_is_late_only_delays_its_rank(world) -> None:
    """A rank waits for its helper as long as that takes."""
    helper = multiprocessing.get_context("spawn").Process(target=compress, args=(1,))
    helper.start()
    while helper.is_alive():
        time.sleep(0.1)
    meet()
    helper.join()
    dist.barrier()
