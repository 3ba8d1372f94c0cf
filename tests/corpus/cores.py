"""What child processes of engines do: each is started as a fresh interpreter."""

from __future__ import annotations

import fcntl
import os
import signal
import time
from multiprocessing.connection import Connection
from pathlib import Path

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


def start_locked(number: int, parent: Connection, lock: str, seconds: float) -> None:
    """Be a worker of two that start under a file lock and meet.

    Args:
        number: Which of them; the first one says when it has the lock.
        parent: The other end of its pipe.
        lock: Path of the lock file.
        seconds: How long this worker holds the lock; with 0 until both have met.
    """
    os.environ.update(RANK=str(number), WORLD_SIZE="2")
    with Path(lock).open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        if number == 0:
            parent.send("holds")
        if not seconds:
            join_role()
        time.sleep(seconds)
    if seconds:
        join_role()
    meet()
    parent.send("ready")


def part(number: int, parent: Connection) -> None:
    """Be a scheduler of two that have two groups: the first is in one, the second in the other."""
    import torch
    import torch.distributed as dist

    os.environ.update(RANK=str(number), WORLD_SIZE="2")
    join_role()
    requests = dist.new_group([0, 1])
    meet()
    parent.send("ready")
    if number == 0:
        meet()
    dist.broadcast(torch.ones(4), src=0, group=requests)
    parent.send("done")


def load(parent: Connection, seconds: float) -> None:
    """Be ready after some seconds."""
    time.sleep(seconds)
    parent.send("ready")


def end(seconds: float) -> None:
    """Be killed after some seconds, as for lack of memory."""
    time.sleep(seconds)
    os.kill(os.getpid(), signal.SIGKILL)
