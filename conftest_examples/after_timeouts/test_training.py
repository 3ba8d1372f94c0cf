import pytest
from training import train

from pytest_multihost import at, faults


@pytest.mark.multihost(
    ranks=4,
    backend="gloo",
    clock="jump",
    timeout=7200,
    faults=[faults.kill(rank=1, at=at.sync_point("step 3"))],
)
def test_survivors_save_what_they_have(world, shared_tmp_path):
    began_s = world.clock.now()
    assert train(world, shared_tmp_path) == 3
    waited_s = world.clock.now() - began_s
    if world.rank == 3:  # its connection to rank 1 is not used in this step
        assert 1800 <= waited_s < 2000
    else:
        assert waited_s < 60
    assert (shared_tmp_path / f"rank-{world.rank}.pt").exists()
