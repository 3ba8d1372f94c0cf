"""Jobs of several programs that were written before the rules, and run only after them."""

from __future__ import annotations

import multiprocessing
import os
import select
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from multiprocessing.connection import Listener

import torch
import torch.distributed as dist
from expectation import hang
from mishaps import FOREVER_S
from programs import HOST, client, connected, http_server, post
from roles import join_group_at, join_role


def meet(group: object = None) -> None:
    """Let all members of a group meet."""
    dist.all_reduce(torch.ones(4), group=group)


@hang(
    "straggler",
    roles={"trainer": 2, "engine": 2, "frontend": 2},
    backend="none",
    culprits=["trainer:1"],
    waiting=["trainer:0", "engine"],
    where="time.sleep(FOREVER_S)",
)
def test_a_chain_through_two_groups(world) -> None:
    """Engines wait for trainer 0 in one group, which waits for trainer 1 in another.

    Source: https://github.com/huggingface/trl/issues/6797
    """
    if world.role == "frontend":
        http_server(world.port("frontend", world.role_rank), str).serve_forever()
    join_role()
    meet()
    if world.role == "trainer" and world.role_rank == 1:
        time.sleep(FOREVER_S)
    if world.role == "engine" or world.role_rank == 0:
        number = 0 if world.role == "trainer" else 1 + world.role_rank
        group = join_group_at(world.port("trainer"), number, 3, "weights")
        if world.role == "trainer":
            meet()
        meet(group)


@hang(
    "straggler",
    roles={"engine": 2, "driver": 1},
    backend="none",
    culprits=["engine:1"],
    waiting=["driver", "engine:0"],
    where="time.sleep(FOREVER_S)",
)
def test_server_with_a_selector(world) -> None:
    """The engine's loop serves its driver, and asks the other engine in a thread.

    Source: https://github.com/sgl-project/sglang/issues/27221
    """
    if world.role == "driver":
        connected(world.port("engine", 0)).recv(1)
        return
    if world.role_rank == 1:
        with socket.create_server((HOST, world.port("engine", 1))) as server:
            connection, _ = server.accept()
            time.sleep(FOREVER_S)
            connection.close()
        return
    with socket.create_server((HOST, world.port("engine", 0))) as server:
        driver, _ = server.accept()
        loop = selectors.DefaultSelector()
        other = connected(world.port("engine", 1))
        loop.register(other, selectors.EVENT_READ)
        loop.register(driver, selectors.EVENT_READ)
        loop.register(server, selectors.EVENT_READ)
        while True:
            loop.select()


@hang(
    "straggler",
    roles={"driver": 1, "engine": 3},
    backend="none",
    culprits=["engine:2"],
    waiting=["driver"],
    where="time.sleep(FOREVER_S)",
)
def test_a_driver_waits_for_all_of_three(world) -> None:
    """Two engines have answered; they wait for requests, and the third one sleeps.

    Source: https://github.com/NVIDIA-NeMo/RL/issues/3929
    """
    if world.role == "driver":
        every = [client(world.port("engine", number)) for number in range(3)]
        for each in every:
            each.send(1)
        for each in every:
            each.recv()
        return
    with Listener((HOST, world.port("engine", world.role_rank))) as listener:
        driver = listener.accept()
        while True:
            driver.recv()
            if world.role_rank == 2:
                time.sleep(FOREVER_S)
            driver.send(1)


@hang(
    "died",
    roles={"engine": 2, "driver": 1},
    backend="none",
    culprits=["engine:1"],
    by=("exit",),
)
def test_an_engine_is_killed(world) -> None:
    """The other engine waits for it in a collective, and the driver for that one.

    Source: https://github.com/vllm-project/vllm/issues/43547
    """
    if world.role == "driver":
        with socket.create_server((HOST, world.port("driver"))) as server:
            server.accept()[0].recv(1)
        return
    join_role()
    meet()
    if world.role_rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    driver = connected(world.port("driver"))
    meet()
    driver.sendall(b"x")


@hang(
    "straggler",
    roles={"engine": 1, "driver": 1, "idle": 1},
    backend="none",
    culprits=["engine:0"],
    waiting=["driver"],
    where="time.sleep(FOREVER_S)",
)
def test_engine_is_a_server_with_threads(world) -> None:
    """A thread of the engine's server sleeps in its handler; the main thread waits for others.

    Source: https://github.com/sgl-project/sglang/issues/22779
    """
    if world.role == "idle":
        select.select([], [], [], FOREVER_S * 2)
    if world.role == "driver":
        post(world.port("engine"))
        return
    answer = lambda _: time.sleep(FOREVER_S)  # noqa: E731
    http_server(world.port("engine"), answer, threads=True).serve_forever(poll_interval=None)


@hang(
    "straggler",
    roles={"engine": 2, "driver": 1},
    backend="none",
    culprits=["engine:1"],
    waiting=["engine:0", "driver"],
)
def test_core_is_a_fresh_interpreter(world) -> None:
    """The core of an engine is an interpreter of its own, which sleeps.

    Source: https://github.com/vllm-project/vllm/issues/17676
    """
    if world.role == "driver":
        connected(world.port("engine", 0)).recv(1)
        return
    if world.role_rank == 1:
        program = "import time; time.sleep(600)"
        with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as core:
            core.stdout.read()
        connected(world.port("engine", 0)).sendall(b"x")
        return
    with socket.create_server((HOST, world.port("engine", 0))) as server:
        driver, _ = server.accept()
        other, _ = server.accept()
        other.recv(1)
        driver.sendall(b"x")


@hang(
    "stuck",
    roles={"driver": 1, "engine": 1},
    backend="none",
    culprits=["driver:0"],
    also=[{"kind": "straggler", "culprits": ["driver:0"]}],
    why="the engine waits for requests of the driver",
)
def test_child_joins_before_its_queue_is_read(world) -> None:
    """The child's queue is full, and the driver waits for the child's end.

    Source: https://github.com/python/cpython/issues/73983
    """
    if world.role == "engine":
        http_server(world.port("engine"), str).serve_forever(poll_interval=None)
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=queue.put, args=(bytes(1 << 22),))
    child.start()
    child.join()
    queue.get()


@hang(
    "straggler",
    roles={"trainer": 1, "engine": 1},
    backend="none",
    culprits=["engine:0"],
    waiting=["trainer"],
)
def test_lock_between_a_handler_and_a_step(world) -> None:
    """The engine's step holds the lock that its handler needs.

    Source: https://github.com/vllm-project/vllm/issues/52907
    """
    if world.role == "trainer":
        post(world.port("engine"))
        return
    lock = threading.Lock()

    def answer(_: str) -> str:
        with lock:
            return "ok"

    lock.acquire()
    http_server(world.port("engine"), answer).handle_request()
