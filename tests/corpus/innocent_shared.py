"""Waits for what another rank holds and gives back: they look like those of `hang_shared`."""

from __future__ import annotations

import ctypes
import fcntl
import multiprocessing
import os
import select
import sqlite3
import struct
import time

import torch.distributed as dist
from expectation import innocent

OFD_SETLKW = 38
LATE_S = 4
LOCK = multiprocessing.Lock()
EVENT = multiprocessing.Event()
PIPE = os.pipe()


def whole_file(kind: int) -> bytes:
    """Return a ``struct flock`` for a whole file."""
    return struct.pack("hhllhh", kind, 0, 0, 0, 0, 0)


@innocent(ranks=2, backend="gloo")
def test_lock_of_an_open_file_is_released_late(world, shared_tmp_path) -> None:
    """Rank 0 sleeps with the lock, and closes the file.

    Source: https://lwn.net/Articles/586904 (open file description locks)
    """
    with (shared_tmp_path / "lock").open("a+") as file:
        if world.is_primary:
            fcntl.fcntl(file, OFD_SETLKW, whole_file(fcntl.F_WRLCK))
        world.barrier("locked")
        if world.is_primary:
            time.sleep(LATE_S)
            fcntl.fcntl(file, OFD_SETLKW, whole_file(fcntl.F_UNLCK))
        else:
            fcntl.fcntl(file, OFD_SETLKW, whole_file(fcntl.F_WRLCK))
        dist.barrier()


@innocent(ranks=2, backend="gloo")
def test_transaction_ends_late(world, shared_tmp_path) -> None:
    """Rank 0 commits while rank 1 tries to insert.

    Source: https://github.com/optuna/optuna/issues/820 (database is locked)
    """
    database = sqlite3.connect(shared_tmp_path / "db", timeout=60, isolation_level=None)
    if world.is_primary:
        database.execute("create table t(x)")
        database.execute("begin exclusive")
    world.barrier("begun")
    if world.is_primary:
        time.sleep(LATE_S)
        database.execute("commit")
    else:
        database.execute("insert into t values (1)")
    dist.barrier()


@innocent(ranks=3, backend="gloo")
def test_lock_made_at_import_is_released_late(world) -> None:
    """Rank 0 works with the lock that rank 1 wants; rank 2 is in the barrier.

    Source: https://github.com/huggingface/datasets/issues/1672
    """
    if world.is_primary:
        LOCK.acquire()
    world.barrier("locked")
    if world.is_primary:
        time.sleep(LATE_S)
        LOCK.release()
    if world.rank == 1:
        with LOCK:
            pass
    dist.barrier()


@innocent(ranks=3, backend="gloo")
def test_event_made_at_import_is_set_late(world) -> None:
    """Rank 2 sets it after a sleep.

    Source: https://docs.python.org/3/library/multiprocessing.html#multiprocessing.Event
    """
    if world.rank == 2:
        time.sleep(LATE_S)
        EVENT.set()
    EVENT.wait()
    dist.barrier()


@innocent(ranks=2, backend="gloo")
def test_inherited_pipe_is_written_late(world) -> None:
    """Rank 1 polls a pipe made at import, rank 0 writes to it in the end.

    Source: https://docs.python.org/3/library/multiprocessing.html#pipes-and-queues
    """
    if world.is_primary:
        time.sleep(LATE_S)
        os.write(PIPE[1], b"x")
    else:
        select.select([PIPE[0]], [], [])
        assert os.read(PIPE[0], 1) == b"x"
    dist.barrier()


@innocent(ranks=2, backend="gloo")
def test_system_v_semaphore_is_raised_late(world, shared_tmp_path) -> None:
    """Rank 1 waits for a semaphore that rank 0 raises after a sleep.

    Source: https://man7.org/linux/man-pages/man2/semop.2.html
    """
    libc, path = ctypes.CDLL(None), shared_tmp_path / "number"
    if world.is_primary:
        path.write_text(str(libc.semget(0, 1, 0o1600)))
    world.barrier("made")
    number = int(path.read_text())
    if world.is_primary:
        time.sleep(LATE_S)
    libc.semop(number, struct.pack("HhH", 0, 1 if world.is_primary else -1, 0), 1)
    dist.barrier()
    if world.is_primary:
        libc.semctl(number, 0, 0)


@innocent(ranks=3, backend="gloo")
def test_native_sleep_ends(world) -> None:
    """Native code sleeps a while; nothing disturbs it.

    Source: https://man7.org/linux/man-pages/man7/signal.7.html
    """
    if world.rank == 1:
        began_s = time.monotonic()
        ctypes.CDLL(None).sleep(LATE_S)
        assert time.monotonic() >= began_s + LATE_S - 0.1
    dist.barrier()


@innocent(ranks=2, backend="gloo")
def test_native_epoll_ends(world) -> None:
    """Native code waits in epoll_wait with a timeout; nothing ends it before.

    Source: https://man7.org/linux/man-pages/man7/signal.7.html
    """
    if world.rank == 1:
        poll, room = select.epoll(), ctypes.create_string_buffer(64)
        assert ctypes.CDLL(None).epoll_wait(poll.fileno(), room, 1, LATE_S * 1000) == 0
    dist.barrier()
