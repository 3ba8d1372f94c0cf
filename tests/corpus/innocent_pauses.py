"""Worlds that are still for a moment, again and again, and go on by themselves."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import mmap
import os
import pty
import queue
import signal
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from expectation import innocent
from mishaps import Uring, may_mount_fuse, python_child, slow_file
from torch.distributed.distributed_c10d import _get_default_store

PAUSE_S = 0.35
"""Longer than the watchdog needs to see that a world is still."""

TIMES = 10


def meet() -> None:
    """Let all ranks meet."""
    dist.all_reduce(torch.ones(3))


@innocent(ranks=3, backend="gloo")
def test_token_goes_round_with_pauses(world) -> None:
    """Whoever has it sleeps, and the others receive.

    Source: field report class: pipeline stages of unequal length
    """
    token = torch.zeros(1)
    before, after = (world.rank - 1) % world.size, (world.rank + 1) % world.size
    for turn in range(TIMES // 2):
        if world.rank or turn:
            dist.recv(token, before)
        time.sleep(PAUSE_S)
        if not (world.rank == world.size - 1 and turn == TIMES // 2 - 1):
            dist.send(token, after)
    meet()


@innocent(ranks=4, backend="gloo")
def test_collectives_with_pauses(world) -> None:
    """One rank, always another, is late at each.

    Source: field report class: stragglers that take turns
    """
    for step in range(TIMES):
        if step % world.size == world.rank:
            time.sleep(PAUSE_S)
        meet()


@innocent(ranks=2, backend="gloo")
def test_works_in_bursts(world) -> None:
    """A rank computes for a moment, and waits for a moment, over and over.

    Source: field report class: rate limits of an object store
    """
    for _ in range(TIMES if world.rank else 0):
        torch.ones(200, 200) @ torch.ones(200, 200)
        time.sleep(PAUSE_S)
    meet()


@innocent(ranks=2, backend="gloo")
def test_looks_for_a_file_now_and_then(world, shared_tmp_path) -> None:
    """A rank looks for a marker that another one writes in the end.

    Source: https://github.com/mosaicml/composer/pull/2071
    """
    marker = shared_tmp_path / "marker"
    if world.is_primary:
        time.sleep(TIMES * PAUSE_S)
        marker.touch()
    while not marker.exists():
        time.sleep(PAUSE_S)
    meet()


@innocent(ranks=2, backend="gloo")
def test_asks_a_queue_now_and_then(world) -> None:
    """The queue is filled by a thread that takes its time.

    Source: field report class: queue.get(timeout=...) in a loop, to stay interruptible
    """
    found = None
    asked: queue.Queue[int] = queue.Queue()
    threading.Timer(TIMES * PAUSE_S, asked.put, [1]).start()
    while world.is_primary and found is None:
        with contextlib.suppress(queue.Empty):
            found = asked.get(timeout=PAUSE_S)
    meet()


@innocent(ranks=2, backend="gloo")
def test_threads_hand_on_with_pauses(world) -> None:
    """Each wakes the next one after a sleep, and the main thread joins the last.

    Source: field report class: staged shutdown of a pool
    """
    events = [threading.Event() for _ in range(TIMES + 1)]

    def hand_on(number: int) -> None:
        events[number].wait()
        time.sleep(PAUSE_S)
        events[number + 1].set()

    for number in range(TIMES):
        threading.Thread(target=hand_on, args=(number,)).start()
    if world.rank:
        events[0].set()
        events[-1].wait()
    meet()
    events[0].set()


@innocent(ranks=2, backend="gloo")
def test_stopped_and_continued_in_turn(world) -> None:
    """Somebody stops a rank and lets it go on, over and over.

    Source: field report class: a profiler that stops a process for each sample
    """
    if world.rank:
        turn = f"kill -STOP {os.getpid()}; sleep {PAUSE_S}; kill -CONT {os.getpid()}"
        subprocess.run(["sh", "-c", "; ".join([f"sleep {PAUSE_S}; {turn}"] * 6)], check=True)
    meet()


@innocent(ranks=2, backend="gloo")
def test_children_one_after_the_other(world) -> None:
    """A rank starts tools, each of which takes a moment.

    Source: field report class: unpacking with an external tool
    """
    for _ in range(TIMES if world.rank else 0):
        subprocess.run(["sleep", str(PAUSE_S)], check=True)
    meet()


@innocent(ranks=2, backend="gloo")
def test_daemons_that_start_each_other(world, shared_tmp_path) -> None:
    """None of them is a child of the rank any more; the last one opens the pipe it reads.

    Source: field report class: build systems that detach
    """
    fifo = shared_tmp_path / f"fifo-{world.rank}"
    os.mkfifo(fifo)
    if world.rank:
        script = f"echo done > {fifo}"
        for _ in range(5):
            script = f"sleep {PAUSE_S}; ( {script} ) &"
        subprocess.run(["sh", "-c", script], check=True)
        assert fifo.read_text() == "done\n"
    meet()


@innocent(ranks=2, backend="gloo")
def test_timer_strikes_over_and_over(world) -> None:
    """A rank pauses until its timer has struck a few times.

    Source: field report class: schedules made of signals
    """
    struck = []
    if world.rank:
        signal.signal(signal.SIGALRM, lambda *_: struck.append(1))
        signal.setitimer(signal.ITIMER_REAL, PAUSE_S, PAUSE_S)
        while len(struck) < TIMES:
            signal.pause()
        signal.setitimer(signal.ITIMER_REAL, 0)
    meet()


@innocent(ranks=2, backend="gloo")
def test_eventfd_of_another_process(world) -> None:
    """A rank reads a counter that a child raises at last.

    Source: field report class: a data service that signals by eventfd
    """
    if world.rank:
        counter = os.eventfd(0)
        write = f"import os, time; time.sleep({TIMES * PAUSE_S}); os.eventfd_write({counter}, 1)"
        with subprocess.Popen(["python3", "-c", write], pass_fds=[counter]):
            os.eventfd_read(counter)
        os.close(counter)
    meet()


@innocent(ranks=2, backend="gloo")
def test_pipe_that_drips(world) -> None:
    """A byte now and then, from a child.

    Source: field report class: a tool that reports its progress
    """
    if world.rank:
        drip = f"for _ in range({TIMES}): time.sleep({PAUSE_S}); print(end='x', flush=True)"
        with python_child(f"import time\n{drip}") as child:
            assert len(child.stdout.read()) == TIMES
    meet()


@innocent(ranks=3, backend="none")
def test_file_lock_changes_hands(world, shared_tmp_path) -> None:
    """Each rank holds the lock for a moment; the others wait for it without a limit.

    Source: field report class: a cache on a shared file system
    """
    with (shared_tmp_path / "lock").open("w") as file:
        for _ in range(TIMES // 3):
            fcntl.flock(file, fcntl.LOCK_EX)
            time.sleep(PAUSE_S)
            fcntl.flock(file, fcntl.LOCK_UN)
            time.sleep(PAUSE_S / 10)
    world.barrier()


@innocent(ranks=2, backend="none")
def test_server_that_comes_up_late(world, shared_tmp_path) -> None:
    """A rank tries to connect now and then, until the other one accepts.

    Source: field report class: clients that start before their server
    """
    path = str(shared_tmp_path / "socket")
    with socket.socket(socket.AF_UNIX) as one:
        if world.is_primary:
            time.sleep(TIMES * PAUSE_S / 2)
            one.bind(path)
            one.listen()
            one.accept()[0].close()
        else:
            while one.connect_ex(path):
                time.sleep(PAUSE_S * 2)
    world.barrier()


@innocent(ranks=2, backend="none")
def test_data_are_lost_and_sent_again(world, shared_tmp_path) -> None:
    """A rank's kernel drops what arrives, for a while; then only the other one's timer helps.

    Source: field report class: a link that comes back
    """
    if world.is_primary:
        with socket.create_server(("127.0.0.1", 0)) as server:
            (shared_tmp_path / "new").write_text(str(server.getsockname()[1]))
            (shared_tmp_path / "new").rename(shared_tmp_path / "port")
            connection, _ = server.accept()
        world.barrier("connected")
        program = ctypes.create_string_buffer(struct.pack("=HBBI", 6, 0, 0, 0))
        option = struct.pack("HL", 1, ctypes.addressof(program))
        with contextlib.suppress(PermissionError):  # from Linux 6.18 on; then nothing is lost
            connection.setsockopt(socket.SOL_SOCKET, 26, option)
            threading.Timer(1.6, connection.setsockopt, [socket.SOL_SOCKET, 27, 0]).start()
        world.barrier("cut off")
        assert connection.recv(1) == b"x"
        connection.send(b"y")
    else:
        while not (shared_tmp_path / "port").exists():
            time.sleep(0.01)
        port = int((shared_tmp_path / "port").read_text())
        connection = socket.create_connection(("127.0.0.1", port))
        world.barrier("connected")
        world.barrier("cut off")
        connection.send(b"x")
        assert connection.recv(1) == b"y"
    connection.close()


@innocent(ranks=2, backend="gloo")
def test_allocates_lazily(world) -> None:
    """A rank touches the pages of a large file and of fresh memory, again and again.

    Source: field report class: the first step after a restore
    """
    until = time.monotonic() + TIMES * PAUSE_S
    size = 1 << 25
    while world.rank and time.monotonic() < until:
        with mmap.mmap(-1, size) as pages:
            for at in range(0, size, mmap.PAGESIZE):
                pages[at] = 1
    meet()


@innocent(ranks=2, backend="gloo")
def test_starves_beside_others(world) -> None:
    """A rank has the lowest priority of all, and others compute.

    Source: field report class: overcommitted CI machines
    """
    if world.rank:
        burners = [subprocess.Popen(["sh", "-c", "while :; do :; done"]) for _ in range(3)]
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        until = time.monotonic() + TIMES * PAUSE_S
        while time.monotonic() < until:
            time.sleep(0.01)
        for each in burners:
            each.kill()
            each.wait()
    meet()


@innocent(ranks=2, backend="gloo")
def test_reads_a_file_of_a_slow_server(world, tmp_path) -> None:
    """The file system is served by another process, which takes a moment for each read.

    Source: field report class: a data set on gcsfuse, sshfs or s3fs
    """
    if not may_mount_fuse():
        pytest.skip("may not mount a file system")
    if world.rank:
        with slow_file(tmp_path / "slow", PAUSE_S) as path:
            file = os.open(path, os.O_RDONLY)
            for _ in range(TIMES):
                assert os.read(file, 1) == b"x"
            os.close(file)
    meet()


@innocent(ranks=2, backend="gloo")
def test_pages_come_back_from_the_disk(world, tmp_path) -> None:
    """What a rank has mapped is not in memory any more, again and again.

    Source: field report class: weights that are mapped, on a machine that swaps
    """
    size = 1 << 22
    until = time.monotonic() + TIMES * PAUSE_S
    (tmp_path / "weights").write_bytes(os.urandom(size))
    with (tmp_path / "weights").open("r+b") as file, mmap.mmap(file.fileno(), size) as pages:
        os.fsync(file.fileno())
        while world.rank and time.monotonic() < until:
            pages.madvise(mmap.MADV_DONTNEED)
            os.posix_fadvise(file.fileno(), 0, size, os.POSIX_FADV_DONTNEED)
            sum(pages[at] for at in range(0, size, mmap.PAGESIZE))
            time.sleep(PAUSE_S / 10)
    meet()


@innocent(ranks=2, backend="none")
def test_takes_little_at_a_time_from_a_full_socket(world, shared_tmp_path) -> None:
    """A rank sends more than fits, and the other reads a part now and then.

    Source: field report class: a slow consumer of a stream of samples
    """
    size = 1 << 24
    with _connection(world, shared_tmp_path) as connection:
        if world.is_primary:
            connection.sendall(bytes(size))
            assert connection.recv(1) == b"x"
        else:
            while size:
                time.sleep(PAUSE_S)
                size -= len(connection.recv(size // 3 + 1, socket.MSG_WAITALL))
            connection.send(b"x")
    world.barrier()


@innocent(ranks=2, backend="none")
def test_data_that_the_kernel_holds_back(world, shared_tmp_path) -> None:
    """A sender says that more follows, and waits for the answer: after 0.2 s the kernel sends it.

    Source: field report class: TCP_CORK, MSG_MORE
    """
    with _connection(world, shared_tmp_path) as connection:
        for _ in range(TIMES * 2):
            if world.is_primary:
                connection.send(b"?", socket.MSG_MORE)
                assert connection.recv(1) == b"!"
            else:
                assert connection.recv(1) == b"?"
                connection.send(b"!", socket.MSG_MORE)
    world.barrier()


@innocent(ranks=3, backend="none")
def test_connects_to_a_server_that_is_busy(world, shared_tmp_path) -> None:
    """There is no room for those that want to connect: their kernels ask again after a second.

    Source: field report class: hundreds of clients of a store that start at once
    """
    path = shared_tmp_path / "port"
    if world.is_primary:
        with socket.socket() as server, contextlib.ExitStack() as stack:
            server.bind(("127.0.0.1", 0))
            server.listen(0)
            place = server.getsockname()
            first = stack.enter_context(socket.create_connection(place))
            path.with_suffix(".new").write_text(str(place[1]))
            path.with_suffix(".new").rename(path)
            time.sleep(4 * PAUSE_S)
            for _ in range(world.size):
                stack.enter_context(server.accept()[0]).send(b"x")
            assert first.recv(1) == b"x"
            world.barrier()
    else:
        while not path.exists():
            time.sleep(0.01)
        with socket.create_connection(("127.0.0.1", int(path.read_text()))) as connection:
            connection.send(b"?")  # what the server's kernel has forgotten is sent again
            assert connection.recv(1) == b"x"
            world.barrier()


@contextlib.contextmanager
def _connection(world, place: Path) -> Iterator[socket.socket]:
    """Connect two ranks by TCP."""
    path = place / "port"
    if world.is_primary:
        with socket.create_server(("127.0.0.1", 0)) as server:
            path.with_suffix(".new").write_text(str(server.getsockname()[1]))
            path.with_suffix(".new").rename(path)
            connection, _ = server.accept()
    else:
        while not path.exists():
            time.sleep(0.01)
        connection = socket.create_connection(("127.0.0.1", int(path.read_text())))
    with connection:
        world.barrier("connected")
        yield connection


@innocent(ranks=2, backend="gloo")
def test_signal_is_pending_for_a_while(world) -> None:
    """A signal that is blocked waits for the thread that takes it after a pause.

    Source: field report class: preemption notices that are handled between two steps
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    for _ in range(TIMES if world.rank else 0):
        signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)
        time.sleep(PAUSE_S)
        assert signal.sigwait([signal.SIGUSR1]) == signal.SIGUSR1
    meet()


@innocent(ranks=2, backend="gloo")
def test_terminal_of_a_child(world) -> None:
    """A child prints a line now and then on a terminal that the rank reads.

    Source: field report class: tools that are run under a pseudo-terminal for their progress bars
    """
    if world.rank:
        reading, writing = pty.openpty()
        script = f"for i in {' '.join('x' * TIMES)}; do sleep {PAUSE_S}; echo $i; done"
        with subprocess.Popen(["sh", "-c", script], stdout=writing):
            seen = b""
            while seen.count(b"x") < TIMES:
                seen += os.read(reading, 100)
        os.close(reading)
        os.close(writing)
    meet()


@innocent(ranks=2, backend="gloo")
def test_is_told_of_a_new_file(world, shared_tmp_path) -> None:
    """A rank waits for inotify, and the other one makes the file after a pause.

    Source: field report class: watchers of a directory of checkpoints
    """
    if world.rank:
        libc = ctypes.CDLL(None, use_errno=True)
        watcher = libc.inotify_init1(0)
        assert libc.inotify_add_watch(watcher, os.fsencode(shared_tmp_path), 0x100) > 0
        world.barrier("watching")
        assert os.read(watcher, 1000)
        os.close(watcher)
    else:
        world.barrier("watching")
        time.sleep(TIMES / 2 * PAUSE_S)
        (shared_tmp_path / "made").touch()
    meet()


@innocent(ranks=2, backend="gloo")
def test_io_uring_raises_a_counter(world) -> None:
    """A rank reads an eventfd of its own, which only the kernel will raise.

    Source: field report class: asynchronous readers of checkpoints
    """
    if world.rank:
        counter = os.eventfd(0)
        try:
            ring = Uring(counter)
        except OSError:  # forbidden in many containers
            pytest.skip("io_uring is not to be had")
        for _ in range(TIMES):
            ring.submit_timeout(PAUSE_S)
            assert os.eventfd_read(counter) == 1
        os.close(counter)
    meet()


@innocent(ranks=2, backend="gloo")
def test_forks_whose_forks_report(world) -> None:
    """A child forks and ends, and what it leaves behind writes after a pause.

    Source: field report class: daemons of a cluster's scheduler
    """
    for _ in range(TIMES if world.rank else 0):
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            if os.fork() == 0:
                time.sleep(PAUSE_S)
                os.write(writing, b"x")
            os._exit(0)
        os.waitpid(child, 0)
        assert os.read(reading, 1) == b"x"
        os.close(reading)
        os.close(writing)
    meet()


@pytest.mark.parametrize("seconds", [4, 6])
@innocent(ranks=3, backend="none")
def test_connects_again_after_a_late_start(world, shared_tmp_path, seconds) -> None:
    """Clients of jax wait ever longer before they try again; the service comes, and waits for them.

    Source: field report class: the coordinator's host boots last
    """
    import jax

    if world.is_primary:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
        (shared_tmp_path / "new").write_text(str(port))
        (shared_tmp_path / "new").rename(shared_tmp_path / "port")
        time.sleep(seconds)
    while not (shared_tmp_path / "port").exists():
        time.sleep(0.01)
    place = "127.0.0.1:" + (shared_tmp_path / "port").read_text()
    jax.distributed.initialize(place, world.size, world.rank)
    world.barrier()
    jax.distributed.shutdown()


@innocent(ranks=2, backend="gloo")
def test_limits_strike_while_the_world_is_still(world) -> None:
    """All wait for a key that nobody sets, give up at almost the same time, and then meet.

    Source: met in this corpus on a busy machine: a rank left its operation while it was read
    """
    store = _get_default_store()
    for turn in range(TIMES // 2):
        limit = timedelta(milliseconds=700 + 37 * turn + 5 * world.rank)
        with pytest.raises(RuntimeError, match=r"(?i)timeout"):
            store.wait(["never"], limit)
        world.barrier(f"given up {turn}")
