import pytest
from leases import grant, has_run_out

from pytest_multihost import at, faults


@pytest.mark.multihost(faults=[faults.other("wrong_clock", rank=1, seconds=1.0)])
def test_a_clock_that_is_a_second_off_ends_no_lease(world):
    end = world.broadcast(grant(0.5) if world.is_primary else None)
    assert not has_run_out(end)


@pytest.mark.multihost(
    faults=[faults.other("wrong_clock", rank=1, seconds=60, at=at.sync_point("granted"))]
)
def test_one_that_is_a_minute_off_does(world):
    end = world.broadcast(grant(0.5) if world.is_primary else None)
    assert not has_run_out(end)
    world.sync_point("granted")
    assert has_run_out(end) == (world.rank == 1)
