"""What a reader of the terminal sees of a hang: the times that decide, in plain words."""

from __future__ import annotations

SOURCE = """
import threading, time
import pytest

@pytest.mark.multihost(ranks=2)
def test_evaluates(world):
    if world.rank == 1:
        time.sleep(150)
    world.barrier("done")

@pytest.mark.multihost(ranks=2, timeout=30)
def test_all_sleep(world):
    time.sleep(80)

@pytest.mark.multihost(ranks=2, timeout=40)
def test_waits(world):
    if world.rank == 1:
        threading.Event().wait()
    world.barrier("done")
"""


def test_a_sleep_is_compared_with_the_timeout_and_a_lock_is_called_a_lock(run_worlds) -> None:
    """The sentence names both times and the origin of the timeout; no system call is shown."""
    worlds = run_worlds(SOURCE, "--multihost-timeout=100")
    lines = " ".join(worlds.stdout.split())
    given = "the timeout is 100 s (--multihost-timeout): if that is right, set a longer timeout"
    assert f"rank 1 sleeps for another 150 s, and {given}" in lines
    assert "ranks 0,1 sleep for another 80 s, and the timeout is 30 s (its marker)" in lines
    assert "ranks 0,1 sleep in the test, and no other rank waits for them" in lines
    assert "no rank can make progress before the timeout of 40 s (its marker)" in lines
    assert "rank 1 blocked a lock" in lines
    assert "futex" not in lines


def test_the_default_timeout_is_named_as_the_default(run_worlds) -> None:
    """A reader who has set no timeout learns that there is one."""
    worlds = run_worlds(SOURCE, "-k", "evaluates")
    assert "the timeout is 120 s (the default)" in " ".join(worlds.stdout.split())
