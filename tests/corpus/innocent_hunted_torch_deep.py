"""Programs of torch whose slow part is one of many threads, a native thread or an orphan.

Source: a hunt for false verdicts; the truth was written before the first run.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import select
import subprocess
import threading
import time

import torch
import torch.distributed as dist
from expectation import innocent
from mishaps import idle_threads

SLOW_S = 4.0
MANY = 150
"""More threads than Python's own dump of stacks has."""


def meet(group: object = None) -> None:
    """Let all members of a group meet."""
    dist.all_reduce(torch.ones(4), group=group)


@innocent(ranks=3, backend="gloo")
def test_the_oldest_of_many_threads_is_slow(world) -> None:
    """The main thread of rank 1 waits for an event that its first thread sets late."""
    if world.rank == 1:
        is_ready = threading.Event()

        def load() -> None:
            time.sleep(SLOW_S)
            is_ready.set()

        threading.Thread(target=load).start()
        idle_threads(MANY)
        is_ready.wait()
    meet()


@innocent(ranks=2, backend="gloo")
def test_one_of_many_threads_receives_late(world) -> None:
    """Rank 1 joins its first thread, which receives what the other rank sends late."""
    if world.rank == 1:
        thread = threading.Thread(target=dist.recv, args=(torch.zeros(4), 0))
        thread.start()
        idle_threads(MANY)
        thread.join()
    else:
        time.sleep(SLOW_S)
        dist.send(torch.ones(4), dst=1)


@innocent(ranks=2, backend="gloo")
def test_a_native_thread_ends_late(world) -> None:
    """Rank 1 joins a thread of C code that sleeps for some seconds."""
    if world.rank == 1:
        libc, thread = ctypes.CDLL(None), ctypes.c_ulong()
        sleep = ctypes.cast(libc.sleep, ctypes.c_void_p)
        seconds = ctypes.c_void_p(int(SLOW_S))
        assert libc.pthread_create(ctypes.byref(thread), None, sleep, seconds) == 0
        libc.pthread_join(thread, None)
    meet()


@innocent(ranks=2, backend="gloo")
def test_the_end_of_an_orphan_is_awaited(world) -> None:
    """Rank 1 polls for the end of a background process, which is no child of it."""
    if world.rank == 1:
        script = f"sleep {SLOW_S} >/dev/null 2>&1 & echo $!"
        ran = subprocess.run(["sh", "-c", script], check=True, capture_output=True, text=True)
        select.select([os.pidfd_open(int(ran.stdout))], [], [])
    meet()


@innocent(ranks=2, backend="gloo")
def test_a_semaphore_is_raised_by_an_orphan(world) -> None:
    """Rank 1 waits for a semaphore that the fork of a fork has, which it has left behind."""
    if world.rank == 1:
        semaphore = multiprocessing.get_context("fork").Semaphore(0)
        child = os.fork()
        if child == 0:
            if os.fork() == 0:
                time.sleep(SLOW_S)
                semaphore.release()
            os._exit(0)
        os.waitpid(child, 0)
        semaphore.acquire()
    meet()


@innocent(ranks=2, backend="gloo")
def test_one_of_many_children_answers_late(world) -> None:
    """Rank 1 waits for the only one of its forty children that says something."""
    if world.rank == 1:
        children = [subprocess.Popen(["sleep", "30"]) for _ in range(40)]
        script = f"sleep {SLOW_S}; echo done"
        assert subprocess.check_output(["sh", "-c", script], text=True) == "done\n"
        for child in children:
            child.kill()
            child.wait()
    meet()
