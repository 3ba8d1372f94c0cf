"""Jobs with slots, locks and long countdowns that end well, written before their rules."""

from __future__ import annotations

import asyncio
import multiprocessing
import subprocess
import sys
import threading
import time

import cores
import torch
import torch.distributed as dist
import zmq
from expectation import innocent
from programs import HOST, connected, http_server, post
from roles import join_role

SLOW_S = 4.0
LONG_S = 45.0
LONG_TIMEOUT_S = 90.0
TICK_S = 0.1
PAIR = {"engine": 1, "driver": 1}


def meet(group: object = None) -> None:
    """Let all members of a group meet."""
    dist.all_reduce(torch.ones(4), group=group)


@innocent(roles=PAIR, backend="none", timeout=LONG_TIMEOUT_S)
def test_an_engine_is_healthy_after_45_s(world) -> None:
    """The driver asks once a second; the engine says that it loads its weights, 45 times.

    Source: https://github.com/vllm-project/vime/pull/90
    """
    if world.role == "driver":
        while post(world.port("engine")) != "ok":
            time.sleep(1.0)
        return
    server = http_server(world.port("engine"), lambda _: "ok" if left == 0 else "loading")
    for left in reversed(range(45)):  # noqa: B007 - the server's function reads it
        server.handle_request()


@innocent(roles={"tokenizer": 1, "client": 1, "idle": 1}, backend="none", timeout=LONG_TIMEOUT_S)
def test_a_loop_counts_ticks_and_answers_after_45_s(world) -> None:
    """Each tick only adds to a number; at last the number says that the request has failed.

    Source: https://github.com/sgl-project/sglang/issues/40809
    """
    if world.role == "client":
        assert connected(world.port("tokenizer")).recv(1) == b"x"
    elif world.role == "idle":
        http_server(world.port("idle"), str).handle_request()
    else:
        asyncio.run(_count_down(world.port("tokenizer")))
        post(world.port("idle"))


async def _count_down(port: int) -> None:
    has_failed, is_over = asyncio.Event(), asyncio.Event()

    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await has_failed.wait()
        writer.write(b"x")
        await writer.drain()
        is_over.set()

    async with await asyncio.start_server(serve, HOST, port):
        ticks = 0
        while ticks * TICK_S < LONG_S:
            await asyncio.sleep(TICK_S)
            ticks += 1
        has_failed.set()
        await is_over.wait()


@innocent(roles={"frontend": 1, "driver": 1}, backend="none", timeout=LONG_TIMEOUT_S)
def test_a_frontend_gives_its_core_up_after_45_s(world) -> None:
    """It polls for the greeting of a core that sleeps, and then answers with an error.

    Source: https://github.com/vllm-project/vllm/pull/50039
    """
    if world.role == "driver":
        assert post(world.port("frontend", 0)) == "no core"
        return
    server = http_server(world.port("frontend", 0), lambda _: "no core")
    handshakes = zmq.Context.instance().socket(zmq.ROUTER)
    handshakes.bind(f"tcp://{HOST}:{world.port('frontend', 1)}")
    core = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    for _ in range(int(LONG_S)):
        assert not handshakes.poll(1000)
    core.kill()
    core.wait()
    server.handle_request()


@innocent(roles={"trainer": 1, "orchestrator": 1}, backend="none", timeout=LONG_TIMEOUT_S)
def test_an_orchestrator_acknowledges_a_pause_after_45_s(world) -> None:
    """The trainer polls for a marker, which the other one's loop writes when all has drained.

    Source: https://github.com/PrimeIntellect-ai/prime-rl/pull/2815
    """
    requested, acknowledged = (world.shared_directory / name for name in ("pause", "paused"))
    if world.role == "trainer":
        requested.touch()
        while not acknowledged.exists():
            time.sleep(0.2)
        return
    in_flight = LONG_S
    while in_flight > 0 or not requested.exists():
        time.sleep(0.5)
        in_flight -= 0.5
    acknowledged.touch()


@innocent(roles={"engine": 1, "rollout": 2, "trainer": 1}, backend="none")
def test_a_resume_waits_for_a_slot(world) -> None:
    """Two requests hold both slots for some seconds, and the resume comes after one of them.

    Source: https://github.com/verl-project/verl/issues/7990
    """
    if world.role == "rollout":
        post(world.port("engine"), "/generate")
        return
    if world.role == "trainer":
        post(world.port("engine"), "/when_busy")
        post(world.port("engine"), "/resume")
        return
    slots, is_busy, is_over = threading.Semaphore(2), threading.Barrier(3), threading.Event()

    def answer(path: str) -> str:
        if path == "/when_busy":
            is_busy.wait()
            return "busy"
        with slots:
            if path == "/generate":
                is_busy.wait()
                time.sleep(SLOW_S)
            else:
                is_over.set()
            return "ok"

    server = http_server(world.port("engine"), answer, threads=True)
    server.daemon_threads = False
    serving = threading.Thread(target=server.serve_forever)
    serving.start()
    is_over.wait()
    server.shutdown()
    serving.join()
    server.server_close()


@innocent(roles={"scheduler": 2, "driver": 1}, backend="none")
def test_a_first_stage_is_slow_after_it_has_passed_the_request_on(world) -> None:
    """The second stage waits for it in a barrier.

    Source: https://github.com/sgl-project/sglang/pull/24962
    """
    if world.role == "driver":
        assert post(world.port("scheduler")) == "ok"
        return
    join_role()

    def process(_: str) -> str:
        dist.send(torch.ones(4), dst=1)
        time.sleep(SLOW_S)
        dist.barrier()
        return "ok"

    if world.role_rank == 0:
        http_server(world.port("scheduler"), process).handle_request()
    else:
        dist.recv(torch.zeros(4), src=0)
        dist.barrier()


@innocent(roles=PAIR, backend="none")
def test_two_workers_start_one_after_the_other_under_a_file_lock(world) -> None:
    """The first holds the lock for some seconds, and then both make their group.

    Source: https://github.com/Project-HAMi/HAMi-core/issues/261
    """
    if world.role == "driver":
        assert post(world.port("engine")) == "ready"
        return
    context = multiprocessing.get_context("spawn")
    lock = str(world.shared_directory / "lock")
    workers, pipes = [], []
    for number in range(2):
        mine, its = context.Pipe()
        worker = context.Process(target=cores.start_locked, args=(number, its, lock, SLOW_S))
        worker.start()
        its.close()
        if number == 0:
            mine.recv()
        workers.append(worker)
        pipes.append(mine)
    assert [pipe.recv() for pipe in pipes] == ["ready", "ready"]
    http_server(world.port("engine"), lambda _: "ready").handle_request()
    for worker in workers:
        worker.join()


@innocent(roles={"trainer": 1, "collector": 1, "engine": 1}, backend="none")
def test_a_collector_drains_before_it_pauses(world) -> None:
    """The trainer waits for the collector, whose rollout waits for a slow engine.

    Source: https://github.com/NVIDIA-NeMo/RL/issues/2694
    """
    if world.role == "trainer":
        assert post(world.port("collector"), "/pause") == "paused"
    elif world.role == "engine":
        answer = lambda _: str(time.sleep(SLOW_S))  # noqa: E731
        http_server(world.port("engine"), answer).handle_request()
    else:
        rollout = threading.Thread(target=post, args=(world.port("engine"),))
        rollout.start()
        drain = lambda _: rollout.join() or "paused"  # noqa: E731
        http_server(world.port("collector"), drain).handle_request()
