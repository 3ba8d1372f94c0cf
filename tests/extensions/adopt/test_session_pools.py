"""A pool that a suite keeps for all its tests: its calls run on ranks, begun as its processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

Worlds = Any  # of tests/conftest.py
RunWorlds = Callable[..., Worlds]

CONFTEST = """
import multiprocessing, pytest

STATE = {}

def prepare(rank, size):
    STATE.update(rank=rank, size=size)

def pytest_sessionstart():
    pytest.pool = multiprocessing.get_context("fork").Pool(processes=2)
    pytest.pool.starmap(prepare, [(rank, 2) for rank in range(2)])

def pytest_sessionfinish():
    pytest.pool.close()
    pytest.pool.join()
"""

TESTS = """
import multiprocessing, multiprocessing.pool, os, pytest
from conftest import STATE

class OfALibrary(multiprocessing.pool.Pool):
    pass

def state(rank, factor):
    return {**STATE, "times": rank * factor}

def fails(rank):
    assert not rank, "the reason"

def waits(rank):
    from pytest_multihost import current_world
    if rank:
        current_world().barrier("never")
    import time
    time.sleep(100_000)

def test_results():
    found = pytest.pool.starmap(state, [(0, 5), (1, 5)])
    assert found == [{"rank": 0, "size": 2, "times": 0}, {"rank": 1, "size": 2, "times": 5}]

def test_raises():
    with pytest.raises(AssertionError, match="the reason"):
        pytest.pool.map(fails, range(2))

def test_hangs():
    pytest.pool.map(waits, range(2))

def test_more_tasks_than_processes():
    assert pytest.pool.map(abs, range(-3, 0)) == [3, 2, 1]
    assert pytest.pool.map(abs, range(-2, 0)) == [2, 1]

def test_own():
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert pool.map(abs, [-1, -2]) == [1, 2]
    assert issubclass(OfALibrary, multiprocessing.pool.Pool)
"""


def test_a_pool_of_the_session_runs_on_ranks(
    run_worlds: RunWorlds, pytester: pytest.Pytester
) -> None:
    """Results, exceptions and hangs; a call that needs the real pool has it, and says why."""
    pytester.makeconftest(CONFTEST)
    worlds = run_worlds(TESTS, "--multihost-adopt=spawn", "-pno:randomly")
    worlds.run.assert_outcomes(passed=4, failed=1, warnings=4)
    worlds.run.stdout.fnmatch_lines(
        [
            "*a pool of the session starts processes*3 tasks for 2 processes*",
            "*a pool starts processes*make it in pytest_sessionstart*",
            "multihost: 3 calls ran on ranks of this plugin; 4 started processes as before: *",
        ]
    )
    worlds.run.stdout.fnmatch_lines(["HUNG  rank 0 *"])
    assert sum(each["outcome"] == "hung" for each in worlds.all_verdicts) == 1
