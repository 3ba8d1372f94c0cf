"""Jobs of public threads with children, event loops and pauses, written before their rules."""

from __future__ import annotations

import asyncio
import multiprocessing
import queue
import socket
import subprocess
import sys
import threading
import time
from multiprocessing.connection import Listener

import cores
import torch
import torch.distributed as dist
import zmq
import zmq.asyncio
from expectation import hang
from mishaps import FOREVER_S
from programs import HOST, client, connected, http_server, post
from roles import join_group_at, join_role


def meet(group: object = None) -> None:
    """Let all members of a group meet."""
    dist.all_reduce(torch.ones(4), group=group)


@hang(
    "straggler",
    roles={"engine": 1, "driver": 1},
    backend="none",
    culprits=["engine:0"],
    waiting=["driver"],
    where="mine.recv()",
)
def test_an_answer_of_a_worker_is_lost(world) -> None:
    """The core waits for the answer to a step, and its worker for the next step.

    Source: https://github.com/vllm-project/vllm/issues/50835
    """
    if world.role == "driver":
        post(world.port("engine"))
        return
    context = multiprocessing.get_context("spawn")
    mine, its = context.Pipe()
    context.Process(target=cores.work, args=(its,), name="Worker_TP0", daemon=True).start()
    its.close()

    def step(_: str) -> str:
        for number in range(2):
            mine.send(number)
            mine.recv()
        return "ok"

    http_server(world.port("engine"), step).handle_request()


@hang(
    "straggler",
    roles={"tokenizer": 1, "router": 1, "driver": 1},
    backend="none",
    culprits=["tokenizer:0"],
    also=[{"kind": "stuck", "culprits": ["tokenizer:0"]}],
    why="the driver is in a connection that the tokenizer's loop serves",
    where="await is_paused",
)
def test_a_cold_tokenizer_has_no_loop_that_receives(world) -> None:
    """The router has sent its broadcast; nothing in the tokenizer reads it.

    Source: https://github.com/sgl-project/sglang/issues/39689
    """
    if world.role == "driver":
        connected(world.port("tokenizer", 0)).recv(1)
        return
    if world.role == "router":
        requests = zmq.Context.instance().socket(zmq.PULL)
        requests.bind(f"tcp://{HOST}:{world.port('router')}")
        broadcast = zmq.Context.instance().socket(zmq.PUSH)
        broadcast.connect(f"tcp://{HOST}:{world.port('tokenizer', 1)}")
        while True:
            broadcast.send(requests.recv())
    asyncio.run(_tokenize(world))


async def _tokenize(world) -> None:
    context = zmq.asyncio.Context.instance()
    broadcasts = context.socket(zmq.PULL)
    broadcasts.bind(f"tcp://{HOST}:{world.port('tokenizer', 1)}")
    requests = context.socket(zmq.PUSH)
    requests.connect(f"tcp://{HOST}:{world.port('router')}")
    is_paused = asyncio.get_running_loop().create_future()

    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await requests.send(b"pause")
        await is_paused
        writer.write(b"x")

    async with await asyncio.start_server(serve, HOST, world.port("tokenizer", 0)) as server:
        await server.serve_forever()


@hang(
    "straggler",
    roles={"engine": 2, "detokenizer": 1, "driver": 1},
    backend="none",
    culprits=["engine:1"],
    waiting=["engine:0", "driver"],
)
def test_one_spawned_scheduler_never_dispatches(world) -> None:
    """The schedulers of two engines are spawned; the detokenizer is idle, and looks guilty.

    Source: https://github.com/sgl-project/sglang/issues/26482
    """
    if world.role == "driver":
        post(world.port("engine"))
        return
    if world.role == "detokenizer":
        tokens = zmq.Context.instance().socket(zmq.PULL)
        tokens.bind(f"tcp://{HOST}:{world.port('detokenizer')}")
        tokens.recv()
        return
    context = multiprocessing.get_context("spawn")
    mine, its = context.Pipe()
    name = f"scheduler_TP{world.role_rank}"
    core = context.Process(target=cores.schedule, args=(its, 1, FOREVER_S), name=name)
    core.start()
    its.close()
    mine.recv()
    if world.role_rank == 0:
        http_server(world.port("engine"), lambda _: mine.recv()).handle_request()
    core.join()


@hang(
    "straggler",
    roles={"engine": 2, "driver": 1},
    backend="none",
    culprits=["engine:1"],
    waiting=["engine:0", "driver"],
    also=[{"kind": "deadlock", "culprits": []}],
    why="the paused engine waits for what the driver would send next",
)
def test_one_engine_is_paused_while_the_other_steps(world) -> None:
    """The driver waits for engine 0, which needs engine 1, which waits for the driver.

    Source: https://github.com/vllm-project/vllm/pull/38761
    """
    if world.role == "driver":
        first, second = client(world.port("engine", 0)), client(world.port("engine", 1))
        second.send("pause")
        second.recv()
        first.send("request")
        first.recv()
        second.send("resume")
        return
    with Listener((HOST, world.port("engine", world.role_rank))) as listener:
        driver = listener.accept()
        join_role()
        while True:
            if driver.recv() == "pause":
                driver.send("paused")
                driver.recv()
            meet()
            driver.send("done")


@hang(
    "straggler",
    roles={"trainer": 1, "inference": 1, "orchestrator": 1},
    backend="none",
    culprits=["inference:0"],
    waiting=["trainer"],
    also=[{"kind": "finished", "culprits": ["orchestrator:0"]}],
    why="who would have asked the server is known to the program only",
)
def test_an_orchestrator_ends_before_the_last_broadcast(world) -> None:
    """It has asked for all its batches; nobody tells the server to receive the last weights.

    Source: https://github.com/PrimeIntellect-ai/prime-rl/pull/3050
    """
    if world.role == "orchestrator":
        post(world.port("inference"), "/generate")
        return
    group = join_group_at(world.port("trainer"), int(world.role == "inference"), 2, "weights")
    if world.role == "trainer":
        dist.broadcast(torch.ones(4), group=group, group_src=0)
        return

    def answer(path: str) -> str:
        if path == "/update":
            dist.broadcast(torch.ones(4), group=group, group_src=0)
        return "ok"

    http_server(world.port("inference"), answer).serve_forever(poll_interval=None)


@hang(
    "straggler",
    roles={"trainer": 2, "collector": 1},
    backend="none",
    culprits=["collector:0"],
    waiting=["trainer"],
    where="batches.get()",
)
def test_a_collector_whose_thread_has_died(world) -> None:
    """The trainer waits for a batch of a queue that nobody fills any more.

    Source: https://github.com/NVIDIA-NeMo/RL/issues/3488
    """
    if world.role == "trainer":
        join_role()
        if world.role_rank == 0:
            post(world.port("collector"))
        meet()
        return
    batches: queue.Queue[str] = queue.Queue()
    threading.excepthook = lambda _: None

    def collect() -> None:
        message = "engines are gone"
        raise RuntimeError(message)

    threading.Thread(target=collect).start()
    http_server(world.port("collector"), lambda _: batches.get()).handle_request()


@hang(
    "straggler",
    roles={"trainer": 1, "collector": 1, "env": 2},
    backend="none",
    culprits=["env:1"],
    waiting=["trainer", "collector"],
    where="time.sleep(FOREVER_S)",
)
def test_one_rollout_of_a_group_is_stuck(world) -> None:
    """The collector gathers two rollouts in an event loop, and one environment sleeps.

    Source: https://github.com/NVIDIA-NeMo/RL/issues/3238
    """
    if world.role == "trainer":
        connected(world.port("collector")).recv(1)
        return
    if world.role == "env":
        with socket.create_server((HOST, world.port("env", world.role_rank))) as server:
            connection, _ = server.accept()
            if world.role_rank == 1:
                time.sleep(FOREVER_S)
            connection.sendall(b"x")
        return
    asyncio.run(_collect(world))


async def _rollout(port: int) -> bytes:
    while True:
        try:
            reader, _ = await asyncio.open_connection(HOST, port)
        except ConnectionRefusedError:
            await asyncio.sleep(0.02)
            continue
        return await reader.readexactly(1)


async def _collect(world) -> None:
    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.gather(*(_rollout(world.port("env", number)) for number in range(2)))
        writer.write(b"x")

    async with await asyncio.start_server(serve, HOST, world.port("collector")) as server:
        await server.serve_forever()


@hang(
    "straggler",
    roles={"frontend": 1, "driver": 1},
    backend="none",
    culprits=["frontend:0"],
    waiting=["driver"],
    also=[{"kind": "stuck", "culprits": ["frontend:0"]}],
    why="the driver's connection is not accepted yet",
    where="handshakes.recv_multipart()",
)
def test_a_core_never_says_hello(world) -> None:
    """The frontend waits for the greeting of its core, a fresh interpreter that sleeps.

    Source: https://github.com/vllm-project/vllm/issues/44732
    """
    if world.role == "driver":
        connected(world.port("frontend", 0)).recv(1)
        return
    with socket.create_server((HOST, world.port("frontend", 0))):
        handshakes = zmq.Context.instance().socket(zmq.ROUTER)
        handshakes.bind(f"tcp://{HOST}:{world.port('frontend', 1)}")
        with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]):
            handshakes.recv_multipart()


@hang(
    "mismatch",
    roles={"trainer": 2, "engine": 1},
    backend="none",
    culprits=[],
)
def test_one_trainer_walks_the_parameters_once_more(world) -> None:
    """Trainer 0 gathers once more for its metadata; the engine waits for its weights.

    Source: https://github.com/huggingface/trl/pull/6765
    """
    number = 0 if world.role == "trainer" else 1
    if world.role == "engine" or world.role_rank == 0:
        weights = join_group_at(world.port("trainer"), number, 2, "weights")
    if world.role == "trainer":
        join_role()
        meet()
        if world.role_rank == 0:
            meet()
        dist.barrier()
    if world.role == "engine" or world.role_rank == 0:
        dist.broadcast(torch.ones(4), group=weights, group_src=0)


@hang(
    "stuck",
    roles={"engine": 1, "driver": 1},
    backend="none",
    culprits=["engine:0"],
    also=[{"kind": "straggler", "culprits": ["engine:0"]}],
    why="the driver has ended, and waits only at the harness's gate",
    where="first.recv()",
)
def test_second_of_two_spawned_workers_is_killed(world) -> None:
    """The launcher reads the first worker's pipe, which waits for the killed one.

    Source: https://github.com/sgl-project/sglang/pull/20287
    """
    if world.role == "driver":
        return
    context = multiprocessing.get_context("spawn")
    pipes = [context.Pipe() for _ in range(2)]
    for number, (_, its) in enumerate(pipes):
        name = f"Worker_TP{number}"
        context.Process(target=cores.start, args=(number, its), name=name, daemon=True).start()
    first = pipes[0][0]
    first.recv()
