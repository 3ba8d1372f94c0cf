"""Worlds that are still for a moment, again and again, and go on by themselves."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import mmap
import os
import queue
import signal
import socket
import struct
import subprocess
import threading
import time

import pytest
import torch
import torch.distributed as dist
from expectation import innocent
from mishaps import python_child

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
