"""A process that a rank starts is held, while the rank goes on."""

from __future__ import annotations

import pytest

PROGRAM = """
import multiprocessing, subprocess, sys, time
import pytest
from pytest_multihost import at, faults

FORKS = at.call("multiprocessing.process:BaseProcess.start")
RUNS = at.call("subprocess:Popen.__init__")

def held(at):
    hold = faults.hold(rank=1, at=at, what="child")
    return pytest.mark.multihost(ranks=2, timeout=60, faults=[hold])

def set_it(event):
    event.set()

def work_for(world, seconds):
    # A sleep that ends by itself is no wait for the held rank.
    world.barrier("together")
    if world.rank == 0:
        time.sleep(seconds)

def asked_while_others_work(world, question, after=0.3):
    work_for(world, after + 1.7)
    if world.rank == 1:
        time.sleep(after)
        return question()
    return None

@held(FORKS)
def test_forked(world):
    context = multiprocessing.get_context("fork")
    event = context.Event()
    process = context.Process(target=set_it, args=(event,))
    process.start()
    seen = asked_while_others_work(world, event.is_set)
    world.barrier("asked")
    process.join()
    assert event.is_set()
    assert process.exitcode == 0
    assert seen is (False if world.rank == 1 else None)

@held(FORKS)
def test_second_goes_on(world):
    context = multiprocessing.get_context("fork")
    first, second = context.Event(), context.Event()
    processes = [context.Process(target=set_it, args=(each,)) for each in (first, second)]
    for each in processes:
        each.start()
    seen = asked_while_others_work(world, lambda: (first.is_set(), second.wait(20)))
    for each in processes:
        each.join()
    assert seen == ((False, True) if world.rank == 1 else None)

@held(FORKS)
def test_spawned(world):
    # The first one comes with the tracker of resources, which is not held.
    process = multiprocessing.get_context("spawn").Process(target=print)
    process.start()
    seen = asked_while_others_work(world, process.is_alive, after=2.0)
    process.join()
    assert seen is (True if world.rank == 1 else None)

@held(RUNS)
def test_program(world):
    program = subprocess.Popen([sys.executable, "-S", "-c", "pass"])
    seen = asked_while_others_work(world, program.poll)
    world.barrier("asked")
    assert program.wait() == 0
    assert seen is None

@held(RUNS)
def test_no_process(world):
    with pytest.raises(FileNotFoundError):
        subprocess.Popen(["/no/such/program"])
    world.barrier("after it")
"""


@pytest.mark.program(PROGRAM)
@pytest.mark.parametrize("test", ["forked", "second_goes_on", "spawned", "program", "no_process"])
def test_a_child_is_held_and_its_rank_goes_on(worlds, test: str) -> None:
    """It begins once the other ranks wait; other children, and failing calls, hold nothing."""
    verdict = worlds.verdicts[f"test_{test}"]
    assert verdict["status"] == "passed", verdict["reason"]
