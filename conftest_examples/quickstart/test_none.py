import os

import pytest


@pytest.mark.multihost
def test_ranks_are_processes_of_their_own(world):
    pids = world.gather(os.getpid())
    assert len(set(pids)) == world.size
