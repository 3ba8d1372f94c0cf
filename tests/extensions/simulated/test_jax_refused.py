"""A program of several jax processes is refused in a simulated world, with the reason."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.worlds

Worlds = Any  # of tests/conftest.py


@pytest.mark.program(
    """
    import pytest

    simulated = pytest.mark.multihost(ranks=2, backend="simulated")
    REASON = "is not simulated: .*a jax with one process. Use backend='jax'"

    @simulated
    def test_functions_of_several_processes_say_why(world):
        import jax
        from jax.experimental import multihost_utils
        with pytest.raises(RuntimeError, match=f"sync_global_devices {REASON}"):
            multihost_utils.sync_global_devices("saved")
        with pytest.raises(RuntimeError, match=f"process_allgather {REASON}"):
            multihost_utils.process_allgather(1)
        with pytest.raises(RuntimeError, match=f"jax.distributed.initialize {REASON}"):
            jax.distributed.initialize("localhost:1", world.size, world.rank)

    @simulated
    def test_jax_of_one_process_works(world):
        import jax.numpy as jnp
        import torch
        import torch.distributed as dist
        x = torch.tensor([float(jnp.ones(3).sum())])
        dist.all_reduce(x)
        assert x.item() == 6
    """
)
def test_jax_of_several_processes_is_refused_with_the_reason(worlds: Worlds) -> None:
    """Otherwise a barrier would return at once; jax of one process works as ever."""
    worlds.run.assert_outcomes(passed=2)
