"""A job of three ranks, in which rank 1 does what the variable PLANT says.

Lines marked HERE are those that a page must show.
"""

import os
import threading
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

SIZE, LATE = 3, 1
LONG = timedelta(minutes=30)
PLANT = os.environ.get("PLANT", "none")
LOCK = threading.Lock()


def planted():
    """Say when the hang begins."""
    Path(os.environ["PLANTED"]).write_text(str(time.time()))


def read_shard():
    time.sleep(600)  # HERE sleep


def lock_twice():
    with LOCK, LOCK:  # HERE lock
        pass


def load(x):
    planted()
    raise OSError("no such shard")


def body(rank, size):
    x = torch.ones(3)
    apart = dist.new_group(list(range(size)))
    dist.all_reduce(x)
    if rank != LATE:
        if PLANT == "exit":
            wait_for_key(rank)
        if PLANT != "task":
            dist.all_reduce(x)  # WAITED
        return
    if PLANT == "sleep":
        planted()
        read_shard()
    if PLANT == "lock":
        planted()
        lock_twice()
    if PLANT in {"exit", "task"}:
        time.sleep(1.0)
        planted()
        os._exit(0)
    if PLANT == "swallow":
        try:
            load(x)
            dist.all_reduce(x)
        except OSError:
            pass
        dist.barrier(group=apart)  # HERE swallow
    if PLANT == "skip":
        planted()
        dist.barrier(group=apart)  # HERE skip
    dist.all_reduce(x)


def wait_for_key(rank):
    port = int(os.environ["KEY_PORT"])
    store = dist.TCPStore("127.0.0.1", port, None, rank == 0, timeout=LONG)
    store.get("of rank 1")  # HERE exit


def worker(rank, size, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=size)
    body(rank, size)
    dist.destroy_process_group()


def answering(rank, size, port, answers):
    worker(rank, size, port)
    answers.put(rank)


def main():
    dist.init_process_group("gloo")
    body(dist.get_rank(), dist.get_world_size())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
