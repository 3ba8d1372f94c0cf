"""A process or thread beside the training is ready on one rank, and on another not yet."""

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
from expectation import latent
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType


def meet() -> None:
    """Let all ranks average something."""
    dist.all_reduce(torch.ones(4))  # <- waits


@latent(family="late", ranks=2, backend="gloo", timeout=40.0)
def test_second_save_asks_whether_the_process_of_dcp_is_there(world, shared_tmp_path) -> None:
    """The first save starts a process in a thread; a second one agrees on a port if there is none.

    Each rank asks for itself, so a rank whose thread is late broadcasts alone.

    Source: torch 2.13, torch/distributed/checkpoint/_async_process_executor.py (`execute_save`)
    """
    state = {"weight": torch.ones(4)}
    saves = []
    for step in (1, 2):
        saves.append(
            dcp.async_save(  # <- latent
                state,
                checkpoint_id=shared_tmp_path / f"step-{step}",
                async_checkpointer_type=AsyncCheckpointerType.PROCESS,
            )
        )
        for _ in range(60):  # the training between two saves; by then the process is there
            time.sleep(0.2)
            flag = torch.tensor(int(saves[0].done()))
            dist.all_reduce(flag, op=dist.ReduceOp.MIN)  # <- waits
            if flag:
                break
    for each in saves:
        each.result()
    dist.barrier()  # <- waits


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
        ours.recv()  # <- latent
        self.pipe = ours

    def save(self, value: float) -> None:
        """Save in the process; before it is ready, all ranks agree to save here."""
        if self.pipe is None:  # <- latent
            meet()  # <- latent
            return
        self.pipe.send(value)


def serve(pipe) -> None:
    """Take values until the rank ends."""
    pipe.send("ready")
    while True:
        try:
            pipe.recv()
        except EOFError:
            return


@latent(family="late", ranks=3, backend="gloo")
def test_process_that_saves_is_ready_on_some_ranks(world) -> None:
    """Each rank asks whether its own process is ready.

    Source: torch 2.13, torch/distributed/checkpoint/_async_process_executor.py (`execute_save`)
    """
    saver = Saver()
    time.sleep(0.6)
    for _ in range(2):
        saver.save(1.0)  # <- latent
    dist.barrier()  # <- waits
    saver.thread.join()
    if saver.pipe is not None:
        saver.pipe.close()


@latent(family="late", ranks=3, backend="gloo")
def test_next_save_is_skipped_by_who_is_still_saving(world, shared_tmp_path) -> None:
    """Each rank asks for itself whether its last save is done, and saves only then.

    Source: https://github.com/areal-project/AReaL/pull/1356 (ranks that reap at different times)
    """
    group = dist.new_group(backend="gloo")
    save = None
    for step in range(2):
        if save is None or save.done():  # <- latent
            save = dcp.async_save(  # <- latent
                {"weight": torch.ones(4)},
                checkpoint_id=shared_tmp_path / f"step-{step}",
                process_group=group,
            )
        time.sleep(1.0)
        meet()
    save.result()  # <- waits
    dist.barrier()  # <- waits


@latent(family="late", ranks=3, backend="gloo")
def test_shard_is_written_beside_the_training(world, shared_tmp_path) -> None:
    """A rank whose thread still writes takes no part in what the others do then.

    Source: https://github.com/areal-project/AReaL/pull/1356 (ranks that reap at different times)
    """
    with ThreadPoolExecutor(1) as pool:
        file = shared_tmp_path / f"shard-{world.rank}.pt"
        writing = pool.submit(torch.save, torch.ones(4), file)
        time.sleep(0.4)
        if writing.done():  # <- latent
            meet()  # <- latent
        writing.result()
    dist.barrier()  # <- waits


@latent(family="late", ranks=3, backend="gloo")
def test_run_resumes_where_the_metadata_is_seen(world, shared_tmp_path) -> None:
    """Each rank looks for itself whether the checkpoint is finished, and loads it only then.

    Source: https://github.com/KempnerInstitute/KempnerForge/issues/49 (each rank asks `exists`)
    """
    folder = shared_tmp_path / "step-1"
    state = {"weight": torch.ones(4)}
    save = dcp.async_save(state, checkpoint_id=folder, process_group=dist.new_group(backend="gloo"))
    time.sleep(1.0)
    if (folder / ".metadata").exists():  # <- latent
        dcp.load(state, checkpoint_id=folder)  # <- latent
    save.result()
    dist.barrier()  # <- waits


@latent(family="late", ranks=2, backend="gloo")
def test_program_that_uploads_has_ended_on_some_ranks(world) -> None:
    """A rank whose program still runs leaves out what the others do then.

    Source: https://github.com/areal-project/AReaL/pull/1356 (ranks that reap at different times)
    """
    upload = subprocess.Popen([sys.executable, "-S", "-c", "pass"])
    time.sleep(0.8)
    if upload.poll() is not None:  # <- latent
        meet()  # <- latent
    upload.wait()
    dist.barrier()  # <- waits


def set_when_ready(ready) -> None:
    """Say that the process is there."""
    ready.set()


@latent(family="late", ranks=2, backend="gloo")
def test_process_sets_an_event_on_some_ranks(world) -> None:
    """Each rank asks whether its own process has said that it is ready.

    Source: torch 2.13, torch/distributed/checkpoint/_async_process_executor.py (`execute_save`)
    """
    context = multiprocessing.get_context("fork")
    ready = context.Event()
    process = context.Process(target=set_when_ready, args=(ready,))
    process.start()
    time.sleep(0.6)
    if ready.is_set():  # <- latent
        meet()  # <- latent
    process.join()
    dist.barrier()  # <- waits


def compress(value: int) -> int:
    """Stand for work in another process."""
    return value


@latent(family="late", ranks=2, backend="gloo")
def test_pool_of_one_rank_has_no_result_yet(world) -> None:
    """Each rank asks its own pool whether the result is there.

    Source: https://github.com/areal-project/AReaL/pull/1356 (ranks that reap at different times)
    """
    with multiprocessing.get_context("fork").Pool(1) as pool:
        work = pool.apply_async(compress, (world.rank,))
        time.sleep(0.6)
        if work.ready():  # <- latent
            meet()  # <- latent
        work.get()
    dist.barrier()  # <- waits


class Writer(threading.Thread):
    """Writes a rank's shard, and says then that it is done."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.file = file
        self.is_done = False

    def run(self) -> None:
        torch.save(torch.ones(2), self.file)
        self.is_done = True


@latent(family="late", ranks=3, backend="gloo")
def test_own_thread_is_asked_for_an_attribute(world, shared_tmp_path) -> None:
    """A class of the project is the thread, and its attribute says whether it is done.

    Source: https://github.com/areal-project/AReaL/pull/1356 (ranks that reap at different times)
    """
    writer = Writer(shared_tmp_path / f"shard-{world.rank}.pt")
    writer.start()
    time.sleep(0.4)
    if writer.is_done:  # <- latent
        meet()  # <- latent
    writer.join()
    dist.barrier()  # <- waits


@latent(family="late", ranks=2, backend="gloo")
def test_program_leaves_a_file_for_its_own_rank(world, tmp_path) -> None:
    """Each rank looks for the file that its own program makes when it is ready.

    Source: https://github.com/areal-project/AReaL/pull/1356 (ranks that reap at different times)
    """
    sign = tmp_path / "ready"
    command = f"open({str(sign)!r}, 'w').close()"
    program = subprocess.Popen([sys.executable, "-S", "-c", command])
    time.sleep(0.8)
    if sign.exists():  # <- latent
        meet()  # <- latent
    program.wait()
    dist.barrier()  # <- waits


@latent(family="late", ranks=2, backend="gloo")
def test_running_program_is_restarted_by_who_misses_it(world) -> None:
    """A rank whose helper is still there makes a round less.

    Source: https://github.com/areal-project/AReaL/pull/1356 (ranks that reap at different times)
    """
    context = multiprocessing.get_context("fork")  # one that is spawned takes seconds under load
    helper = context.Process(target=compress, args=(1,))
    helper.start()
    for _ in range(2):
        time.sleep(0.8)
        if not helper.is_alive():  # <- latent
            meet()  # <- latent
    helper.join()
    dist.barrier()  # <- waits
