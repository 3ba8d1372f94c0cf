"""Jobs of several programs: trainers, engines, drivers and frontends that wait for each other."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import socket
import threading
import time
from multiprocessing.connection import Listener

import torch
import torch.distributed as dist
from expectation import hang
from mishaps import FOREVER_S
from programs import HOST, client, connected, http_server, post
from roles import join_group_at, join_role

ENGINES = {"engine": 2, "driver": 1}
TRAINERS = {"trainer": 2, "engine": 2, "driver": 1}


def meet(group: object = None) -> None:
    """Let all members of a group meet."""
    dist.all_reduce(torch.ones(4), group=group)


def rest() -> None:
    """Do nothing until the world ends."""
    time.sleep(FOREVER_S * 2)


@hang(
    "straggler",
    roles=TRAINERS,
    backend="none",
    culprits=["trainer:0"],
    waiting=["engine"],
    where="time.sleep(FOREVER_S)",
)
def test_weights_that_the_first_trainer_never_sends(world) -> None:
    """Both engines wait for the weights; the driver and the other trainer have nothing to do.

    Source: https://github.com/huggingface/trl/issues/6913
    """
    join_role()
    if world.role == "driver" or (world.role == "trainer" and world.role_rank == 1):
        rest()
    number = 0 if world.role == "trainer" else 1 + world.role_rank
    group = join_group_at(world.port("trainer"), number, 3, "weights")
    if world.role == "trainer":
        time.sleep(FOREVER_S)
    dist.broadcast(torch.ones(4), group=group, group_src=0)


@hang(
    "straggler",
    roles=TRAINERS,
    backend="none",
    culprits=["engine:1"],
    waiting=["trainer:0", "engine:0", "driver"],
    where="time.sleep(FOREVER_S)",
)
def test_a_driver_asks_an_engine_that_waits_for_weights(world) -> None:
    """The driver posts, the engine's handler waits in the group, and the other engine sleeps.

    Source: https://github.com/THUDM/slime/issues/2331
    """
    if world.role == "trainer" and world.role_rank == 1:
        rest()
    if world.role == "driver":
        post(world.port("engine"), "/update_weights")
        return
    number = 0 if world.role == "trainer" else 1 + world.role_rank

    def update(_: str) -> str:
        group = join_group_at(world.port("trainer"), number, 3, "weights")
        meet(group)
        if world.role == "engine" and world.role_rank == 1:
            time.sleep(FOREVER_S)
        meet(group)
        return "ok"

    if world.role == "engine" and world.role_rank == 0:
        http_server(world.port("engine"), update).handle_request()
    else:
        update("")


@hang(
    "straggler",
    roles=ENGINES,
    backend="none",
    culprits=["engine:0"],
    waiting=["driver"],
    where="time.sleep(FOREVER_S)",
)
def test_a_request_that_is_not_accepted_yet(world) -> None:
    """The kernel has taken the connection, and the engine does something else.

    Source: https://github.com/THUDM/slime/issues/2331
    """
    if world.role == "driver":
        post(world.port("engine"))
    elif world.role_rank == 0:
        with socket.create_server((HOST, world.port("engine"))):
            time.sleep(FOREVER_S)
    else:
        rest()


@hang(
    "straggler",
    roles={"engine": 2, "frontend": 1, "client": 1},
    backend="none",
    culprits=["engine:1"],
    waiting=["engine:0", "frontend", "client"],
    where="time.sleep(FOREVER_S)",
)
def test_a_request_goes_through_a_frontend_in_asyncio(world) -> None:
    """A client asks the frontend, which asks an engine, which waits for the other engine.

    Source: https://github.com/vllm-project/vllm/issues/39366
    """
    if world.role == "client":
        connected(world.port("frontend")).recv(1)
        return
    if world.role == "frontend":
        asyncio.run(_pass_on(world.port("frontend"), world.port("engine")))
        return
    join_role()
    meet()
    if world.role_rank == 1:
        time.sleep(FOREVER_S)
    with socket.create_server((HOST, world.port("engine"))) as server:
        connection, _ = server.accept()
        meet()
        connection.sendall(b"x")


async def _pass_on(port: int, to: int) -> None:
    done = asyncio.Event()

    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            try:
                reader, _ = await asyncio.open_connection(HOST, to)
                break
            except ConnectionRefusedError:
                await asyncio.sleep(0.02)
        writer.write(await reader.readexactly(1))
        done.set()

    async with await asyncio.start_server(serve, HOST, port):
        await done.wait()


@hang(
    "mismatch",
    roles={"engine": 2, "frontend": 1},
    backend="none",
    culprits=[],
    waiting=["engine"],
    also=[{"kind": "deadlock", "culprits": []}],
    why="two sides of one rank each; the frontend waits for requests and has no part in it",
)
def test_one_engine_runs_a_dummy_step(world) -> None:
    """One engine reduces, the other is at a barrier, and a frontend waits for requests.

    Source: https://github.com/vllm-project/vllm/issues/45223
    """
    if world.role == "frontend":
        http_server(world.port("frontend"), str).serve_forever()
    join_role()
    meet()
    if world.role_rank:
        dist.barrier()
    else:
        meet()


@hang(
    "straggler",
    roles={"engine": 1, "driver": 1},
    backend="none",
    culprits=["engine:0"],
    waiting=["driver"],
    also=[{"kind": "deadlock", "culprits": []}],
    why="the engine waits for the next request, so both wait for a message of the other",
)
def test_a_reply_is_lost(world) -> None:
    """An engine drops a request and waits for the next one.

    Source: https://github.com/FujitsuPolycom/sparkring/issues/224
    """
    if world.role == "driver":
        with client(world.port("engine")) as engine:
            engine.send("step")
            engine.recv()
        return
    with Listener((HOST, world.port("engine"))) as listener, listener.accept() as driver:
        while True:
            driver.recv()


@hang(
    "straggler",
    roles={"engine": 2, "driver": 1, "frontend": 1},
    backend="none",
    culprits=["engine:1"],
    waiting=["driver"],
    where="time.sleep(FOREVER_S)",
)
def test_a_driver_waits_for_one_of_two_engines(world) -> None:
    """An engine has answered and waits for the next request; the other one sleeps.

    Source: https://github.com/NVIDIA/NeMo-RL/issues/2225
    """
    if world.role == "driver":
        both = [client(world.port("engine", number)) for number in range(2)]
        for each in both:
            each.send("step")
        for each in both:
            each.recv()
        return
    if world.role == "frontend":
        http_server(world.port("frontend"), str).serve_forever()
    with Listener((HOST, world.port("engine", world.role_rank))) as listener:
        driver = listener.accept()
        driver.recv()
        if world.role_rank == 1:
            time.sleep(FOREVER_S)
        driver.send("done")
        driver.recv()


@hang(
    "deadlock",
    roles={"trainer": 1, "engine": 1},
    backend="none",
    culprits=[],
    waiting=["trainer", "engine"],
)
def test_each_calls_the_other_from_its_handler(world) -> None:
    """The trainer asks the engine, whose handler asks the trainer, which has one thread.

    Source: https://github.com/verl-project/verl/issues/7846
    """
    mine, other = ("trainer", "engine") if world.role == "trainer" else ("engine", "trainer")
    server = http_server(world.port(mine), lambda _: post(world.port(other)))
    if world.role == "trainer":
        post(world.port("engine"))
    server.handle_request()


@hang(
    "straggler",
    roles={"trainer": 1, "engine": 1, "driver": 1},
    backend="none",
    culprits=["driver:0"],
    waiting=["trainer", "engine"],
    where="time.sleep(FOREVER_S)",
)
def test_a_chain_of_two_sockets(world) -> None:
    """The engine waits for the trainer, and the trainer for the driver, which sleeps.

    Source: https://github.com/PrimeIntellect-ai/prime-rl/issues/2337
    """
    if world.role == "driver":
        with socket.create_server((HOST, world.port("driver"))) as server:
            connection, _ = server.accept()
            time.sleep(FOREVER_S)
            connection.close()
    elif world.role == "trainer":
        with socket.create_server((HOST, world.port("trainer"))) as server:
            engine, _ = server.accept()
            connected(world.port("driver")).recv(1)
            engine.sendall(b"x")
    else:
        connected(world.port("trainer")).recv(1)


@hang(
    "straggler",
    roles={"trainer": 1, "engine": 1, "idle": 1},
    backend="none",
    culprits=["engine:0"],
    waiting=["trainer"],
    where="time.sleep(FOREVER_S)",
)
def test_back_pressure(world) -> None:
    """The trainer sends more than the sockets hold, and the engine does not read.

    Source: field report class: back-pressure of a weight transfer
    """
    if world.role == "idle":
        rest()
    if world.role == "trainer":
        connected(world.port("engine")).sendall(bytes(1 << 26))
        return
    with socket.create_server((HOST, world.port("engine"))) as server:
        connection, _ = server.accept()
        connection.recv(1)
        time.sleep(FOREVER_S)


@hang(
    "stuck",
    roles={"engine": 1, "driver": 1},
    backend="none",
    culprits=["engine:0"],
    also=[{"kind": "straggler", "culprits": ["engine:0"]}],
    why="the driver has ended, and waits only at the harness's gate",
)
def test_last_scheduler_is_killed_before_it_is_ready(world) -> None:
    """The launcher holds the writing end of its pipe by itself, so the pipe never ends.

    Source: https://github.com/sgl-project/sglang/pull/34233
    """
    if world.role == "driver":
        return
    context = multiprocessing.get_context("fork")
    reader, writer = context.Pipe(duplex=False)
    child = context.Process(target=_killed, args=(writer,))
    child.start()
    reader.recv()


def _killed(_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@hang(
    "straggler",
    roles={"engine": 2, "driver": 1},
    backend="none",
    culprits=["engine:1"],
    waiting=["engine:0", "driver"],
)
def test_engine_cores_are_children(world) -> None:
    """The cores of two engines have a group; one core sleeps, and a driver waits for the other.

    Source: https://github.com/vllm-project/vllm/issues/43423
    """
    if world.role == "driver":
        post(world.port("engine"))
        return
    context = multiprocessing.get_context("fork")
    mine, its = context.Pipe()
    core = context.Process(target=_core, args=(its, world.role_rank), name="EngineCore")
    core.start()
    its.close()
    if world.role_rank == 0:
        http_server(world.port("engine"), lambda _: str(mine.recv())).handle_request()
    else:
        mine.recv()


def _core(parent: object, number: int) -> None:
    join_role()
    meet()
    if number == 1:
        time.sleep(FOREVER_S)
    meet()
    parent.send("done")


@hang(
    "stuck",
    roles={"engine": 1, "driver": 1},
    backend="none",
    culprits=["engine:0"],
    also=[{"kind": "straggler", "culprits": ["engine:0"]}],
    why="the driver is in a connection that the engine's loop serves",
    where="await arrived.wait()",
)
def test_output_task_has_died(world) -> None:
    """A task that nobody awaits raised, and the handler waits for its event.

    Source: https://github.com/vllm-project/vllm/issues/38009
    """
    if world.role == "driver":
        connected(world.port("engine")).recv(1)
        return
    asyncio.run(_serve_without_output(world.port("engine")))


async def _serve_without_output(port: int) -> None:
    arrived, waiting = asyncio.Event(), asyncio.Event()

    async def handle_outputs() -> None:
        await waiting.wait()
        message = "no such request"
        raise IndexError(message)

    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        waiting.set()
        await arrived.wait()
        writer.write(b"x")

    output = asyncio.create_task(handle_outputs())
    async with await asyncio.start_server(serve, HOST, port) as server:
        await server.serve_forever()
    await output


@hang(
    "deadlock",
    roles={"trainer": 1, "engine": 2},
    backend="none",
    culprits=[],
    waiting=["trainer", "engine"],
)
def test_weights_and_a_barrier_in_opposite_order(world) -> None:
    """The trainer asks engine 1 first, which waits for engine 0, which waits for the weights.

    Source: https://github.com/NVIDIA/NeMo-RL/issues/3929
    """
    if world.role == "trainer":
        group = join_group_at(world.port("trainer"), 0, 2, "weights")
        post(world.port("engine", 1))
        dist.broadcast(torch.ones(4), group=group, group_src=0)
        return
    join_role()
    meet()
    if world.role_rank == 0:
        group = join_group_at(world.port("trainer"), 1, 2, "weights")
        dist.broadcast(torch.ones(4), group=group, group_src=0)
        dist.barrier()
    else:
        http_server(world.port("engine", 1), lambda _: str(dist.barrier())).handle_request()


@hang(
    "straggler",
    roles={"engine": 1, "driver": 1, "idle": 1},
    backend="none",
    culprits=["engine:0"],
    waiting=["driver"],
    where="time.sleep(FOREVER_S)",
)
def test_a_thread_of_the_driver_waits(world) -> None:
    """The driver's main thread waits for a future of its thread, which waits for the engine.

    Source: https://github.com/NovaSky-AI/SkyRL/issues/1960
    """
    if world.role == "idle":
        http_server(world.port("idle"), str).serve_forever()
    if world.role == "driver":
        thread = threading.Thread(target=post, args=(world.port("engine"),))
        thread.start()
        thread.join()
        return
    http_server(world.port("engine"), lambda _: time.sleep(FOREVER_S)).handle_request()


@hang(
    "finished",
    roles={"trainer": 2, "engine": 1},
    backend="none",
    culprits=["trainer:1"],
    waiting=["trainer:0", "engine:0"],
)
def test_a_trainer_skips_its_last_step(world) -> None:
    """The other trainer waits for it, and an engine waits for the other trainer.

    Source: https://github.com/verl-project/verl/issues/6967
    """
    if world.role == "engine":
        connected(world.port("trainer")).recv(1)
        return
    join_role()
    meet()
    if world.role_rank == 1:
        return
    with socket.create_server((HOST, world.port("trainer"))) as server:
        engine, _ = server.accept()
        meet()
        engine.sendall(b"x")


@hang(
    "straggler",
    roles={"trainer": 1, "engine": 1, "driver": 1},
    backend="none",
    culprits=["trainer:0"],
    waiting=["engine"],
    where="time.sleep(FOREVER_S)",
)
def test_engine_asks_by_a_unix_socket(world) -> None:
    """The socket is in the world's own directory.

    Source: field report class: ipc:// between a frontend and its engines
    """
    path = str(world.shared_directory / "engine.sock")
    if world.role == "driver":
        world.barrier("listens")
        http_server(world.port("driver"), str).serve_forever()
    if world.role == "trainer":
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(path)
            server.listen()
            world.barrier("listens")
            connection, _ = server.accept()
            time.sleep(FOREVER_S)
            connection.close()
        return
    with socket.socket(socket.AF_UNIX) as trainer:
        world.barrier("listens")
        trainer.connect(path)
        trainer.recv(1)
