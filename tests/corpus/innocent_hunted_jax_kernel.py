"""Waits that the kernel ends, though no argument of a call shows it.

Source: a hunt for false verdicts; the truth was written before the first run.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import mmap
import multiprocessing
import os
import select
import signal
import socket
import struct
import time
from pathlib import Path

import pytest
from expectation import innocent
from mishaps import drop_all, libc
from programs import HOST

LONG_S = 4
TCP_USER_TIMEOUT, TCP_DEFER_ACCEPT = 18, 9
IPC_PRIVATE, IPC_CREAT, SEM_UNDO, SETVAL = 0, 0o1000, 0x1000, 16


def pair(world, place: Path) -> socket.socket:
    """Return a TCP connection between ranks 0 and 1: 0 has accepted it."""
    if world.is_primary:
        with socket.create_server((HOST, 0)) as server:
            place.write_text(str(server.getsockname()[1]))
            world.barrier("listens")
            return server.accept()[0]
    world.barrier("listens")
    return socket.create_connection((HOST, int(place.read_text())))


@innocent(ranks=2, backend="none")
def test_a_close_lingers(world, shared_tmp_path) -> None:
    """Rank 0 closes a connection with unread data, which may take 4 s; rank 1 never reads them."""
    connection = pair(world, shared_tmp_path / "port")
    if world.is_primary:
        connection.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                connection.send(b"x" * 100_000)
        connection.setblocking(True)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, LONG_S))
        connection.close()
    world.barrier("closed")


@innocent(ranks=2, backend="none")
def test_a_dead_peer_is_noticed_by_probes(world, shared_tmp_path) -> None:
    """Rank 0 reads until its kernel's probes get no answer; what arrives at rank 1 is dropped."""
    connection = pair(world, shared_tmp_path / "port")
    if world.rank == 1:
        drop_all(connection)
    world.barrier("dropped")
    if world.is_primary:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 2)
        with pytest.raises(TimeoutError):
            connection.recv(1)
    world.barrier("read")


@innocent(ranks=2, backend="none")
def test_data_that_are_not_acknowledged_end_a_connection(world, shared_tmp_path) -> None:
    """Rank 0 has sent a request, and reads; its kernel gives the connection up after 4 s."""
    connection = pair(world, shared_tmp_path / "port")
    if world.rank == 1:
        drop_all(connection)
    world.barrier("dropped")
    if world.is_primary:
        connection.setsockopt(socket.IPPROTO_TCP, TCP_USER_TIMEOUT, LONG_S * 1000)
        connection.sendall(b"x")
        with pytest.raises(TimeoutError):
            connection.recv(1)
    world.barrier("read")


@innocent(ranks=2, backend="none", timeout=120)
def test_a_lease_is_broken_by_the_kernel(world, shared_tmp_path) -> None:
    """Rank 0 opens a file of which rank 1 has a lease, which ends after 45 s at the latest."""
    place = shared_tmp_path / "file"
    if world.rank == 1:
        place.touch()
        signal.signal(signal.SIGIO, signal.SIG_IGN)
        kept = os.open(place, os.O_RDWR)
        fcntl.fcntl(kept, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    world.barrier("leased")
    if world.is_primary:
        place.read_bytes()
    world.barrier("read")


MUTEX = mmap.mmap(-1, mmap.PAGESIZE)


def lock_robustly(seconds: float) -> None:
    """Lock a mutex, and end after a while."""
    libc().pthread_mutex_lock((ctypes.c_char * 64).from_buffer(MUTEX))
    time.sleep(seconds)
    os._exit(0)


@innocent(ranks=2, backend="none")
def test_a_mutex_of_a_child_that_ends(world) -> None:
    """The mutex is robust: who waits for it is told that its owner has ended."""
    if world.is_primary:
        attributes = ctypes.create_string_buffer(16)
        libc().pthread_mutexattr_init(attributes)
        libc().pthread_mutexattr_setpshared(attributes, 1)
        libc().pthread_mutexattr_setrobust(attributes, 1)
        mutex = (ctypes.c_char * 64).from_buffer(MUTEX)
        libc().pthread_mutex_init(mutex, attributes)
        child = multiprocessing.get_context("fork").Process(target=lock_robustly, args=(LONG_S,))
        child.start()
        time.sleep(1)
        assert libc().pthread_mutex_lock(mutex) == errno.EOWNERDEAD
        child.join()
    world.barrier("locked")


def operate(semaphores: int, change: int, flags: int = 0) -> None:
    """Change a System V semaphore, and wait for it if need be."""
    if libc().semop(semaphores, struct.pack("Hhh", 0, change, flags), 1):
        raise OSError(ctypes.get_errno(), "semop")


@innocent(ranks=2, backend="none")
def test_a_semaphore_of_a_child_that_ends(world) -> None:
    """The kernel undoes what the child has taken."""
    if world.is_primary:
        semaphores = libc().semget(IPC_PRIVATE, 1, IPC_CREAT | 0o600)
        try:
            operate(semaphores, 1)
            child = os.fork()
            if not child:
                operate(semaphores, -1, SEM_UNDO)
                time.sleep(LONG_S)
                os._exit(0)
            time.sleep(1)
            operate(semaphores, -1)
            os.waitpid(child, 0)
        finally:
            libc().semctl(semaphores, 0, 0)
    world.barrier("taken")


@innocent(ranks=2, backend="none")
def test_a_timer_in_an_epoll_in_an_epoll(world) -> None:
    """Rank 0 waits for an epoll that watches another one, in which there is a timer."""
    if world.is_primary:
        timer = libc().timerfd_create(time.CLOCK_MONOTONIC, 0)
        libc().timerfd_settime(timer, 0, struct.pack("qqqq", 0, 0, LONG_S, 0), None)
        inner, outer = select.epoll(), select.epoll()
        inner.register(timer, select.EPOLLIN)
        outer.register(inner.fileno(), select.EPOLLIN)
        assert outer.poll()
    world.barrier("struck")


@innocent(ranks=2, backend="none")
def test_a_connection_without_data_is_accepted_late(world, shared_tmp_path) -> None:
    """Rank 0's kernel waits for data of rank 1 before it lets it accept, but not for ever."""
    place = shared_tmp_path / "port"
    if world.is_primary:
        server = socket.create_server((HOST, 0))
        server.setsockopt(socket.IPPROTO_TCP, TCP_DEFER_ACCEPT, 3)
        place.write_text(str(server.getsockname()[1]))
        world.barrier("listens")
        server.accept()
    else:
        world.barrier("listens")
        connection = socket.create_connection((HOST, int(place.read_text())))
        world.barrier("accepted")
        connection.close()
        return
    world.barrier("accepted")
