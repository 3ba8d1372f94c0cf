"""Waits for what another rank holds: locks, semaphores, pipes and memory that ranks share."""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import multiprocessing
import os
import select
import socket
import sqlite3
import struct
import time

import torch.distributed as dist
from expectation import hang
from mishaps import libc

OFD_SETLKW = 38
LOCK = multiprocessing.Lock()
EVENT = multiprocessing.Event()
QUEUE = multiprocessing.Queue()
PIPE = os.pipe()
PAIR = socket.socketpair()
EVENTFD = os.eventfd(0)
MUTEX = mmap.mmap(-1, mmap.PAGESIZE)
PSHARED = 1

EITHER = "nothing shows which rank is to release it"


def whole_file(kind: int) -> bytes:
    """Return a ``struct flock`` for a whole file."""
    return struct.pack("hhllhh", kind, 0, 0, 0, 0, 0)


def mutex() -> ctypes.Array[ctypes.c_char]:
    """Return the memory of the mutex that all ranks share."""
    return (ctypes.c_char * 64).from_buffer(MUTEX)


def shared_mutex() -> None:
    """Make a mutex that processes may share."""
    attributes = ctypes.create_string_buffer(16)
    libc().pthread_mutexattr_init(attributes)
    libc().pthread_mutexattr_setpshared(attributes, PSHARED)
    libc().pthread_mutex_init(mutex(), attributes)


@hang("deadlock", ranks=2, backend="gloo")
def test_lock_of_an_open_file_held_in_a_barrier(world, shared_tmp_path) -> None:
    """Rank 0 keeps the lock of an open file description in the barrier, rank 1 wants it first.

    Source: https://sqlite.org/src/info (F_OFD_SETLK), https://lwn.net/Articles/586904
    """
    with (shared_tmp_path / "lock").open("a+") as file:
        if world.is_primary:
            fcntl.fcntl(file, OFD_SETLKW, whole_file(fcntl.F_WRLCK))
        world.barrier("locked")
        if world.rank == 1:
            fcntl.fcntl(file, OFD_SETLKW, whole_file(fcntl.F_WRLCK))
        dist.barrier()


@hang("straggler", ranks=3, backend="gloo", culprits=[2], waiting=[0, 1])
def test_lock_of_an_open_file_of_a_sleeper(world, shared_tmp_path) -> None:
    """Rank 2 sleeps with the lock, rank 1 wants it for reading, rank 0 is in the barrier.

    Source: https://lwn.net/Articles/586904 (open file description locks)
    """
    group = dist.new_group([0, 1])
    with (shared_tmp_path / "lock").open("a+") as file:
        if world.rank == 2:
            fcntl.fcntl(file, OFD_SETLKW, whole_file(fcntl.F_WRLCK))
        world.barrier("locked")
        if world.rank == 2:
            time.sleep(600)
        if world.rank == 1:
            fcntl.fcntl(file, OFD_SETLKW, whole_file(fcntl.F_RDLCK))
        dist.barrier(group)


@hang("deadlock", ranks=2, backend="gloo", by=("deadline",))
def test_transaction_left_open_in_a_barrier(world, shared_tmp_path) -> None:
    """Rank 0 goes to the barrier in a transaction, rank 1 tries to insert.

    Source: https://github.com/optuna/optuna/issues/820 (database is locked)
    """
    database = sqlite3.connect(shared_tmp_path / "db", timeout=600, isolation_level=None)
    if world.is_primary:
        database.execute("create table t(x)")
        database.execute("begin exclusive")
    world.barrier("begun")
    if world.rank == 1:
        database.execute("insert into t values (1)")
    dist.barrier()


@hang("straggler", ranks=3, backend="gloo", culprits=[2], waiting=[0, 1], by=("deadline",))
def test_transaction_of_a_sleeper(world, shared_tmp_path) -> None:
    """Rank 2 sleeps in its transaction, rank 1 tries to insert, rank 0 waits for rank 1.

    Source: https://github.com/mlflow/mlflow/issues/3432 (database is locked)
    """
    group = dist.new_group([0, 1])
    database = sqlite3.connect(shared_tmp_path / "db", timeout=600, isolation_level=None)
    if world.rank == 2:
        database.execute("create table t(x)")
        database.execute("begin immediate")
    world.barrier("begun")
    if world.rank == 2:
        time.sleep(600)
    if world.rank == 1:
        database.execute("insert into t values (1)")
    dist.barrier(group)


@hang(
    "deadlock",
    ranks=2,
    backend="gloo",
    by=("deadline",),
    also=[{"kind": "straggler", "culprits": [1]}],
    why=EITHER,
)
def test_named_pipe_written_after_a_barrier(world, shared_tmp_path) -> None:
    """Rank 1 reads a named pipe that rank 0 would write after the barrier.

    Source: https://github.com/google/orbax/issues/3181 (waits for a file of the primary)
    """
    path = shared_tmp_path / "pipe"
    if world.is_primary:
        os.mkfifo(path)
    world.barrier("made")
    pipe = os.open(path, os.O_RDWR)
    if world.rank == 1:
        os.read(pipe, 1)
    dist.barrier()
    os.write(pipe, b"x")


@hang("deadlock", ranks=3, backend="gloo", by=("deadline",))
def test_inherited_pipe_written_after_a_barrier(world) -> None:
    """Rank 1 reads a pipe made at import that rank 0 writes after the barrier.

    Source: https://docs.python.org/3/library/multiprocessing.html#pipes-and-queues
    """
    if world.rank == 1:
        os.read(PIPE[0], 1)
    dist.barrier()
    if world.is_primary:
        os.write(PIPE[1], b"x")


@hang("straggler", ranks=3, backend="gloo", culprits=[0], waiting=[1, 2], by=("deadline",))
def test_inherited_pipe_of_a_sleeper(world) -> None:
    """Rank 1 polls a pipe made at import; rank 0, which is to write to it, sleeps.

    Source: https://docs.python.org/3/library/multiprocessing.html#pipes-and-queues
    """
    if world.is_primary:
        time.sleep(600)
        os.write(PIPE[1], b"x")
    if world.rank == 1:
        select.select([PIPE[0]], [], [])
    dist.barrier()


@hang("deadlock", ranks=2, backend="gloo", by=("deadline",))
def test_inherited_sockets_answered_after_a_barrier(world) -> None:
    """Rank 1 receives from one end of a pair made at import, rank 0 sends after the barrier.

    Source: https://docs.python.org/3/library/socket.html#socket.socketpair
    """
    if world.rank == 1:
        PAIR[0].recv(1)
    dist.barrier()
    if world.is_primary:
        PAIR[1].send(b"x")


@hang("straggler", ranks=3, backend="gloo", culprits=[0], waiting=[1, 2], by=("deadline",))
def test_lock_made_at_import_of_a_sleeper(world) -> None:
    """Rank 0 sleeps with a lock of multiprocessing that rank 1 wants.

    Source: https://github.com/huggingface/datasets/issues/1672
    """
    if world.is_primary:
        LOCK.acquire()
    world.barrier("locked")
    if world.is_primary:
        time.sleep(600)
    if world.rank == 1:
        LOCK.acquire()
    dist.barrier()


@hang("deadlock", ranks=2, backend="gloo", by=("deadline",))
def test_event_made_at_import_set_after_a_barrier(world) -> None:
    """Rank 1 waits for an event of multiprocessing that rank 0 sets after the barrier.

    Source: https://docs.python.org/3/library/multiprocessing.html#multiprocessing.Event
    """
    if world.rank == 1:
        EVENT.wait()
    dist.barrier()
    if world.is_primary:
        EVENT.set()


@hang("deadlock", ranks=3, backend="none", by=("deadline",))
def test_queue_made_at_import_filled_after_a_barrier(world) -> None:
    """Rank 2 waits for an item that rank 0 puts after the barrier.

    Source: https://docs.python.org/3/library/multiprocessing.html#multiprocessing.Queue
    """
    if world.rank == 2:
        QUEUE.get()
    world.barrier()
    if world.is_primary:
        QUEUE.put(1)


@hang("deadlock", ranks=3, backend="gloo", by=("deadline",))
def test_eventfd_made_at_import_written_after_a_barrier(world) -> None:
    """Rank 1 reads an eventfd made at import that rank 0 writes after the barrier.

    Source: https://man7.org/linux/man-pages/man2/eventfd.2.html
    """
    if world.rank == 1:
        os.eventfd_read(EVENTFD)
    dist.barrier()
    if world.is_primary:
        os.eventfd_write(EVENTFD, 1)


@hang("deadlock", ranks=3, backend="gloo", by=("deadline",))
def test_native_mutex_in_shared_memory(world) -> None:
    """Rank 0 goes to the barrier with a native mutex that rank 1 wants first; rank 2 is innocent.

    Source: https://man7.org/linux/man-pages/man3/pthread_mutexattr_setpshared.3p.html
    """
    if world.is_primary:
        shared_mutex()
        libc().pthread_mutex_lock(mutex())
    world.barrier("locked")
    if world.rank == 1:
        libc().pthread_mutex_lock(mutex())
    dist.barrier()


@hang("straggler", ranks=3, backend="gloo", culprits=[2], waiting=[0, 1], by=("deadline",))
def test_native_mutex_of_a_sleeper(world) -> None:
    """Rank 2 sleeps with a native mutex in shared memory that rank 1 wants.

    Source: https://man7.org/linux/man-pages/man3/pthread_mutexattr_setpshared.3p.html
    """
    group = dist.new_group([0, 1])
    if world.rank == 2:
        shared_mutex()
        libc().pthread_mutex_lock(mutex())
    world.barrier("locked")
    if world.rank == 2:
        time.sleep(600)
    if world.rank == 1:
        libc().pthread_mutex_lock(mutex())
    dist.barrier(group)


@hang(
    "deadlock",
    ranks=2,
    backend="gloo",
    by=("deadline",),
    also=[{"kind": "straggler", "culprits": [1]}],
    why=EITHER,
)
def test_system_v_semaphore_raised_after_a_barrier(world, shared_tmp_path) -> None:
    """Rank 1 waits for a semaphore that rank 0 has made and would raise after the barrier.

    Source: https://man7.org/linux/man-pages/man2/semop.2.html
    """
    path = shared_tmp_path / "number"
    if world.is_primary:
        path.write_text(str(libc().semget(0, 1, 0o1600)))
    world.barrier("made")
    number = int(path.read_text())
    if world.rank == 1:
        libc().semop(number, struct.pack("HhH", 0, -1, 0), 1)
    dist.barrier()
    if world.is_primary:
        libc().semop(number, struct.pack("HhH", 0, 1, 0), 1)


@hang("deadlock", ranks=2, backend="gloo")
def test_named_semaphore_raised_after_a_barrier(world, shared_tmp_path) -> None:
    """Rank 1 waits for a named semaphore that rank 0 would raise after the barrier.

    Source: https://man7.org/linux/man-pages/man3/sem_open.3.html
    """
    name = f"/corpus-{shared_tmp_path.parent.name}".encode()
    opening = libc().sem_open
    opening.restype = ctypes.c_void_p
    semaphore = ctypes.c_void_p(opening(name, os.O_CREAT, 0o600, 0))
    world.barrier("made")
    if world.is_primary:
        libc().sem_unlink(name)
    if world.rank == 1:
        libc().sem_wait(semaphore)
    dist.barrier()
    if world.is_primary:
        libc().sem_post(semaphore)


@hang("straggler", ranks=3, backend="gloo", culprits=[1], waiting=[0, 2])
def test_native_epoll_that_a_signal_would_end(world) -> None:
    """Native code waits in epoll_wait, and goes on if it is disturbed: its stacks are taken aside.

    Source: https://man7.org/linux/man-pages/man7/signal.7.html
    """
    if world.rank == 1:
        poll = select.epoll()
        libc().epoll_wait(poll.fileno(), ctypes.create_string_buffer(64), 1, -1)
    dist.barrier()


@hang("straggler", ranks=2, backend="none", culprits=[0], waiting=[1])
def test_native_sleep_that_a_signal_would_end(world) -> None:
    """The same with sleep(3), and no thread of the harness to ask.

    Source: https://man7.org/linux/man-pages/man7/signal.7.html
    """
    if world.is_primary:
        libc().sleep(600)
    world.barrier()


@hang("straggler", ranks=3, backend="gloo", culprits=[2], waiting=[0, 1])
def test_native_select_that_a_signal_would_end(world) -> None:
    """The same with select(2).

    Source: https://man7.org/linux/man-pages/man7/signal.7.html
    """
    if world.rank == 2:
        libc().select(0, None, None, None, None)
    dist.barrier()
