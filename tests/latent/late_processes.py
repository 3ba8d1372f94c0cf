"""A process or thread beside the training is ready on one rank, and on another not yet."""

from __future__ import annotations

import multiprocessing
import threading
import time

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
