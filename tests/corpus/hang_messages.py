"""Jobs of several programs that ask each other by zmq."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist
import zmq
from expectation import hang
from mishaps import FOREVER_S
from programs import HOST
from roles import join_role


def socket(kind: int, port: int, *, binds: bool) -> zmq.Socket:
    """Return a socket that is bound to a port, or connected to it."""
    found = zmq.Context.instance().socket(kind)
    (found.bind if binds else found.connect)(f"tcp://{HOST}:{port}")
    return found


@hang(
    "straggler",
    roles={"engine": 2, "frontend": 1},
    backend="none",
    culprits=["engine:1"],
    waiting=["engine:0"],
    where="time.sleep(FOREVER_S)",
)
def test_engines_behind_an_idle_frontend(world) -> None:
    """Both have greeted the frontend, which waits for messages; one engine sleeps.

    Source: https://github.com/vllm-project/vllm/issues/45223
    """
    if world.role == "frontend":
        router = socket(zmq.ROUTER, world.port("frontend"), binds=True)
        while True:
            router.recv_multipart()
    core = socket(zmq.DEALER, world.port("frontend"), binds=False)
    core.send(b"READY")
    join_role()
    dist.all_reduce(torch.ones(1))
    if world.role_rank == 1:
        time.sleep(FOREVER_S)
    dist.all_reduce(torch.ones(1))


@hang(
    "straggler",
    roles={"engine": 1, "driver": 1, "idle": 1},
    backend="none",
    culprits=["engine:0"],
    waiting=["driver"],
    where="time.sleep(FOREVER_S)",
)
def test_request_of_a_driver(world) -> None:
    """The engine has taken the request and sleeps; a third role waits for requests.

    Source: https://github.com/sgl-project/sglang/issues/22779
    """
    if world.role == "driver":
        engine = socket(zmq.REQ, world.port("engine"), binds=False)
        engine.send(b"step")
        engine.recv()
    elif world.role == "idle":
        socket(zmq.REP, world.port("idle"), binds=True).recv()
    else:
        driver = socket(zmq.REP, world.port("engine"), binds=True)
        driver.recv()
        time.sleep(FOREVER_S)


@hang(
    "straggler",
    roles={"engine": 2, "driver": 1},
    backend="none",
    culprits=["engine:0"],
    waiting=["driver"],
)
def test_a_reply_is_lost(world) -> None:
    """An engine drops a request and waits for the next one; the other one has answered.

    Source: https://github.com/FujitsuPolycom/sparkring/issues/224
    """
    if world.role == "driver":
        both = [socket(zmq.REQ, world.port("engine", n), binds=False) for n in (1, 0)]
        for each in both:
            each.send(b"step")
        for each in both:
            each.recv()
        return
    router = socket(zmq.ROUTER, world.port("engine", world.role_rank), binds=True)
    while True:
        message = router.recv_multipart()
        if world.role_rank == 1:
            router.send_multipart(message)


@hang(
    "straggler",
    roles={"trainer": 1, "engine": 1, "driver": 1},
    backend="none",
    culprits=["trainer:0"],
    waiting=["engine", "driver"],
    where="time.sleep(FOREVER_S)",
)
def test_a_chain_of_requests(world) -> None:
    """The driver asks the engine, which asks the trainer with a socket of another type.

    Source: https://github.com/verl-project/verl/issues/7382
    """
    if world.role == "driver":
        engine = socket(zmq.REQ, world.port("engine"), binds=False)
        engine.send(b"generate")
        engine.recv()
    elif world.role == "engine":
        driver = socket(zmq.REP, world.port("engine"), binds=True)
        driver.recv()
        trainer = socket(zmq.DEALER, world.port("trainer"), binds=False)
        trainer.send(b"weights")
        trainer.recv()
    else:
        engine = socket(zmq.ROUTER, world.port("trainer"), binds=True)
        engine.recv_multipart()
        time.sleep(FOREVER_S)


@hang(
    "straggler",
    roles={"engine": 1, "worker": 2, "driver": 1},
    backend="none",
    culprits=["driver:0"],
    also=[{"kind": "stuck", "culprits": ["driver:0"]}, {"kind": "unknown", "culprits": []}],
    why="nobody is known to wait for the driver; the workers wait for work of an idle engine",
)
def test_workers_that_wait_for_work(world) -> None:
    """They have greeted the engine, which waits for requests; the driver sleeps.

    Source: field report class: workers pull their work from a controller
    """
    if world.role == "driver":
        time.sleep(FOREVER_S)
    elif world.role == "engine":
        router = socket(zmq.ROUTER, world.port("engine"), binds=True)
        while True:
            router.recv_multipart()
    else:
        engine = socket(zmq.DEALER, world.port("engine"), binds=False)
        engine.send(b"READY")
        engine.recv()
