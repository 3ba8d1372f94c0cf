import time

import pytest

pytestmark = pytest.mark.multihost(ranks=4, timeout=60)


def test_neighbours_get_each_others_borders(world, ring):
    assert ring.exchange(b"%d" % world.rank) == (b"%d" % ring.left, b"%d" % ring.right)


@pytest.mark.multihost_expect("straggler", culprits=[2], waiting=[0, 1, 3])
def test_who_does_not_come_is_waited_for(world, ring):
    if world.rank == 2:
        time.sleep(600)
    for _ in range(2):
        ring.exchange(b"x")
