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
    stopped_at = train(world, shared_tmp_path)
    waited_s = world.clock.now() - began_s
    if world.rank == 3:  # it waits for rank 2, which has lost its connection to rank 1
        assert stopped_at == 3
        assert 1800 <= waited_s < 2000
    else:
        assert waited_s < 60
    assert (shared_tmp_path / f"rank-{world.rank}.pt").exists()
