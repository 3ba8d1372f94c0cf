"""Sockets between the ranks that no recorder knows of."""

from __future__ import annotations

import socket
import time
from pathlib import Path

from expectation import hang


def ring(world, directory: Path) -> tuple[socket.socket, socket.socket]:
    """Connect each rank with both of its neighbours: the left one first."""
    server = socket.create_server(("127.0.0.1", 0))
    (directory / f"port-{world.rank}").write_text(str(server.getsockname()[1]))
    world.barrier("all listen")
    port = (directory / f"port-{(world.rank + 1) % world.size}").read_text()
    right = socket.create_connection(("127.0.0.1", int(port)))
    left = server.accept()[0]
    world.barrier("all are connected")
    return left, right


@hang("straggler", ranks=4, backend="none", culprits=[2], waiting=[0, 1, 3])
def test_one_of_a_ring_of_sockets_sleeps(world, shared_tmp_path) -> None:
    """A message goes round, and one rank keeps it; the others wait for their left neighbours.

    Source: https://github.com/ml-explore/mlx/pull/3654
    """
    left, right = ring(world, shared_tmp_path)
    if world.is_primary:
        right.sendall(b"x")
    left.recv(1)
    if world.rank == 2:
        time.sleep(600)
    right.sendall(b"x")
    if not world.is_primary:
        left.recv(1)


@hang("deadlock", ranks=3, backend="none")
def test_all_of_a_ring_of_sockets_send_more_than_fits(world, shared_tmp_path) -> None:
    """Each rank sends before it receives, and what it sends fits into no buffer.

    Source: https://github.com/mpickpt/mana/pull/247 (send and receive must alternate)
    """
    left, right = ring(world, shared_tmp_path)
    right.sendall(bytes(1 << 26))
    left.recv(1 << 26)


@hang("raised", ranks=3, backend="none", culprits=[1], waiting=[0, 2], by=("raise",))
def test_one_of_a_ring_of_sockets_raises(world, shared_tmp_path) -> None:
    """One rank fails and keeps its connections; the others wait for their left neighbours.

    Source: field report class: an exception on one stage of a pipeline
    """
    left, right = ring(world, shared_tmp_path)
    assert world.rank != 1
    left.recv(1)
    right.sendall(b"x")


@hang(
    "raised",
    ranks=4,
    backend="none",
    culprits=[3],
    waiting=[0, 1, 2],
    by=("raise",),
)
def test_server_waits_for_one_that_raised_before_it_connected(world, shared_tmp_path) -> None:
    """A server awaits three workers before it answers any; the third fails before it connects.

    Source: field report class: a rendezvous of one's own that counts its workers
    """
    path = str(shared_tmp_path / "server.sock")
    with socket.socket(socket.AF_UNIX) as mine:
        if world.is_primary:
            mine.bind(path)
            mine.listen()
        world.barrier("listening")
        assert world.rank != 3
        if world.is_primary:
            workers = [mine.accept()[0] for _ in range(3)]
            for worker in workers:
                worker.sendall(b"1")
        else:
            mine.connect(path)
            mine.recv(1)
