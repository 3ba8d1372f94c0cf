"""Hangs of ranks with stores, groups, threads and stacks of their own that hide the cause.

Source: a hunt for false verdicts; the truth was written before the first run.
"""

from __future__ import annotations

import ctypes
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from expectation import hang
from mishaps import FOREVER_S, idle_threads

BY_RAISE = ("raise", "proof")
MANY = 150
"""More threads than Python's own dump of stacks has."""


def meet(group: object = None) -> None:
    """Let all members of a group meet."""
    dist.all_reduce(torch.ones(4), group=group)


@hang("raised", ranks=3, backend="gloo", culprits=[1], waiting=[0, 2], by=BY_RAISE, where="wait(")
def test_a_key_of_a_store_that_a_rank_hosts_for_itself(world) -> None:
    """Rank 1 hosts a store for its own workers, of which none comes within a second."""
    meet()
    if world.rank == 1:
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        store.wait(["worker"], timedelta(seconds=1))
    meet()


_MEMBER = """
import sys
from datetime import timedelta
import torch.distributed as dist
store = dist.TCPStore("127.0.0.1", int(sys.argv[1]), is_master=False)
group = dist.ProcessGroupGloo(store, 1, 2, timedelta(seconds=60))
print("ready", flush=True)
sys.stdin.readline()
"""


@hang("straggler", ranks=3, backend="gloo", culprits=[1], waiting=[0, 2], by=BY_RAISE)
def test_groups_are_destroyed_by_a_rank_that_goes_on(world) -> None:
    """Rank 1 is done with its groups a step too early, and uploads; the others lose it."""
    meet()
    if world.rank == 1:
        dist.destroy_process_group()
        time.sleep(FOREVER_S)
    meet()


@hang("deadlock", ranks=2, backend="gloo", by=("deadline", "proof"))
def test_both_ask_whether_their_messages_have_come(world) -> None:
    """Each rank looks for the message of the other now and then, and sends its own afterwards."""
    peer = 1 - world.rank
    receive = dist.irecv(torch.zeros(4), src=peer)
    while not receive.is_completed():
        time.sleep(0.1)
    dist.send(torch.ones(4), dst=peer)


def nested(depth: int, rank: int) -> None:
    """Do a step at a depth of the stack."""
    if depth:
        nested(depth - 1, rank)
    elif rank == 1:
        time.sleep(FOREVER_S)
    else:
        dist.all_reduce(torch.ones(4))


@hang(
    "straggler",
    ranks=3,
    backend="gloo",
    culprits=[1],
    waiting=[0, 2],
    where="time.sleep(FOREVER_S)",
)
def test_stacks_are_deep(world) -> None:
    """All ranks walk a tree of modules, hundreds of calls deep; one sleeps there."""
    nested(600, world.rank)


@hang("straggler", ranks=3, backend="gloo", culprits=[1], waiting=[0, 2], where="time.sleep")
def test_a_sleeper_has_many_threads(world) -> None:
    """The sleeping main thread is the oldest of many threads."""
    if world.rank == 1:
        idle_threads(MANY)
        time.sleep(FOREVER_S)
    meet()


@hang("mismatch", ranks=3, backend="gloo", culprits=[1], waiting=[0, 2], where="dist.barrier()")
def test_all_ranks_have_many_threads(world) -> None:
    """One rank is at a barrier, where the others reduce; all of them have large pools."""
    idle_threads(MANY)
    if world.rank == 1:
        dist.barrier()
    meet()


@hang("straggler", ranks=2, backend="gloo", culprits=[1], waiting=[0], where="pthread_join")
def test_a_native_thread_never_ends(world) -> None:
    """Rank 1 joins a thread of C code that waits for a signal."""
    if world.rank == 1:
        libc, thread = ctypes.CDLL(None), ctypes.c_ulong()
        pause = ctypes.cast(libc.pause, ctypes.c_void_p)
        assert libc.pthread_create(ctypes.byref(thread), None, pause, None) == 0
        libc.pthread_join(thread, None)
    meet()
