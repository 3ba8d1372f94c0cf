import jax
import pytest
from commit import commit

from pytest_multihost import at, faults


@pytest.mark.multihost(
    ranks=3,
    backend="jax",
    clock="jump",
    timeout=7200,
    faults=[faults.delay(rank=1, seconds=1200, at=at.sync_point("write"))],
)
def test_a_checkpoint_is_not_committed_without_the_process_that_writes_for_long(world):
    began_s = world.clock.now()
    world.sync_point("write")
    with pytest.raises(jax.errors.JaxRuntimeError, match="Barrier timed out"):
        commit(7)
    waited_s = world.clock.now() - began_s
    assert waited_s >= 1200 if world.rank == 1 else 300 <= waited_s < 400
