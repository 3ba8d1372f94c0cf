"""The hundredth world costs what the first did, and leaves as little."""

from __future__ import annotations

SOURCE = """
import os, pathlib, pytest

def count(pid):
    return len(os.listdir(f"/proc/{pid}/fd")), len(os.listdir(f"/proc/{pid}/task"))

@pytest.mark.parametrize("i", range(100))
@pytest.mark.multihost(ranks=2)
def test_world(world, i, tmp_path):
    world.barrier()
    if world.is_primary:
        server = os.getppid()
        controller = int(pathlib.Path(f"/proc/{server}/stat").read_text().split()[3])
        print(*count(server), *count(controller), len(os.listdir("/dev/shm")))
"""


def test_neither_controller_nor_server_grows(run_worlds) -> None:
    """Descriptors and threads are the same after 100 worlds; segments do not grow with them."""
    worlds = run_worlds(SOURCE, "-q")
    worlds.run.assert_outcomes(passed=100)
    early, late = (
        [int(each) for each in worlds.output(f"test_world[{i}]", 0).split()] for i in (5, 99)
    )
    assert late[:4] == early[:4]
    # /dev/shm is the machine's: tests of other workers add and remove segments meanwhile. A
    # segment left by every fourth world would still be seen.
    assert late[4] - early[4] < (99 - 5) // 4


def test_a_world_of_64_ranks_passes(run_worlds) -> None:
    """More than anybody has cores for; every rank reports."""
    worlds = run_worlds(
        """
        import pytest

        @pytest.mark.multihost(ranks=64)
        def test_it(world):
            assert world.gather(world.rank) == list(range(64))
        """
    )
    worlds.run.assert_outcomes(passed=1)
    assert len(worlds.verdicts["test_it"]["rank_results"]) == 64


def test_a_world_of_more_ranks_than_fit_into_one_message_passes(run_worlds) -> None:
    """The kernel passes at most 253 descriptors at once."""
    worlds = run_worlds(
        """
        import pytest

        @pytest.mark.multihost(ranks=260)
        def test_it(world):
            world.barrier()
        """
    )
    worlds.run.assert_outcomes(passed=1)
