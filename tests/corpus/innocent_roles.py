"""Several torch worlds in one test that are slow and fine."""

from __future__ import annotations

import contextlib
import socket
import threading
import time

import torch
import torch.distributed as dist
import zmq
from expectation import innocent
from hang_circles import CIRCLE, accepted, circle, opened
from roles import join_group, join_world


def meet(group: object = None) -> None:
    """Let all members of a group meet."""
    dist.all_reduce(torch.ones(4), group=group)


@innocent(ranks=5, backend="none")
def test_an_engine_is_slow_beside_an_idle_frontend(world) -> None:
    """One of two engines takes 5 s, and the frontend does nothing for 6 s.

    Source: field report class: a first request compiles
    """
    if world.rank == 4:
        time.sleep(6)
        return
    join_world(world.rank % 2, 2, port=world.rank // 2)
    meet()
    if world.rank == 3:
        time.sleep(5)
    meet()


@innocent(ranks=4, backend="none")
def test_a_trainer_joins_late(world) -> None:
    """Two of three wait for 5 s in the creation of a group between roles; rank 3 is no member.

    Source: https://github.com/THUDM/slime/issues/2331 (the engines had only started late)
    """
    if world.rank == 3:
        return
    if world.rank == 1:
        time.sleep(5)
    group = join_group(world.rank, 3, "weights")
    dist.broadcast(torch.ones(4), group=group, group_src=1)


@innocent(ranks=3, backend="none")
def test_a_server_is_asked_late(world) -> None:
    """A frontend waits in accept() until an engine of a world of two asks after 4 s.

    Source: field report class: an idle API server
    """
    if world.rank == 0:
        with socket.create_server(("127.0.0.1", 0)) as server:
            world.gather(server.getsockname()[1])
            server.accept()
        return
    port = next(each for each in world.gather(None) if each)
    join_world(world.rank - 1, 2)
    meet()
    if world.rank == 1:
        time.sleep(4)
        with socket.create_connection(("127.0.0.1", port)):
            meet()
    else:
        meet()


@innocent(ranks=4, backend="none")
def test_worlds_are_made_again_with_other_members(world) -> None:
    """A torch world of ranks 0 and 1 gives way to one of ranks 1 and 2, which is slow.

    Source: field report class: a role is restarted on other ranks
    """
    if world.rank == 3:
        time.sleep(8)
        return
    if world.rank < 2:
        join_world(world.rank, 2)
        meet()
        dist.destroy_process_group()
    world_of_two = {1: 0, 2: 1}
    if world.rank in world_of_two:
        if world.rank == 2:
            time.sleep(3)
        join_world(world_of_two[world.rank], 2, port=1)
        meet()
        if world.rank == 1:
            time.sleep(4)
        meet()


@innocent(roles=CIRCLE, backend="none")
def test_a_token_goes_round_slowly(world) -> None:
    """All wait for the one that has it, which works for some seconds.

    Source: field report class: stages of a pipeline take turns
    """
    mine, before = circle(world, openers=("fetcher", "ranker"))
    if world.role == "fetcher":
        time.sleep(4)
        before.sendall(b"x")
    mine.recv(1)
    if world.role != "fetcher":
        time.sleep(2)
        before.sendall(b"x")


@innocent(roles=CIRCLE, backend="none")
def test_a_circle_with_a_thread_that_breaks_it(world) -> None:
    """The main threads wait for each other, until a thread of one sends something.

    Source: field report class: a heartbeat carries the first message
    """
    mine, before = circle(world, openers=())
    if world.role == "ranker":

        def begin() -> None:
            time.sleep(5)
            before.sendall(b"x")

        threading.Thread(target=begin).start()
        mine.recv(1)
        return
    mine.recv(1)
    before.sendall(b"x")


@innocent(ranks=3, backend="none")
def test_a_ring_of_zmq_that_a_thread_starts(world) -> None:
    """All main threads wait for a message, until a thread of one sends the first one.

    Source: field report class: a ring of stages that a timer starts
    """
    sockets = zmq.Context.instance()
    waits, serves = sockets.socket(zmq.PULL), sockets.socket(zmq.PUSH)
    ports = world.gather(waits.bind_to_random_port("tcp://127.0.0.1"))
    serves.connect(f"tcp://127.0.0.1:{ports[(world.rank + 1) % world.size]}")
    if world.is_primary:
        threading.Timer(5, serves.send, [b"x"]).start()
        waits.recv()
        return
    waits.recv()
    serves.send(b"x")


@innocent(roles={"trainer": 1, "engine": 1}, backend="none")
def test_a_circle_that_ends_by_a_timeout(world) -> None:
    """One of two that wait for each other gives up after some seconds, and goes on.

    Source: field report class: a poll of a queue with a timeout
    """
    if world.role == "trainer":
        own, sends = accepted(world.port("trainer")), opened(world.port("engine"))
        own.settimeout(4)
        with contextlib.suppress(TimeoutError):
            own.recv(1)
        sends.sendall(b"x")
    else:
        sends, own = opened(world.port("trainer")), accepted(world.port("engine"))
        own.recv(1)
        sends.close()
