"""What a member that has timed out, left or ended means to the others, in a world that has gloo's.

Each program runs once in a simulated group and once in a real one, and must end alike.
"""

from __future__ import annotations

from typing import Any

import pytest

Worlds = Any  # of tests/conftest.py

PROGRAMS = """
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from pytest_multihost import at, faults

CLOSED = "Connection (closed|reset) by peer"
OWN = "Timed out waiting|Application timeout caused pair closure"

def fails(call, *args, match, **given):
    with pytest.raises(RuntimeError, match=match):
        call(*args, **given)

one = lambda: torch.ones(1)
short = lambda: dist.new_group(timeout=timedelta(seconds=1))

def launches_after_the_timeout_of_another(rank):
    group = short()
    if rank == 0:
        fails(dist.all_reduce, one(), group=group, match=OWN)
        time.sleep(1.5)
        fails(dist.all_reduce, one(), group=group, match=OWN)
        return
    time.sleep(2)
    fails(dist.all_reduce, one(), group=group, match=CLOSED)
    if rank == 1:
        dist.send(one(), 2, group=group)
    else:
        dist.recv(one(), 1, group=group)

def an_operation_that_nobody_waits_for_times_out(rank):
    group = short()
    if rank == 0:
        work = dist.all_reduce(one(), group=group, async_op=True)
        time.sleep(2.5)
        fails(work.wait, match=OWN)
    else:
        time.sleep(2)
        fails(dist.all_reduce, one(), group=group, match=CLOSED)

def a_wait_gives_up_and_its_collective_goes_on(rank):
    x = one()
    if rank == 0:
        work = dist.all_reduce(x, async_op=True)
        fails(work.wait, timedelta(seconds=0.5), match="Operation timed out!")
        work.wait()
        assert x.item() == 3
    else:
        time.sleep(1.5)
        dist.all_reduce(x)

def a_wait_for_a_receive_gives_up(rank):
    group = dist.new_group()
    if rank == 0:
        work = dist.irecv(one(), 1, group=group)
        fails(work.wait, timedelta(seconds=0.5), match=OWN)
        fails(dist.barrier, group=group, match=OWN)
    else:
        time.sleep(1.5)
        if rank == 1:
            fails(dist.send, one(), 0, group=group, match=CLOSED)
        fails(dist.barrier, group=group, match=CLOSED)

def one_destroys_a_group(rank):
    group = dist.new_group()
    if rank == 0:
        dist.destroy_process_group(group)
    else:
        fails(dist.all_reduce, one(), group=group, match=CLOSED)

def one_destroys_a_group_after_its_part(rank):
    # The others need nothing of rank 0 any more.
    group, x = dist.new_group(), one()
    dist.gather(x, [one() for _ in range(3)] if rank == 2 else None, dst=2, group=group)
    if rank == 0:
        dist.destroy_process_group(group)
    elif rank == 1:
        dist.send(x, 2, group=group)
    else:
        dist.recv(x, 1, group=group)

PROGRAM_NAMES = [
    launches_after_the_timeout_of_another,
    an_operation_that_nobody_waits_for_times_out,
    a_wait_gives_up_and_its_collective_goes_on,
    a_wait_for_a_receive_gives_up,
    one_destroys_a_group,
    one_destroys_a_group_after_its_part,
]

@pytest.mark.multihost(ranks=3, backend=["simulated", "gloo"], timeout=20)
@pytest.mark.parametrize("program", PROGRAM_NAMES)
def test_ends(world, program):
    program(world.rank)
    world.barrier("end")

@pytest.mark.multihost(ranks=3, backend=["simulated", "gloo"], timeout=20,
                       faults=[faults.kill(rank=1, at=at.sync_point("here"))])
def test_killed(world):
    if world.rank == 1:
        world.sync_point("here")
    fails(dist.all_reduce, one(), match=CLOSED)
"""


@pytest.mark.worlds
@pytest.mark.program(PROGRAMS)
def test_a_lost_member_ends_what_others_need_of_it_as_with_gloo(worlds: Worlds) -> None:
    """And nothing else: no rank waits for one that will never come, and none meets what is over."""
    worlds.run.assert_outcomes(passed=14)
