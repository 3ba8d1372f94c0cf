"""Jobs of public threads with slots, pipelines and ticks, written before their rules."""

from __future__ import annotations

import asyncio
import multiprocessing
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

TICK_S = 0.1
TWO_IMPORTS_S = 60.0
"""Two new interpreters that import torch take long on a loaded machine."""


def meet(group: object = None) -> None:
    """Let all members of a group meet."""
    dist.all_reduce(torch.ones(4), group=group)


@hang(
    "straggler",
    roles={"engine": 1, "rollout": 2, "trainer": 1},
    backend="none",
    culprits=["engine:0"],
    waiting=["rollout", "trainer"],
)
def test_requests_hold_all_slots_that_a_resume_needs(world) -> None:
    """Two requests wait in the engine until it is resumed; the resume waits for a slot.

    Source: https://github.com/verl-project/verl/issues/7990
    """
    if world.role == "rollout":
        post(world.port("engine"), "/generate")
        return
    if world.role == "trainer":
        post(world.port("engine"), "/when_busy")
        post(world.port("engine"), "/resume")
        return
    slots, is_busy, is_resumed = threading.Semaphore(2), threading.Barrier(3), threading.Event()

    def answer(path: str) -> str:
        if path == "/when_busy":
            is_busy.wait()
            return "busy"
        with slots:
            if path == "/generate":
                is_busy.wait()
                is_resumed.wait()
            else:
                is_resumed.set()
            return "ok"

    http_server(world.port("engine"), answer, threads=True).serve_forever(poll_interval=None)


@hang(
    "deadlock",
    roles={"scheduler": 2, "driver": 1},
    backend="none",
    culprits=[],
)
def test_first_stage_meets_before_it_passes_the_request_on(world) -> None:
    """The first stage is in a barrier, and the second one waits for the request.

    Source: https://github.com/sgl-project/sglang/pull/24962
    """
    if world.role == "driver":
        post(world.port("scheduler"))
        return
    join_role()
    meet()

    def process(_: str) -> str:
        dist.barrier()
        dist.send(torch.ones(4), dst=1)
        return "ok"

    if world.role_rank == 0:
        http_server(world.port("scheduler"), process).handle_request()
    else:
        dist.recv(torch.zeros(4), src=0)
        dist.barrier()


@hang(
    "deadlock",
    roles={"trainer": 1, "collector": 1, "engine": 1},
    backend="none",
    culprits=[],
    waiting=["trainer", "collector", "engine"],
)
def test_trainer_and_collector_wait_for_each_other_at_a_sync(world) -> None:
    """The collector drains a rollout before it pauses, and the rollout needs the trainer.

    Source: https://github.com/NVIDIA-NeMo/RL/issues/2717
    """
    if world.role == "trainer":
        with http_server(world.port("trainer"), str):
            post(world.port("collector"), "/pause")
    elif world.role == "engine":
        http_server(world.port("engine"), lambda _: post(world.port("trainer"))).handle_request()
    else:
        rollout = threading.Thread(target=post, args=(world.port("engine"),))
        rollout.start()
        drain = lambda _: str(rollout.join())  # noqa: E731
        server = http_server(world.port("collector"), drain, threads=True)
        server.serve_forever(poll_interval=None)


@hang(
    "straggler",
    roles={"engine": 2, "trainer": 1},
    backend="none",
    culprits=["engine:0"],
    waiting=["trainer"],
    where="is_running.wait()",
)
def test_one_engine_stays_paused_after_a_pause_that_failed(world) -> None:
    """The other engine refuses to pause; the trainer goes on and resumes nobody.

    Source: https://github.com/NVIDIA-NeMo/RL/pull/3612
    """
    if world.role == "trainer":
        for number in range(2):
            post(world.port("engine", number), "/pause")
        post(world.port("engine", 0), "/generate")
        return
    is_running = threading.Event()
    is_running.set()

    def answer(path: str) -> str:
        if path == "/pause":
            if world.role_rank == 1:
                return "error"
            is_running.clear()
        else:
            is_running.wait()
        return "ok"

    port = world.port("engine", world.role_rank)
    http_server(port, answer, threads=True).serve_forever(poll_interval=None)


@hang(
    "straggler",
    roles={"prefill": 2, "decode": 2, "driver": 1},
    backend="none",
    culprits=["prefill:1"],
    waiting=["decode", "driver"],
    where="serve_forever",
)
def test_one_prefill_rank_does_not_send_its_cache(world) -> None:
    """It waits for its next request, as its peer does; a decode rank waits for its blocks.

    Source: https://github.com/vllm-project/vllm/issues/11247
    """
    if world.role == "driver":
        post(world.port("decode"))
        return
    join_role()
    number = 0 if world.role == "prefill" else 1
    blocks = join_group_at(world.port("prefill", world.role_rank), number, 2, "blocks")
    meet(blocks)

    def transfer(_: str) -> str:
        dist.broadcast(torch.ones(4), group=blocks, group_src=0)
        meet()
        return "ok"

    if world.role == "prefill":
        if world.role_rank == 0:
            dist.broadcast(torch.ones(4), group=blocks, group_src=0)
        meet()
        port = world.port("prefill", 2 + world.role_rank)
        http_server(port, str).serve_forever(poll_interval=None)
    elif world.role_rank == 0:
        http_server(world.port("decode"), transfer).handle_request()
    else:
        transfer("")


@hang(
    "straggler",
    roles={"engine": 1, "driver": 1},
    backend="none",
    timeout=TWO_IMPORTS_S,
    culprits=["engine:0"],
    waiting=["driver"],
    also=[{"kind": "deadlock", "culprits": []}],
    why="the cycle is that of two children of the engine",
)
def test_two_workers_of_an_engine_start_under_one_file_lock(world) -> None:
    """The first holds the lock and waits for the second, which waits for the lock.

    Source: https://github.com/Project-HAMi/HAMi-core/issues/261
    """
    if world.role == "driver":
        post(world.port("engine"))
        return
    context = multiprocessing.get_context("spawn")
    lock = str(world.shared_directory / "lock")
    server, pipes = http_server(world.port("engine"), str), []
    for number in range(2):
        mine, its = context.Pipe()
        worker = context.Process(
            target=cores.start_locked, args=(number, its, lock, 0.0), name=f"Worker_TP{number}"
        )
        worker.start()
        its.close()
        if number == 0:
            mine.recv()
        pipes.append(mine)
    for pipe in pipes:
        pipe.recv()
    server.handle_request()


@hang(
    "straggler",
    roles={"tokenizer": 1, "scheduler": 1, "detokenizer": 1, "client": 1},
    backend="none",
    culprits=["detokenizer:0"],
    where="time.sleep(FOREVER_S)",
    also=[
        {"kind": "stuck", "culprits": ["detokenizer:0"]},
        {"kind": "unknown", "culprits": []},
    ],
    why="who is to fill the socket that the tokenizer has bound is known to the program only",
)
def test_a_detokenizer_hangs_in_a_ring_of_messages(world) -> None:
    """Tokens go round in three sockets; the scheduler is idle, and the detokenizer sleeps.

    Source: https://github.com/sgl-project/sglang/issues/40809
    """
    if world.role == "client":
        connected(world.port("tokenizer", 0)).recv(1)
    elif world.role == "tokenizer":
        asyncio.run(_tokenize(world))
    elif world.role == "scheduler":
        requests = _bound(zmq.PULL, world.port("scheduler"))
        tokens = _joined(zmq.PUSH, world.port("detokenizer"))
        while True:
            tokens.send(requests.recv())
    else:
        tokens = _bound(zmq.PULL, world.port("detokenizer"))
        texts = _joined(zmq.PUSH, world.port("tokenizer", 1))
        token = tokens.recv()
        time.sleep(FOREVER_S)
        texts.send(token)


def _bound(kind: int, port: int) -> zmq.Socket:
    found = zmq.Context.instance().socket(kind)
    found.bind(f"tcp://{HOST}:{port}")
    return found


def _joined(kind: int, port: int) -> zmq.Socket:
    found = zmq.Context.instance().socket(kind)
    found.connect(f"tcp://{HOST}:{port}")
    return found


async def _tokenize(world) -> None:
    context = zmq.asyncio.Context.instance()
    texts, requests = context.socket(zmq.PULL), context.socket(zmq.PUSH)
    texts.bind(f"tcp://{HOST}:{world.port('tokenizer', 1)}")
    requests.connect(f"tcp://{HOST}:{world.port('scheduler')}")

    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await requests.send(b"prompt")
        writer.write(await texts.recv())

    async with await asyncio.start_server(serve, HOST, world.port("tokenizer", 0)) as server:
        await server.serve_forever()


@hang(
    "deadlock",
    roles={"engine": 1, "driver": 1},
    backend="none",
    culprits=[],
    also=[{"kind": "straggler", "culprits": ["engine:0"]}],
    why="both locks are the engine's own",
)
def test_heartbeat_and_main_thread_hold_each_others_locks(world) -> None:
    """The main thread holds one lock and wants the other one, and the heartbeat does the same.

    Source: https://github.com/ray-project/ray/issues/17700
    """
    if world.role == "driver":
        engine = client(world.port("engine"))
        engine.send("task")
        engine.recv()
        return
    interpreter, core, both = threading.Lock(), threading.Lock(), threading.Barrier(2)

    def beat() -> None:
        with core:
            both.wait()
            with interpreter:
                pass

    with Listener((HOST, world.port("engine"))) as listener:
        driver = listener.accept()
        driver.recv()
        threading.Thread(target=beat, daemon=True).start()
        with interpreter:
            both.wait()
            with core:
                driver.send("done")


@hang(
    "straggler",
    roles={"engine": 1, "driver": 1},
    backend="none",
    timeout=TWO_IMPORTS_S,
    culprits=["engine:0"],
    waiting=["driver"],
    also=[{"kind": "deadlock", "culprits": []}],
    why="the cycle is that of two children of the engine",
)
def test_two_schedulers_of_an_engine_part(world) -> None:
    """One gathers logits in one group; the other waits for requests in a second group.

    Source: https://github.com/sgl-project/sglang/issues/33289
    """
    if world.role == "driver":
        post(world.port("engine"))
        return
    context = multiprocessing.get_context("spawn")
    pipes = []
    for number in range(2):
        mine, its = context.Pipe()
        name = f"scheduler_TP{number}"
        context.Process(target=cores.part, args=(number, its), name=name).start()
        its.close()
        pipes.append(mine)

    def answer(_: str) -> str:
        return str([pipe.recv() for pipe in pipes])

    answer("")
    http_server(world.port("engine"), answer).handle_request()


@hang(
    "livelock",
    roles={"frontend": 1, "driver": 1},
    backend="none",
    culprits=["frontend:0"],
    waiting=["driver"],
    by=("deadline",),
    also=[{"kind": "straggler", "culprits": ["frontend:0"]}],
    why="it waits a second at a time",
)
def test_a_frontend_polls_for_a_core_that_sleeps(world) -> None:
    """It polls its socket again and again, without an end; the core is a fresh interpreter.

    Source: https://github.com/vllm-project/vllm/pull/50039
    """
    if world.role == "driver":
        post(world.port("frontend", 0))
        return
    server = http_server(world.port("frontend", 0), str)
    handshakes = _bound(zmq.ROUTER, world.port("frontend", 1))
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]):
        while not handshakes.poll(1000):
            pass
    server.handle_request()


@hang(
    "straggler",
    roles={"trainer": 1, "engine": 1},
    backend="none",
    culprits=["engine:0"],
    waiting=["trainer"],
    by=("deadline",),
    also=[{"kind": "livelock", "culprits": ["engine:0"]}],
    why="its loop looks ten times a second whether it is to end",
)
def test_an_engine_that_refused_an_update_ticks(world) -> None:
    """It has answered with an error, which the trainer ignores, and its loop looks and looks.

    Source: https://github.com/huggingface/trl/issues/6796
    """
    weights = join_group_at(world.port("trainer"), int(world.role == "engine"), 2, "weights")
    if world.role == "trainer":
        post(world.port("engine"), "/update")
        dist.broadcast(torch.ones(4), group=weights, group_src=0)
        return
    asyncio.run(_refuse(world.port("engine")))


async def _refuse(port: int) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()

    async with await asyncio.start_server(serve, HOST, port):
        while True:  # noqa: ASYNC110 - as servers look whether they are to end
            await asyncio.sleep(TICK_S)
