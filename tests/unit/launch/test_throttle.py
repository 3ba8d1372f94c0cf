"""Places that the worlds of several controllers share."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as StillWaiting
from pathlib import Path

import pytest

from pytest_multihost.core.launch.permits import hold_permits, permit_count


def test_worlds_run_together_as_long_as_there_are_places(tmp_path: Path) -> None:
    """Two worlds of two on four places do not wait for each other."""
    with hold_permits(tmp_path / "new", 2, count=4), hold_permits(tmp_path / "new", 2, count=4):
        pass


def test_a_world_waits_for_its_places(tmp_path: Path) -> None:
    """It runs when another has given back what it needs, and not before."""
    runs = threading.Event()

    def run() -> None:
        with hold_permits(tmp_path, 2, count=3):
            runs.set()

    with ThreadPoolExecutor(1) as pool:
        with hold_permits(tmp_path, 2, count=3):
            second = pool.submit(run)
            with pytest.raises(StillWaiting):
                second.result(0.05)
            assert not runs.is_set()
        second.result(5)


def test_a_world_larger_than_the_machine_runs_alone(tmp_path: Path) -> None:
    """It takes all places there are, instead of waiting for ever."""
    with hold_permits(tmp_path, 64, count=3):
        pass


def test_places_are_given_back_after_an_error(tmp_path: Path) -> None:
    """Else the next world would wait for ever."""
    with pytest.raises(KeyboardInterrupt), hold_permits(tmp_path, 3, count=3):
        raise KeyboardInterrupt
    with hold_permits(tmp_path, 3, count=3):
        pass


def test_a_small_machine_still_runs_a_world_of_eight() -> None:
    """Ranks wait more than they compute."""
    assert permit_count() >= 8
