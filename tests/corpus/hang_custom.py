"""Transports of the user's own, which say whom they wait for."""

from __future__ import annotations

import os
import time
from pathlib import Path

from expectation import hang

import pytest_multihost


class Ring:
    """Messages of one byte between neighbours, through named pipes."""

    def __init__(self, world, directory: Path) -> None:
        self.left, self.right = (world.rank - 1) % world.size, (world.rank + 1) % world.size
        if world.is_primary:
            for rank in range(world.size):
                os.mkfifo(directory / f"to-{rank}")
        world.barrier("pipes are made")
        # Opened for both, so that neither opening waits and no pipe ever ends.
        self.inward = os.open(directory / f"to-{world.rank}", os.O_RDWR)
        self.outward = os.open(directory / f"to-{self.right}", os.O_RDWR)

    def send(self) -> None:
        """Send to the right; there is room in the pipe, so this never waits."""
        os.write(self.outward, b"x")

    def receive(self) -> None:
        """Receive from the left."""
        with pytest_multihost.operation("ring receive", peers=[self.left]):
            os.read(self.inward, 1)


@hang("straggler", ranks=3, backend="none", culprits=[0], waiting=[1, 2], where="time.sleep(600)")
def test_first_of_the_ring_sleeps(world, shared_tmp_path) -> None:
    """The first rank of a ring sleeps before it sends, the message never goes round.

    Source: https://github.com/ml-explore/mlx/pull/3654
    """
    ring = Ring(world, shared_tmp_path)
    if world.is_primary:
        time.sleep(600)
        ring.send()
    ring.receive()
    ring.send()


@hang("deadlock", ranks=4, backend="none")
def test_ring_receives_before_it_sends(world, shared_tmp_path) -> None:
    """All ranks of a ring receive before they send.

    Source: https://github.com/mpickpt/mana/pull/247 (send and receive must alternate)
    """
    ring = Ring(world, shared_tmp_path)
    ring.receive()
    ring.send()


@hang("finished", ranks=2, backend="none", culprits=[0], waiting=[1])
def test_orphan_receive(world, shared_tmp_path) -> None:
    """The receiver counts one message more than the sender has sent.

    Source: https://github.com/ml-explore/mlx/pull/3654
    """
    ring = Ring(world, shared_tmp_path)
    for _ in range(2):
        if world.is_primary:
            ring.send()
        else:
            ring.receive()
    if not world.is_primary:
        ring.receive()


@hang("raised", ranks=3, backend="none", culprits=[2], waiting=[0, 1], by=("raise",))
def test_member_of_the_ring_raises(world, shared_tmp_path) -> None:
    """A rank of the ring raises before it passes the message on.

    Source: https://github.com/firedrakeproject/mpi-pytest/issues/12
    """
    ring = Ring(world, shared_tmp_path)
    if world.rank == 2:
        raise ValueError("bad shard")
    ring.receive()
    ring.send()
