"""Waits that end: for threads, timers, children, files, locks and the world outside."""

from __future__ import annotations

import asyncio
import ctypes
import fcntl
import multiprocessing
import os
import select
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from expectation import innocent
from mishaps import python_child

LONG_S = 4

SERVER = f"""
import socket, sys, time
with socket.create_server(("127.0.0.1", 0)) as server:
    print(server.getsockname()[1], flush=True)
    connection, _ = server.accept()
    time.sleep({LONG_S})
    connection.sendall(b"done")
"""

DRIP = f"""
import sys, time
for _ in range(8):
    time.sleep({LONG_S} / 8)
    sys.stdout.write("x" * 100)
    sys.stdout.flush()
"""


@innocent(ranks=4, backend="gloo")
def test_primary_reads_a_slow_pipe(world) -> None:
    """The primary reads chunks that drip from a pipe, the others wait for it.

    Source: https://github.com/google/orbax/issues/3181 (slow storage)
    """
    if world.is_primary:
        with python_child(DRIP) as child:
            assert len(child.stdout.read()) == 800
    world.barrier()


@innocent(ranks=2, backend="none")
def test_waits_for_a_server_outside(world) -> None:
    """A rank waits for the answer of a server that is no rank.

    Source: field report class: object storage that throttles
    """
    if world.rank == 1:
        with python_child(SERVER) as child:
            port = int(child.stdout.readline())
            with socket.create_connection(("127.0.0.1", port)) as connection:
                assert connection.recv(10) == b"done"
    world.barrier()


@innocent(ranks=2, backend="gloo")
def test_waits_for_a_subprocess(world) -> None:
    """A rank runs a tool for 4 s.

    Source: field report class: unpacking with an external tool
    """
    if world.is_primary:
        subprocess.run(["sleep", str(LONG_S)], check=True)
    world.barrier()


@innocent(ranks=2, backend="none")
def test_waits_for_a_grandchild(world) -> None:
    """A rank waits for a shell that waits for a tool in the background.

    Source: field report class: build scripts
    """
    if world.is_primary:
        subprocess.run(["sh", "-c", f"(sleep {LONG_S}; true) & wait"], check=True)
    world.barrier()


@innocent(ranks=3, backend="none")
def test_timer_in_another_thread(world) -> None:
    """The main thread waits untimed for an event that a timer sets.

    Source: field report class: rate limiting
    """
    if world.rank == 2:
        event = threading.Event()
        threading.Timer(LONG_S, event.set).start()
        event.wait()
    world.barrier()


@innocent(ranks=2, backend="none")
def test_lock_is_released_late_by_a_thread(world) -> None:
    """The main thread wants a lock that a sleeping thread releases after 4 s.

    Source: field report class: a cache refreshed in the background
    """
    if world.rank == 1:
        lock, held = threading.Lock(), threading.Event()

        def hold() -> None:
            with lock:
                held.set()
                time.sleep(LONG_S)

        threading.Thread(target=hold).start()
        held.wait()
        with lock:
            pass
    world.barrier()


@innocent(ranks=2, backend="none")
def test_alarm_ends_a_pause(world) -> None:
    """A rank is in pause() until the kernel's interval timer sends SIGALRM.

    Source: field report class: schedules made of signals
    """
    if world.is_primary:
        signal.signal(signal.SIGALRM, lambda *_: None)
        signal.setitimer(signal.ITIMER_REAL, LONG_S)
        signal.pause()
    world.barrier()


@innocent(ranks=2, backend="none")
def test_timer_descriptor(world) -> None:
    """A rank reads a pipe that its own SIGALRM handler writes to.

    Source: field report class: self-pipes
    """
    if world.is_primary:
        reading, writing = os.pipe()
        signal.signal(signal.SIGALRM, lambda *_: os.write(writing, b"x"))
        signal.setitimer(signal.ITIMER_REAL, LONG_S)
        assert os.read(reading, 1) == b"x"
    world.barrier()


@innocent(ranks=3, backend="gloo")
def test_stopped_for_a_moment(world) -> None:
    """A child stops rank 1 for 1.5 s and lets it go on.

    Source: field report class: live migration, a snapshot of the machine
    """
    world.barrier("begin")
    if world.rank == 1:
        me = os.getpid()
        subprocess.run(["sh", "-c", f"kill -STOP {me}; sleep 1.5; kill -CONT {me}"], check=True)
    world.barrier("end")


@innocent(ranks=2, backend="none")
def test_file_lock_is_released_late(world, shared_tmp_path) -> None:
    """Rank 0 waits for the file lock that rank 1 holds for 4 s.

    Source: https://github.com/huggingface/datasets/issues/1672 (its healthy side)
    """
    with (shared_tmp_path / "lock").open("w") as file:
        if world.rank == 1:
            fcntl.flock(file, fcntl.LOCK_EX)
        world.barrier("locked")
        if world.rank == 1:
            time.sleep(LONG_S)
        else:
            fcntl.flock(file, fcntl.LOCK_EX)


@innocent(ranks=2, backend="none")
def test_file_lock_of_an_outsider(world, shared_tmp_path) -> None:
    """A rank waits for a file lock that a child process holds for 4 s.

    Source: field report class: another job uses the same cache
    """
    if world.rank == 1:
        path = shared_tmp_path / "lock"
        path.touch()
        program = (
            f"import fcntl, time; file = open({str(path)!r}); fcntl.flock(file, fcntl.LOCK_EX);"
            f"print('held', flush=True); time.sleep({LONG_S})"
        )
        with python_child(program) as child, path.open() as file:
            child.stdout.readline()
            fcntl.flock(file, fcntl.LOCK_EX)
    world.barrier()


@innocent(ranks=3, backend="none")
def test_a_tool_has_inherited_a_file_lock_for_a_while(world, shared_tmp_path) -> None:
    """Rank 0 has closed the file, and its child ends after 4 s; rank 1 wants the lock.

    Source: https://man7.org/linux/man-pages/man2/flock.2.html (duplicates of a descriptor)
    """
    place = shared_tmp_path / "lock"
    if world.is_primary:
        with place.open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            os.set_inheritable(file.fileno(), True)
            subprocess.Popen(["sleep", str(LONG_S)], close_fds=False)
    world.barrier("started")
    if world.rank == 1:
        with place.open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
    world.barrier("built")


@innocent(ranks=8, backend="none")
def test_polls_for_a_file_that_comes(world, shared_tmp_path) -> None:
    """Seven of eight ranks poll for a file that the primary writes after 4 s.

    Source: https://github.com/mosaicml/composer/pull/2071
    """
    path = shared_tmp_path / "done"
    if world.is_primary:
        time.sleep(LONG_S)
        path.touch()
    while not path.exists():
        time.sleep(0.05)


@innocent(ranks=2, backend="none")
def test_sleeps_in_asyncio(world) -> None:
    """An event loop with nothing but a timer.

    Source: field report class: back-off in an asynchronous client
    """
    if world.is_primary:
        asyncio.run(asyncio.sleep(LONG_S))
    world.barrier()


def slowly(number: int) -> int:
    """Return a number after a while."""
    time.sleep(LONG_S / 2)
    return number


@innocent(ranks=2, backend="none")
def test_pool_of_processes(world) -> None:
    """A rank waits for a pool of forked processes.

    Source: https://github.com/python/cpython/pull/10441 (its healthy side)
    """
    if world.rank == 1:
        with multiprocessing.get_context("fork").Pool(2) as pool:
            assert pool.map(slowly, range(4)) == [0, 1, 2, 3]
    world.barrier()


@innocent(ranks=2, backend="none")
def test_event_set_by_a_child(world) -> None:
    """A rank waits on a semaphore in shared memory that its child releases.

    Source: field report class: a loader process signals that it is ready
    """
    if world.rank == 1:
        context = multiprocessing.get_context("fork")
        event = context.Event()
        child = context.Process(target=set_late, args=(event,))
        child.start()
        event.wait()
        child.join()
    world.barrier()


def set_late(event) -> None:
    """Set an event after a while."""
    time.sleep(LONG_S)
    event.set()


@innocent(ranks=4, backend="none")
def test_computes_in_python(world) -> None:
    """The primary computes in pure Python for 4 s.

    Source: field report class: building an index
    """
    if world.is_primary:
        until = time.monotonic() + LONG_S
        while time.monotonic() < until:
            sum(range(100_000))
    world.barrier()


@innocent(ranks=2, backend="gloo")
def test_computes_in_numpy(world) -> None:
    """The primary computes in native code for 4 s.

    Source: field report class: preprocessing
    """
    if world.is_primary:
        until = time.monotonic() + LONG_S
        matrix = np.ones((500, 500))
        while time.monotonic() < until:
            matrix = matrix @ matrix / 500
    world.barrier()


@innocent(ranks=2, backend="none")
def test_computes_in_another_thread(world) -> None:
    """The main thread joins a thread that computes.

    Source: field report class: work moved off the main thread
    """

    def compute() -> None:
        until = time.monotonic() + LONG_S
        while time.monotonic() < until:
            sum(range(100_000))

    if world.is_primary:
        thread = threading.Thread(target=compute)
        thread.start()
        thread.join()
    world.barrier()


@innocent(ranks=2, backend="none")
def test_gil_is_held_for_a_while(world) -> None:
    """Native code keeps the interpreter for 4 s and gives it back.

    Source: https://github.com/NVIDIA/apex/issues/1814
    """
    if world.rank == 1:
        ctypes.PyDLL(None).sleep(LONG_S)
    world.barrier()


@innocent(ranks=2, backend="none")
def test_selects_on_a_socket_of_its_own_thread(world) -> None:
    """The main thread selects untimed on a socket that a timer thread writes to.

    Source: field report class: wake-up sockets of event loops
    """
    if world.is_primary:
        ours, theirs = socket.socketpair()
        threading.Timer(LONG_S, theirs.send, args=(b"x",)).start()
        assert select.select([ours], [], []) == ([ours], [], [])
    world.barrier()


@innocent(ranks=2, backend="none")
def test_writes_and_syncs(world, tmp_path) -> None:
    """A rank writes a file and syncs it again and again.

    Source: https://github.com/instructlab/training/pull/566 (saving artifacts)
    """
    if world.is_primary:
        until = time.monotonic() + LONG_S
        with (tmp_path / "artifact").open("wb") as file:
            while time.monotonic() < until:
                file.write(b"x" * 100_000)
                file.flush()
                os.fsync(file.fileno())
    world.barrier()


@innocent(ranks=2, backend="none")
def test_named_pipe_whose_writer_is_late(world, shared_tmp_path) -> None:
    """The primary opens a named pipe, rank 1 opens the other end after 4 s.

    Source: field report class: ranks that talk through a pipe of their own
    """
    pipe: Path = shared_tmp_path / "pipe"
    if world.is_primary:
        os.mkfifo(pipe)
        world.barrier("made")
        assert pipe.read_text() == "done"
    else:
        world.barrier("made")
        time.sleep(LONG_S)
        pipe.write_text("done")


@innocent(ranks=2, backend="none")
def test_thread_is_left_behind(world) -> None:
    """The test passes; a daemon thread of it waits for ever.

    Source: field report class: leaked threads
    """
    threading.Thread(target=threading.Event().wait, daemon=True).start()
    world.barrier()
    time.sleep(2.5)


@innocent(ranks=2, backend="none", status="skipped")
def test_all_ranks_skip_late(world) -> None:
    """All ranks skip, one of them after 3 s.

    Source: field report class: a probe for hardware that takes time
    """
    if world.rank == 1:
        time.sleep(3)
    pytest.skip("there is no such device here")


@pytest.mark.xfail(reason="known to be wrong")
@innocent(ranks=2, backend="none", status="xfailed", outcome="failed")
def test_expected_failure(world) -> None:
    """All ranks fail as expected, one of them after 3 s.

    Source: field report class: a known bug
    """
    if world.rank == 1:
        time.sleep(3)
    raise AssertionError("as always")


@innocent(ranks=2, backend="none")
def test_timer_signal_is_waited_for(world) -> None:
    """The wait is for a signal that a timer sends to this process.

    Source: field report class: sigwait() as a sleep
    """
    if world.is_primary:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
        signal.setitimer(signal.ITIMER_REAL, LONG_S)
        assert signal.sigwait({signal.SIGALRM}) == signal.SIGALRM
    world.barrier()


@innocent(ranks=2, backend="none")
def test_datagram_from_outside(world) -> None:
    """A rank waits for a datagram of a process that is no rank.

    Source: field report class: discovery and metrics over UDP
    """
    if world.is_primary:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as mine:
            mine.bind(("127.0.0.1", 0))
            later = f"import socket, time; time.sleep({LONG_S}); mine = {mine.getsockname()!r}; "
            send = "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', mine)"
            with python_child(later + send):
                assert mine.recv(1) == b"x"
    world.barrier()


@innocent(ranks=2, backend="none")
def test_pipe_of_an_orphan(world) -> None:
    """The shell is gone, what it has left in the background still writes.

    Source: field report class: start-up scripts that leave a helper behind
    """
    if world.is_primary:
        script = f"(sleep {LONG_S}; echo done) &"
        told = subprocess.run(["sh", "-c", script], capture_output=True, check=True).stdout
        assert told == b"done\n"
    world.barrier()


@innocent(ranks=2, backend="none")
def test_lock_of_a_child_that_lives(world) -> None:
    """A forked child holds a shared lock for a while, beside one that has ended.

    Source: https://github.com/python/cpython/issues/82265 (the same, and the child lives)
    """
    if world.is_primary:
        subprocess.Popen(["true"])
        context = multiprocessing.get_context("fork")
        lock = context.Lock()
        lock.acquire()
        child = context.Process(target=lambda: (time.sleep(LONG_S), lock.release()))
        child.start()
        with lock:
            child.join()
    world.barrier()


@innocent(ranks=2, backend="none")
def test_native_code_keeps_the_interpreter_for_a_while(world) -> None:
    """Another thread asks for its turn all the time, and gets it in the end.

    Source: https://github.com/hw-native-sys/simpler/issues/721 (the same, and it ends)
    """
    if world.is_primary:
        threading.Thread(target=lambda: [time.sleep(0.01) for _ in range(500)], daemon=True).start()
        ctypes.PyDLL(None).sleep(LONG_S)
    world.barrier()


@innocent(ranks=3, backend="none")
def test_lock_that_is_a_file_is_handed_on(world, shared_tmp_path) -> None:
    """Each rank in turn makes a lock file, keeps it for a while, and removes it.

    Source: a hunt for false verdicts.
    """
    lock = shared_tmp_path / "lock"
    while True:
        try:
            made = os.open(lock, os.O_CREAT | os.O_EXCL)
        except FileExistsError:
            time.sleep(0.1)
        else:
            break
    time.sleep(LONG_S / 2)
    os.close(made)
    lock.unlink()
    world.barrier()


@innocent(ranks=3, backend="none")
def test_baton_of_a_slow_build(world, shared_tmp_path) -> None:
    """Torch's file lock: one rank builds, and the others wait for its end.

    Source: a hunt for false verdicts.
    """
    from torch.utils.file_baton import FileBaton

    baton = FileBaton(str(shared_tmp_path / "lock"))
    if baton.try_acquire():
        time.sleep(LONG_S)
        (shared_tmp_path / f"built-by-{world.rank}").touch()
        baton.release()
    else:
        baton.wait()
    world.barrier()
    assert [*shared_tmp_path.glob("built-by-*")]
