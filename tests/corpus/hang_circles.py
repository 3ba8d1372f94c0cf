"""Programs of several roles that wait for each other at sockets, whoever has opened these."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Collection

import zmq
from expectation import hang
from mishaps import FOREVER_S

HOST = "127.0.0.1"
CIRCLE = {"fetcher": 1, "ranker": 1, "writer": 1}


def opened(port: int) -> socket.socket:
    """Connect to a port as soon as somebody listens there."""
    while True:
        try:
            return socket.create_connection((HOST, port))
        except ConnectionRefusedError:
            time.sleep(0.05)


def accepted(port: int) -> socket.socket:
    """Accept the first connection to a port, and no other one."""
    with socket.create_server((HOST, port)) as server:
        return server.accept()[0]


def connections(
    me: str, order: list[str], port: Callable[[str], int], openers: Collection[str]
) -> tuple[socket.socket, socket.socket]:
    """Connect each role to the one that it waits for, which comes next in the order.

    Args:
        openers: Those that open the connection at which they wait; the others accept it.

    Returns:
        Where this role waits, and where the one before it does.
    """
    before, found = order[order.index(me) - 1], {}
    for waits in order:
        if waits in (me, before):
            opens = (waits in openers) == (waits == me)
            found[waits] = opened(port(waits)) if opens else accepted(port(waits))
    return found[me], found[before]


def circle(world, openers: Collection[str]) -> tuple[socket.socket, socket.socket]:
    """Connect the roles of a world in a circle."""
    return connections(world.role, [*CIRCLE], world.port, openers)


def wait_in_circle(world, openers: Collection[str]) -> None:
    """Wait for the next role, with the connection open at which the one before waits."""
    mine, before = circle(world, openers)
    mine.recv(1)
    before.close()


@hang("deadlock", roles=CIRCLE, backend="none", culprits=[], waiting=[*CIRCLE])
def test_all_have_opened_what_they_wait_at(world) -> None:
    """Each waits for an answer of the next one.

    Source: field report class: services that call each other
    """
    wait_in_circle(world, openers=CIRCLE)


@hang("deadlock", roles=CIRCLE, backend="none", culprits=[], waiting=[*CIRCLE])
def test_two_have_opened_what_they_wait_at(world) -> None:
    """The third one waits at a connection that the first one has opened.

    Source: field report class: services that call each other
    """
    wait_in_circle(world, openers=("fetcher", "ranker"))


@hang("deadlock", roles=CIRCLE, backend="none", culprits=[], waiting=[*CIRCLE])
def test_one_has_opened_what_it_waits_at(world) -> None:
    """The others have accepted it.

    Source: field report class: services that call each other
    """
    wait_in_circle(world, openers=("ranker",))


@hang("deadlock", roles=CIRCLE, backend="none", culprits=[], waiting=[*CIRCLE])
def test_nobody_has_opened_what_it_waits_at(world) -> None:
    """All wait for what the next one is to push.

    Source: field report class: a pipeline whose stages push to each other
    """
    wait_in_circle(world, openers=())


@hang("deadlock", roles=CIRCLE, backend="none", culprits=[], waiting=[*CIRCLE])
def test_event_loops_wait_at_both_ends(world) -> None:
    """Each loop watches both of its connections, and its task awaits a message of the next one.

    Source: field report class: services of asyncio that call each other
    """
    mine, before = circle(world, openers=("fetcher",))

    async def wait() -> None:
        reader, writer = await asyncio.open_connection(sock=mine)
        other_reader, other_writer = await asyncio.open_connection(sock=before)
        await reader.readexactly(1)
        del writer, other_reader, other_writer  # a writer that nobody has is closed

    asyncio.run(wait())


@hang("deadlock", roles=CIRCLE, backend="none", culprits=[], waiting=[*CIRCLE])
def test_stages_pull_from_each_other(world) -> None:
    """Nobody owes a message by zmq's rules: each waits for the next one to push.

    Source: field report class: a ring of stages without a first message
    """
    order, sockets = [*CIRCLE], zmq.Context.instance()
    waits, serves = sockets.socket(zmq.PULL), sockets.socket(zmq.PUSH)
    waits.bind(f"tcp://{HOST}:{world.port(world.role)}")
    serves.connect(f"tcp://{HOST}:{world.port(order[order.index(world.role) - 1])}")
    waits.recv()
    serves.send(b"x")


@hang("deadlock", ranks=3, backend="none", culprits=[], by=("deadline",))
def test_ranks_ask_each_other_by_zmq(world) -> None:
    """Each has sent a request and waits for the reply, so nobody reads one.

    Source: field report class: peers that ask before they serve
    """
    sockets = zmq.Context.instance()
    asks, serves = sockets.socket(zmq.REQ), sockets.socket(zmq.REP)
    ports = world.gather(serves.bind_to_random_port(f"tcp://{HOST}"))
    asks.connect(f"tcp://{HOST}:{ports[(world.rank + 1) % world.size]}")
    asks.send(b"x")
    asks.recv()


@hang(
    "deadlock",
    roles={**CIRCLE, "driver": 1},
    backend="none",
    culprits=[],
    waiting=[*CIRCLE, "driver"],
)
def test_a_driver_waits_for_a_circle(world) -> None:
    """It has asked one of those that wait for each other.

    Source: field report class: a request enters a pipeline that is stuck
    """
    if world.role == "driver":
        opened(world.port("fetcher", 1)).recv(1)
        return
    mine, _ = circle(world, openers=("writer",))
    driver = accepted(world.port("fetcher", 1)) if world.role == "fetcher" else None
    mine.recv(1)
    del driver


@hang(
    "deadlock",
    roles={"trainer": 1, "engine": 1},
    backend="none",
    culprits=[],
    waiting=["trainer", "engine"],
)
def test_two_wait_at_two_connections(world) -> None:
    """Each has opened one, and waits at the other one.

    Source: field report class: two services with a channel for each direction
    """
    mine, other = ("trainer", "engine") if world.role == "trainer" else ("engine", "trainer")
    if world.role == "trainer":
        own, sends = accepted(world.port(mine)), opened(world.port(other))
    else:
        sends, own = opened(world.port(other)), accepted(world.port(mine))
    own.recv(1)
    sends.close()


@hang(
    "straggler",
    roles=CIRCLE,
    backend="none",
    culprits=["writer:0"],
    waiting=["fetcher", "ranker"],
    where="time.sleep(FOREVER_S)",
)
def test_one_of_the_circle_sleeps(world) -> None:
    """It is connected as the others, but waits for nobody.

    Source: field report class: a stage of a pipeline is busy
    """
    mine, _ = circle(world, openers=("fetcher",))
    if world.role == "writer":
        time.sleep(FOREVER_S)
    mine.recv(1)


@hang(
    "straggler",
    roles={"driver": 1, "engine": 1, "worker": 1},
    backend="none",
    culprits=["worker:0"],
    waiting=["driver", "engine"],
)
def test_the_last_of_a_chain_has_lost_a_request(world) -> None:
    """It waits for the next one at the same connection, so nobody waits in a circle.

    Source: field report class: a worker drops a request
    """
    if world.role == "driver":
        engine = opened(world.port("engine"))
        engine.sendall(b"x")
        engine.recv(1)
    elif world.role == "engine":
        driver = accepted(world.port("engine"))
        driver.recv(1)
        worker = opened(world.port("worker"))
        worker.sendall(b"x")
        worker.recv(1)
    else:
        engine = accepted(world.port("worker"))
        while engine.recv(1):
            pass
