"""More hangs of jax, pools, sockets and zmq, after the score of hang_hunted_jax_later.py.

Source: a hunt for false verdicts; the truth was written before the first run.
"""

from __future__ import annotations

import multiprocessing
import queue
import socket
import threading

import jax
import numpy as np
import zmq
from expectation import hang
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from programs import HOST

OVER = PartitionSpec("x")


def spread() -> tuple[Mesh, jax.Array]:
    """Return a mesh of all devices, and an array with one element on each."""
    mesh = Mesh(np.array(jax.devices()), ("x",))
    over = NamedSharding(mesh, OVER)
    size = len(jax.devices())
    return mesh, jax.make_array_from_callback((size,), over, lambda _: np.ones(1, np.float32))


class LostShard(Exception):  # noqa: N818 - as in the field
    """An exception that cannot be made again from its pickle."""

    def __init__(self, shard: int, path: str) -> None:
        super().__init__(f"{path}/{shard}")


def lose(shard: int) -> int:
    """Fail with an exception that the parent cannot read."""
    raise LostShard(shard, "data")


def fail() -> None:
    """Fail as each worker begins."""
    raise OSError("no such device")


@hang(
    "straggler",
    ranks=3,
    backend="none",
    culprits=[1],
    waiting=[0, 2],
    where=".map(",
    by=("proof", "deadline"),
)
def test_the_exception_of_a_worker_cannot_be_read(world) -> None:
    """The thread that takes the results ends with an exception of its own.

    Source: https://github.com/python/cpython/pull/10441 (class: results of a pool that get lost)
    """
    if world.rank == 1:
        with multiprocessing.get_context("fork").Pool(2) as pool:
            pool.map(lose, range(4))
    world.barrier()


@hang(
    "straggler",
    ranks=2,
    backend="none",
    culprits=[0],
    waiting=[1],
    where=".map(",
    by=("deadline",),
    also=[{"kind": "livelock", "culprits": [0]}],
    why="it starts workers again and again, and its main thread waits",
)
def test_each_worker_of_a_pool_fails_as_it_begins(world) -> None:
    """The pool starts another one for each, for ever.

    Source: https://github.com/python/cpython/pull/10441 (class: workers of a pool that end)
    """
    if world.is_primary:
        with multiprocessing.get_context("fork").Pool(1, initializer=fail) as pool:
            pool.map(abs, range(4))
    world.barrier()


@hang("deadlock", ranks=2, backend="none", waiting=[0, 1], by=("proof", "deadline"))
def test_a_message_is_one_byte_short(world, shared_tmp_path) -> None:
    """Rank 0 waits for all of a message, whose sender waits in the barrier.

    Source: field report class: a header that counts its end differently
    """
    place = shared_tmp_path / "port"
    if world.is_primary:
        with socket.create_server((HOST, 0)) as server:
            place.write_text(str(server.getsockname()[1]))
            world.barrier("listens")
            connection, _ = server.accept()
            connection.recv(100, socket.MSG_WAITALL)
    else:
        world.barrier("listens")
        connection = socket.create_connection((HOST, int(place.read_text())))
        connection.sendall(b"x" * 99)
    world.barrier("read")


@hang(
    "straggler",
    ranks=2,
    backend="none",
    culprits=[0],
    waiting=[1],
    where="recv(1)",
    also=[{"kind": "deadlock", "culprits": []}],
    why="anybody may send a datagram, and the other rank is one of these",
    by=("proof", "deadline"),
)
def test_a_datagram_goes_to_another_port(world, shared_tmp_path) -> None:
    """Rank 1 has sent it where nobody listens, and is in the barrier.

    Source: field report class: discovery over UDP
    """
    place = shared_tmp_path / "port"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as mine:
        mine.bind((HOST, 0))
        if world.is_primary:
            place.write_text(str(mine.getsockname()[1]))
        world.barrier("bound")
        if world.is_primary:
            mine.recv(1)
        else:
            mine.sendto(b"x", (HOST, int(place.read_text()) ^ 1))
        world.barrier("told")


@hang(
    "straggler",
    ranks=3,
    backend="none",
    culprits=[1],
    waiting=[0, 2],
    where="join()",
    by=("proof", "deadline"),
)
def test_two_threads_fill_each_others_queue(world) -> None:
    """Each puts into the full queue of the other, and takes afterwards; the main thread joins them.

    Source: field report class: stages of a data loader with a queue back
    """
    if world.rank == 1:
        one, two = queue.Queue[int](maxsize=1), queue.Queue[int](maxsize=1)

        def stage(own: queue.Queue[int], other: queue.Queue[int]) -> None:
            for number in range(4):
                other.put(number)
                other.put(number)
                own.get()

        threads = [
            threading.Thread(target=stage, args=pair, daemon=True)
            for pair in ((one, two), (two, one))
        ]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
    world.barrier()


@hang(
    "straggler",
    ranks=2,
    backend="none",
    culprits=[1],
    waiting=[0],
    where="term()",
    by=("proof", "deadline"),
)
def test_a_context_of_zmq_lingers(world) -> None:
    """Rank 1 ends its context, which first wants to send what nobody has ever taken.

    Source: https://libzmq.readthedocs.io/en/latest/zmq_ctx_term.html (ZMQ_LINGER)
    """
    if world.rank == 1:
        with socket.create_server((HOST, 0)) as server:
            port = server.getsockname()[1]
        context = zmq.Context()
        metrics = context.socket(zmq.PUSH)
        metrics.setsockopt(zmq.LINGER, -1)
        metrics.connect(f"tcp://{HOST}:{port}")
        metrics.send(b"loss 0.3")
        metrics.close()
        context.term()
    world.barrier()
