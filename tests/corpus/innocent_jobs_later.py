"""Jobs with children, event loops and pauses that are slow and fine, written before their rules."""

from __future__ import annotations

import asyncio
import multiprocessing
import multiprocessing.connection
import socket
import subprocess
import sys
import time
from multiprocessing.connection import Listener

import cores
import torch
import torch.distributed as dist
import zmq
import zmq.asyncio
from expectation import innocent
from programs import HOST, client, connected, http_server, post
from roles import join_group_at, join_role

SLOW_S = 4.0
PAIR = {"engine": 1, "driver": 1}


def meet(group: object = None) -> None:
    """Let all members of a group meet."""
    dist.all_reduce(torch.ones(4), group=group)


@innocent(roles={"engine": 2, "driver": 1}, backend="none")
def test_a_spawned_scheduler_is_late(world) -> None:
    """One scheduler compiles for some seconds while the other waits in a collective.

    Source: https://github.com/vllm-project/vllm/issues/32116
    """
    if world.role == "driver":
        assert post(world.port("engine")) == "done"
        return
    context = multiprocessing.get_context("spawn")
    mine, its = context.Pipe()
    core = context.Process(target=cores.schedule, args=(its, 1, SLOW_S), name="scheduler")
    core.start()
    mine.recv()
    if world.role_rank == 0:
        http_server(world.port("engine"), lambda _: mine.recv()).handle_request()
    core.join()


@innocent(roles=PAIR, backend="none")
def test_a_killed_engine_core_is_replaced(world) -> None:
    """A monitor sees the end of the first core and starts another one, which loads slowly.

    Source: https://github.com/NVIDIA-NeMo/RL/pull/3187
    """
    if world.role == "driver":
        assert post(world.port("engine")) == "ready"
        return
    context = multiprocessing.get_context("spawn")
    first = context.Process(target=cores.end, args=(1.0,))
    first.start()
    multiprocessing.connection.wait([first.sentinel])
    mine, its = context.Pipe()
    second = context.Process(target=cores.load, args=(its, SLOW_S))
    second.start()
    http_server(world.port("engine"), lambda _: mine.recv()).handle_request()
    second.join()


@innocent(roles=PAIR, backend="none")
def test_a_launcher_watches_all_its_workers(world) -> None:
    """It waits for pipes and ends at once, and goes on after the death of a worker.

    Source: https://github.com/sgl-project/sglang/pull/21626
    """
    if world.role == "driver":
        assert post(world.port("engine")) == "one has died"
        return
    context = multiprocessing.get_context("spawn")
    mine, its = context.Pipe()
    worker = context.Process(target=cores.end, args=(SLOW_S,))
    worker.start()
    found = multiprocessing.connection.wait([mine, worker.sentinel])
    assert found == [worker.sentinel]
    its.close()
    http_server(world.port("engine"), lambda _: "one has died").handle_request()


@innocent(roles={"trainer": 1, "collector": 1, "env": 2}, backend="none")
def test_one_rollout_of_a_group_is_late(world) -> None:
    """The collector gathers two rollouts in an event loop, and one takes some seconds.

    Source: https://github.com/NVIDIA-NeMo/RL/issues/3238
    """
    if world.role == "trainer":
        assert connected(world.port("collector")).recv(1) == b"x"
        return
    if world.role == "env":
        with socket.create_server((HOST, world.port("env", world.role_rank))) as server:
            connection, _ = server.accept()
            time.sleep(SLOW_S * world.role_rank)
            connection.sendall(b"x")
            connection.close()
        return
    asyncio.run(_collect(world))


async def _rollout(port: int) -> bytes:
    while True:
        try:
            reader, writer = await asyncio.open_connection(HOST, port)
        except ConnectionRefusedError:
            await asyncio.sleep(0.02)
            continue
        found = await reader.readexactly(1)
        writer.close()
        return found


async def _collect(world) -> None:
    is_over = asyncio.Event()

    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.gather(*(_rollout(world.port("env", number)) for number in range(2)))
        writer.write(b"x")
        await writer.drain()
        writer.close()
        is_over.set()

    async with await asyncio.start_server(serve, HOST, world.port("collector")):
        await is_over.wait()


@innocent(roles={"trainer": 1, "inference": 1, "orchestrator": 1}, backend="none")
def test_an_orchestrator_ends_first(world) -> None:
    """Its last request takes the weights some seconds later than it has ended.

    Source: https://github.com/PrimeIntellect-ai/prime-rl/pull/3050
    """
    if world.role == "orchestrator":
        connected(world.port("inference")).close()
        return
    group = join_group_at(world.port("trainer"), int(world.role == "inference"), 2, "weights")
    if world.role == "inference":
        with socket.create_server((HOST, world.port("inference"))) as server:
            server.accept()[0].close()
        time.sleep(SLOW_S)
    dist.broadcast(torch.ones(4), group=group, group_src=0)


@innocent(roles={"tokenizer": 1, "router": 1}, backend="none")
def test_a_broadcast_comes_late(world) -> None:
    """The tokenizer waits in its event loop for a message of zmq.

    Source: https://github.com/sgl-project/sglang/issues/39689
    """
    if world.role == "tokenizer":
        asyncio.run(_receive(world.port("tokenizer")))
        return
    time.sleep(SLOW_S)
    broadcast = zmq.Context.instance().socket(zmq.PUSH)
    broadcast.connect(f"tcp://{HOST}:{world.port('tokenizer')}")
    broadcast.send(b"paused")


async def _receive(port: int) -> None:
    broadcasts = zmq.asyncio.Context.instance().socket(zmq.PULL)
    broadcasts.bind(f"tcp://{HOST}:{port}")
    assert await broadcasts.recv() == b"paused"


@innocent(roles={"frontend": 1, "driver": 1}, backend="none")
def test_a_core_says_hello_late(world) -> None:
    """The core is a fresh interpreter that loads for some seconds before it connects.

    Source: https://github.com/vllm-project/vllm/issues/17676
    """
    if world.role == "driver":
        assert post(world.port("frontend", 0)) == "ok"
        return
    handshakes = zmq.Context.instance().socket(zmq.ROUTER)
    address = f"tcp://{HOST}:{world.port('frontend', 1)}"
    handshakes.bind(address)
    program = (
        f"import time, zmq; time.sleep({SLOW_S}); s = zmq.Context().socket(zmq.DEALER);"
        f"s.connect({address!r}); s.send(b'HELLO')"
    )
    with subprocess.Popen([sys.executable, "-c", program]):
        assert handshakes.recv_multipart()[1] == b"HELLO"
    http_server(world.port("frontend", 0), lambda _: "ok").handle_request()


@innocent(roles={"engine": 2, "driver": 1}, backend="none")
def test_engines_are_paused_for_some_seconds(world) -> None:
    """One engine waits for the other, which the driver resumes after its weights are swapped.

    Source: https://github.com/verl-project/verl/pull/7511
    """
    if world.role == "driver":
        first, second = client(world.port("engine", 0)), client(world.port("engine", 1))
        second.send("pause")
        second.recv()
        first.send("request")
        time.sleep(SLOW_S)
        second.send("resume")
        assert [first.recv(), second.recv()] == ["done", "done"]
        return
    with Listener((HOST, world.port("engine", world.role_rank))) as listener:
        driver = listener.accept()
        join_role()
        if driver.recv() == "pause":
            driver.send("paused")
            driver.recv()
        meet()
        driver.send("done")
