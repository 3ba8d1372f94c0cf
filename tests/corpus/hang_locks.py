"""Locks of files, threads and processes."""

from __future__ import annotations

import contextlib
import fcntl
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
from expectation import hang
from mishaps import FOREVER_S
from torch.utils.file_baton import FileBaton


def meet() -> None:
    """Let all ranks meet."""
    dist.all_reduce(torch.ones(4))


@hang("deadlock", ranks=2, backend="gloo")
def test_file_lock_held_in_a_barrier(world, shared_tmp_path) -> None:
    """Rank 1 holds the file lock in the barrier, rank 0 wants the lock first.

    Source: https://github.com/pmodels/mpich/issues/1997
    """
    with (shared_tmp_path / "lock").open("w") as file:
        if world.rank == 1:
            fcntl.flock(file, fcntl.LOCK_EX)
        world.barrier("locked")
        if world.is_primary:
            fcntl.flock(file, fcntl.LOCK_EX)
        dist.barrier()


@hang("deadlock", ranks=4, backend="gloo")
def test_record_lock_held_in_a_barrier(world, shared_tmp_path) -> None:
    """Rank 3 keeps the record lock of a dataset cache in the barrier, all others want it.

    Source: https://github.com/huggingface/datasets/issues/1672
    """
    with (shared_tmp_path / "lock").open("w") as file:
        if world.rank == 3:
            fcntl.lockf(file, fcntl.LOCK_EX)
        world.barrier("locked")
        if world.rank != 3:
            fcntl.lockf(file, fcntl.LOCK_EX)
        dist.barrier()


@hang("straggler", ranks=3, backend="gloo", culprits=[2], waiting=[0, 1])
def test_file_lock_of_a_sleeper(world, shared_tmp_path) -> None:
    """Rank 1 wants the file lock of rank 2, which sleeps; rank 0 waits for rank 1.

    Source: https://github.com/modelscope/ms-swift/pull/5763 (blocked by file locks)
    """
    group = dist.new_group([0, 1])
    with (shared_tmp_path / "lock").open("w") as file:
        if world.rank == 2:
            fcntl.flock(file, fcntl.LOCK_EX)
        world.barrier("locked")
        if world.rank == 2:
            time.sleep(600)
        if world.rank == 1:
            fcntl.flock(file, fcntl.LOCK_EX)
        dist.barrier(group)


@hang("stuck", ranks=2, backend="none", culprits=[1], waiting=[])
def test_lock_taken_twice(world) -> None:
    """A logging handler takes its own lock again; the other rank has long returned.

    Source: field report class: a plain Lock taken again by a signal or log handler
    """
    if world.rank == 1:
        lock = threading.Lock()
        with lock:
            lock.acquire()


@hang("straggler", ranks=4, backend="gloo", culprits=[2], waiting=[0, 1, 3], where="lock.acquire()")
def test_lock_taken_twice_while_others_wait(world) -> None:
    """A rank deadlocks with itself, the others are in the next collective.

    Source: https://github.com/ray-project/ray/issues/17980
    """
    meet()
    if world.rank == 2:
        lock = threading.Lock()
        with lock:
            lock.acquire()
    meet()


@hang("deadlock", ranks=2, backend="gloo", culprits=[], waiting=[0, 1])
def test_two_locks_of_two_threads(world) -> None:
    """Two threads of the primary take two locks in opposite order, and it joins them.

    Source: https://github.com/h5py/h5py/issues/859
    """
    if world.is_primary:
        locks, gate = [threading.Lock(), threading.Lock()], threading.Barrier(2)

        def take(first: int) -> None:
            with locks[first]:
                gate.wait()
                locks[1 - first].acquire()

        threads = [threading.Thread(target=take, args=(each,), daemon=True) for each in (0, 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    meet()


@hang("straggler", ranks=2, backend="gloo", culprits=[1], waiting=[0])
def test_lock_held_at_a_fork(world) -> None:
    """A child is forked while another thread holds a lock; the rank waits for the child.

    Source: https://github.com/pytorch/pytorch/issues/75147
    """
    if world.rank == 1:
        lock, held, forked = threading.Lock(), threading.Event(), threading.Event()

        def hold() -> None:
            with lock:
                held.set()
                forked.wait()

        threading.Thread(target=hold, daemon=True).start()
        held.wait()
        child = os.fork()
        if child == 0:
            lock.acquire()
            os._exit(0)
        forked.set()
        os.waitpid(child, 0)
    meet()


@hang("straggler", ranks=2, backend="gloo", culprits=[0], waiting=[1])
def test_semaphore_of_a_dead_child(world) -> None:
    """A child was killed with a shared lock in its hand, the rank waits for the lock.

    Source: https://github.com/python/cpython/issues/82265
    """
    if world.is_primary:
        context = multiprocessing.get_context("fork")
        lock = context.Lock()
        child = context.Process(target=lock.acquire)
        child.start()
        child.join()
        lock.acquire()
    meet()


@hang("straggler", ranks=2, backend="gloo", culprits=[1], waiting=[0])
def test_import_in_a_thread_of_an_import(world, tmp_path) -> None:
    """A module imports itself from a thread and waits for that thread while it is imported.

    Source: https://github.com/python/cpython/issues/83065
    """
    if world.rank == 1:
        text = (
            "import threading\n"
            "def load():\n"
            "    import slow_module\n"
            "thread = threading.Thread(target=load, daemon=True)\n"
            "thread.start()\n"
            "thread.join()\n"
        )
        (tmp_path / "slow_module.py").write_text(text)
        sys.path.insert(0, str(tmp_path))
        import slow_module  # noqa: F401 - never comes to its end
    meet()


@hang("livelock", ranks=2, backend="gloo", culprits=[0], waiting=[1], by=("deadline",))
def test_lock_file_left_behind(world, shared_tmp_path) -> None:
    """The primary polls for a lock file to vanish whose owner was killed.

    Source: https://github.com/pytorch/pytorch/issues/189245
    """
    lock = shared_tmp_path / "lock"
    if world.is_primary:
        subprocess.run(["touch", str(lock)], check=True)
        while lock.exists():
            time.sleep(0.1)
    meet()


@hang("deadlock", ranks=2, backend="none")
def test_two_file_locks_in_opposite_order(world, shared_tmp_path) -> None:
    """Each rank holds the lock file that the other one asks for.

    Source: field report class: a lock for the cache and one for the index, taken in either order
    """
    names = ("cache", "index") if world.is_primary else ("index", "cache")
    with (
        (shared_tmp_path / names[0]).open("w") as first,
        (shared_tmp_path / names[1]).open("w") as second,
    ):
        fcntl.flock(first, fcntl.LOCK_EX)
        world.barrier()
        fcntl.flock(second, fcntl.LOCK_EX)


@hang("deadlock", ranks=3, backend="gloo", culprits=[], waiting=[0, 1, 2], by=("deadline",))
def test_baton_held_in_a_barrier(world, shared_tmp_path) -> None:
    """The primary builds under torch's file lock and meets the others, which wait for the lock.

    Source: https://github.com/pytorch/pytorch/issues/129367 (the same with an extension's build)
    """
    baton = FileBaton(str(shared_tmp_path / "lock"))
    if world.is_primary:
        baton.try_acquire()
        dist.barrier()
        baton.release()
    else:
        while not (shared_tmp_path / "lock").exists():
            time.sleep(0.01)
        baton.wait()
        dist.barrier()


@hang("straggler", ranks=3, backend="gloo", culprits=[1], waiting=[0, 2], by=("deadline",))
def test_lock_file_of_a_sleeper(world, shared_tmp_path) -> None:
    """A rank makes a lock file, and sleeps; the others try to make it.

    Source: field report class: a cache that one rank fills under a `.lock` file
    """
    lock = shared_tmp_path / "cache.lock"
    if world.rank == 1:
        made = os.open(lock, os.O_CREAT | os.O_EXCL)
        dist.barrier()
        time.sleep(FOREVER_S)
        os.close(made)
    dist.barrier()
    while True:
        try:
            os.close(os.open(lock, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            time.sleep(0.1)
        else:
            lock.unlink()
            break


@hang("livelock", ranks=3, backend="gloo", culprits=[2], waiting=[0, 1], by=("deadline",))
def test_file_of_a_rank_that_does_not_exist(world, shared_tmp_path) -> None:
    """The last rank waits for the file of the rank after it, which nobody writes.

    Source: field report class: shards are counted from 1 by the readers, from 0 by the writers
    """
    (shared_tmp_path / f"shard-{world.rank}").touch()
    dist.barrier()
    if world.rank == 2:
        while not os.path.exists(f"{shared_tmp_path}/shard-{world.size}"):  # noqa: PTH110
            time.sleep(0.05)
    meet()


def leave_a_lock_to_a_tool(place: Path) -> subprocess.Popen[bytes]:
    """Close the file of a lock that a sleeping child has inherited, and return the child."""
    with place.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        os.set_inheritable(file.fileno(), True)
        return subprocess.Popen(["sleep", "100"], close_fds=False)


@hang(
    "straggler",
    ranks=3,
    backend="none",
    culprits=[1],
    waiting=[0, 2],
    also=[{"kind": "straggler", "culprits": [0]}],
    why="the lock is held by a sleeping child that rank 0 has left behind",
    by=("proof", "deadline"),
)
def test_a_tool_has_inherited_a_file_lock(world, shared_tmp_path) -> None:
    """Rank 0 has closed the file, but its child has the same lock; rank 1 wants it.

    Source: https://man7.org/linux/man-pages/man2/flock.2.html (duplicates of a descriptor)
    """
    if world.is_primary:
        leave_a_lock_to_a_tool(shared_tmp_path / "lock")
    world.barrier("started")
    if world.rank == 1:
        with (shared_tmp_path / "lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
    world.barrier("built")


@hang(
    "livelock",
    ranks=3,
    backend="none",
    culprits=[1],
    waiting=[0, 2],
    also=[{"kind": "straggler", "culprits": [0]}, {"kind": "straggler", "culprits": [1]}],
    why="the lock is held by a sleeping child that rank 0 has left behind",
    by=("deadline",),
)
def test_a_tool_has_inherited_a_lock_that_is_polled(world, shared_tmp_path) -> None:
    """The same, where rank 1 tries again and again.

    Source: https://man7.org/linux/man-pages/man2/flock.2.html (duplicates of a descriptor)
    """
    if world.is_primary:
        leave_a_lock_to_a_tool(shared_tmp_path / "lock")
    world.barrier("started")
    while world.rank == 1:
        with (shared_tmp_path / "lock").open("w") as file, contextlib.suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        time.sleep(0.1)
    world.barrier("built")


@hang("straggler", ranks=3, backend="none", culprits=[0], waiting=[1, 2], where="wait()")
def test_a_tool_has_a_file_lock_and_is_waited_for(world, shared_tmp_path) -> None:
    """Rank 0 waits for its child, which has the lock that rank 1 wants.

    Source: https://man7.org/linux/man-pages/man2/flock.2.html (duplicates of a descriptor)
    """
    if world.is_primary:
        tool = leave_a_lock_to_a_tool(shared_tmp_path / "lock")
    world.barrier("started")
    if world.is_primary:
        tool.wait()
    if world.rank == 1:
        with (shared_tmp_path / "lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
    world.barrier("built")
