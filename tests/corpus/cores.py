"""What child processes of engines do: each is started as a fresh interpreter."""

from __future__ import annotations

import os
import signal
import time
from multiprocessing.connection import Connection

from roles import join_role


def meet() -> None:
    """Let all members of the role's group meet."""
    import torch
    import torch.distributed as dist

    dist.all_reduce(torch.ones(4))


def schedule(parent: Connection, sleeper: int, seconds: float) -> None:
    """Join the role's group, sleep if this is the given rank, meet the others, and say so."""
    join_role()
    meet()
    parent.send("ready")
    if int(os.environ["RANK"]) == sleeper:
        time.sleep(seconds)
    meet()
    parent.send("done")


def work(parent: Connection) -> None:
    """Answer the first step, and lose the answer to the second one."""
    parent.send(f"did {parent.recv()}")
    while True:
        parent.recv()


def start(number: int, parent: Connection) -> None:
    """Be a worker of two that meet; the last one is killed before it comes."""
    if number == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    os.environ.update(RANK=str(number), WORLD_SIZE="2")
    join_role()
    parent.send("ready")


def load(parent: Connection, seconds: float) -> None:
    """Be ready after some seconds."""
    time.sleep(seconds)
    parent.send("ready")


def end(seconds: float) -> None:
    """Be killed after some seconds, as for lack of memory."""
    time.sleep(seconds)
    os.kill(os.getpid(), signal.SIGKILL)
