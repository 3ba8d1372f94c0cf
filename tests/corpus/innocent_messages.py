"""Jobs of several programs that ask each other by zmq, and are slow."""

from __future__ import annotations

import time

import zmq
from expectation import innocent
from hang_messages import socket

SLOW_S = 4.0


@innocent(roles={"engine": 1, "driver": 1}, backend="none")
def test_an_engine_answers_late(world) -> None:
    """The driver waits for some seconds.

    Source: field report class: a long prompt
    """
    if world.role == "driver":
        engine = socket(zmq.REQ, world.port("engine"), binds=False)
        engine.send(b"step")
        assert engine.recv() == b"done"
        return
    driver = socket(zmq.REP, world.port("engine"), binds=True)
    driver.recv()
    time.sleep(SLOW_S)
    driver.send(b"done")
    world.sync_point("sent")
    time.sleep(0.2)


@innocent(roles={"engine": 1, "driver": 1}, backend="none")
def test_a_server_is_asked_late(world) -> None:
    """The engine waits for a message for some seconds, with a timeout each time.

    Source: field report class: a loop with a poll
    """
    if world.role == "driver":
        time.sleep(SLOW_S)
        socket(zmq.PUSH, world.port("engine"), binds=False).send(b"step")
        time.sleep(0.2)
        return
    pulled = socket(zmq.PULL, world.port("engine"), binds=True)
    while not pulled.poll(1000):
        pass
    assert pulled.recv() == b"step"


@innocent(roles={"engine": 2, "driver": 1}, backend="none")
def test_a_poller_of_two(world) -> None:
    """The driver waits for two engines at once, and one of them is slow.

    Source: field report class: a frontend of two engines
    """
    if world.role == "driver":
        poller, missing = zmq.Poller(), set()
        for number in range(2):
            engine = socket(zmq.DEALER, world.port("engine", number), binds=False)
            engine.send(b"step")
            poller.register(engine, zmq.POLLIN)
            missing.add(engine)
        while missing:
            for each, _ in poller.poll():
                each.recv()
                missing.discard(each)
        return
    router = socket(zmq.ROUTER, world.port("engine", world.role_rank), binds=True)
    message = router.recv_multipart()
    time.sleep(SLOW_S * world.role_rank)
    router.send_multipart(message)
    time.sleep(0.2)
