"""Simulated worlds that hang, fail and go on, in runs of pytest."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.worlds

Worlds = Any  # of tests/conftest.py

HEAD = """
import os, signal, sys, threading, time
from datetime import timedelta
import pytest
import torch
import torch.distributed as dist

simulated = lambda **given: pytest.mark.multihost(backend="simulated", **given)
"""

HUNG = (
    HEAD
    + """
@simulated(ranks=4)
@pytest.mark.multihost_expect("mismatch", within=5)
def test_two_collectives(world):
    if world.rank % 2:
        dist.all_reduce(torch.ones(1))
    else:
        dist.barrier()

@simulated(ranks=4)
@pytest.mark.multihost_expect("finished", culprits=[3], waiting=[0, 1, 2], within=5)
def test_one_leaves_early(world):
    if world.rank < 3:
        dist.barrier()

@simulated(ranks=3)
@pytest.mark.multihost_expect("deadlock", within=5)
def test_a_ring_that_sends_first(world):
    dist.send(torch.ones(1), (world.rank + 1) % 3)
    dist.recv(torch.ones(1), (world.rank - 1) % 3)

@simulated(ranks=2)
@pytest.mark.multihost_expect(waiting=[0], within=5)
def test_a_key_that_nobody_sets(world):
    if world.rank == 0:
        dist.distributed_c10d._get_default_store().get("never")

@simulated(ranks=2)
@pytest.mark.multihost_expect("straggler", culprits=[1], waiting=[0], within=10)
def test_one_sleeps(world):
    if world.rank == 1:
        time.sleep(600)
    dist.barrier()

@simulated(ranks=2)
@pytest.mark.multihost_expect("straggler", culprits=[1], waiting=[0], within=10)
def test_one_waits_for_a_lock(world):
    if world.rank == 1:
        lock = threading.Lock()
        lock.acquire()
        lock.acquire()
    dist.barrier()

@simulated(ranks=2)
@pytest.mark.multihost_expect(waiting=[0, 1], within=10)
def test_the_harness_and_the_exchange_wait_for_each_other(world):
    if world.rank == 1:
        world.barrier("step")
    dist.barrier()

@simulated(ranks=2, timeout=4)
@pytest.mark.multihost_expect(culprits=[1], waiting=[0])
def test_one_spins(world):
    while world.rank == 1:
        pass
    dist.barrier()

class Slow:
    def pytest_runtest_makereport(self, item, call):
        threading.Event().wait(0.5)

@simulated(ranks=3)
@pytest.mark.multihost_expect("finished", culprits=[1, 2], waiting=[0], within=10)
def test_a_rank_that_takes_long_to_leave_counts_as_finished(world, request):
    if world.rank == 2:
        request.config.pluginmanager.register(Slow())
    if world.rank == 0:
        dist.barrier()

@simulated(ranks=2)
@pytest.mark.multihost_expect("finished", culprits=[1], waiting=[0], within=10)
def test_a_future_of_a_collective_that_never_ends(world):
    if world.rank == 0:
        dist.all_reduce(torch.ones(1), async_op=True).get_future().wait()
"""
)

ENDED = (
    HEAD
    + """
@simulated(ranks=3)
def test_killed(world):
    if world.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()

@simulated(ranks=3)
def test_exits(world):
    if world.rank == 1:
        os._exit(0)
    dist.barrier()

@simulated(ranks=3)
def test_raises(world):
    if world.rank == 1:
        raise ValueError("mine")
    dist.barrier()
"""
)

GOES_ON = (
    HEAD
    + """
@simulated(ranks=2)
def test_a_thread_that_works(world):
    if world.rank == 1:
        def later():
            time.sleep(1.5)
            dist.send(torch.ones(1), 0)
        thread = threading.Thread(target=later)
        thread.start()
    else:
        dist.recv(torch.ones(1), 1)
    dist.barrier()

@simulated(ranks=2)
def test_a_thread_that_works_after_the_test(world):
    if world.rank == 1:
        def later():
            time.sleep(1.5)
            dist.send(torch.ones(1), 0)
        threading.Thread(target=later).start()
    else:
        dist.recv(torch.ones(1), 1)

@simulated(ranks=2)
def test_an_alarm_that_interrupts(world):
    if world.rank == 0:
        class Late(Exception):
            pass
        def late(*_):
            raise Late
        signal.signal(signal.SIGALRM, late)
        signal.setitimer(signal.ITIMER_REAL, 1.0)
        with pytest.raises(Late):
            dist.recv(torch.ones(1), 1)
        dist.send(torch.ones(1), 1, tag=3)
        dist.recv(torch.ones(1), 1, tag=4)
    else:
        dist.recv(torch.ones(1), 0, tag=3)
        dist.send(torch.ones(1), 0, tag=4)

@simulated(ranks=2)
def test_a_child_that_sends_a_signal(world):
    if world.rank == 0:
        class Late(Exception):
            pass
        def late(*_):
            raise Late
        signal.signal(signal.SIGUSR1, late)
        if (pid := os.fork()) == 0:
            time.sleep(1.5)
            os.kill(os.getppid(), signal.SIGUSR1)
            os._exit(0)
        with pytest.raises(Late):
            dist.recv(torch.ones(1), 1)
        os.waitpid(pid, 0)
        dist.send(torch.ones(1), 1, tag=3)
        dist.recv(torch.ones(1), 1, tag=4)
    else:
        dist.recv(torch.ones(1), 0, tag=3)
        dist.send(torch.ones(1), 0, tag=4)

@simulated(ranks=2)
def test_a_timeout_that_strikes(world):
    group = dist.new_group(timeout=timedelta(seconds=1))
    if world.rank == 0:
        with pytest.raises(RuntimeError, match="Timed out waiting 1000ms for all_reduce"):
            dist.all_reduce(torch.ones(1), group=group)
    dist.barrier()

@simulated(ranks=2)
def test_a_limit_of_a_store(world):
    store = dist.distributed_c10d._get_default_store()
    store.set_timeout(timedelta(seconds=1))
    if world.rank == 0:
        with pytest.raises(dist.DistStoreError, match="wait timeout after 1000ms, keys: /"):
            store.get("never")
    dist.barrier()

@simulated(ranks=2)
def test_polls_with_something_else_to_do(world):
    x = torch.ones(1)
    work = dist.irecv(x, 1) if world.rank == 0 else None
    if world.rank == 0:
        polls = 0
        while not work.is_completed():
            polls += 1
            if polls == 5:
                dist.send(x, 1)
    else:
        dist.recv(x, 0)
        dist.send(x, 0)

@simulated(ranks=8)
def test_slow_ranks_lend_their_places(world):
    time.sleep(0.2 if world.rank % 2 else 0)
    dist.barrier()

@simulated(ranks=3)
def test_a_child_of_a_rank(world):
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    dist.barrier()

@simulated(ranks=2)
def test_futures_that_are_asked_in_opposite_orders(world):
    groups = [dist.new_group([0, 1]) for _ in range(2)]
    order = groups if world.rank else groups[::-1]
    futures = [dist.all_reduce(torch.ones(1), group=g, async_op=True).get_future() for g in order]
    assert all(each.wait()[0].item() == 2.0 for each in futures)

@simulated(ranks=2)
def test_works_that_are_launched_in_opposite_orders(world):
    groups = [dist.new_group([0, 1]) for _ in range(2)]
    order = groups if world.rank else groups[::-1]
    works = [dist.all_reduce(torch.ones(1), group=each, async_op=True) for each in order]
    for each in works:
        each.wait()
"""
)


@pytest.mark.claim("run hundreds of ranks on a laptop")
@pytest.mark.program(HUNG)
def test_hangs_are_proven_and_their_culprits_named(worlds: Worlds) -> None:
    """Those in the exchange at once, those elsewhere by the proof of every other world."""
    worlds.run.assert_outcomes(passed=10)


@pytest.mark.program(ENDED)
def test_a_rank_that_ends_is_the_culprit(worlds: Worlds) -> None:
    """The others have only lost it."""
    worlds.run.assert_outcomes(failed=3)
    text = worlds.stdout
    assert "rank 1" in text
    assert "ValueError: mine" in text


@pytest.mark.program(GOES_ON)
def test_worlds_that_look_as_if_they_hang_go_on(worlds: Worlds) -> None:
    """Threads, signals, timeouts, polls and futures may still end a wait."""
    worlds.run.assert_outcomes(passed=11)
