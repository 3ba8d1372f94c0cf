"""jax's processes in a simulated world: what they exchange, what hangs, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.worlds

Worlds = Any  # of tests/conftest.py

VALUES = """
    import numpy as np
    import pytest

    BACKEND = {backend!r}
    on_jax = pytest.mark.multihost(ranks=3, backend=BACKEND, timeout=120)

    def connected(world):
        import jax
        if BACKEND == "simulated":
            jax.distributed.initialize("localhost:1", world.size, world.rank)
        return jax

    @on_jax
    def test_processes_have_the_numbers_of_the_ranks(world):
        jax = connected(world)
        assert (jax.process_index(), jax.process_count()) == (world.rank, 3)
        assert len(jax.local_devices()) == 1

    @on_jax
    def test_a_gather_has_all_values(world):
        connected(world)
        from jax.experimental import multihost_utils
        mine = np.arange(2.0) + 10 * world.rank
        stacked = multihost_utils.process_allgather({{"a": mine, "b": world.rank}})
        assert stacked["a"].tolist() == [[0, 1], [10, 11], [20, 21]]
        assert stacked["a"].dtype == np.float32  # as on a device
        assert stacked["b"].tolist() == [0, 1, 2]
        tiled = multihost_utils.process_allgather(mine, tiled=True)
        assert tiled.tolist() == [0, 1, 10, 11, 20, 21]

    @on_jax
    def test_a_broadcast_has_the_values_of_its_source(world):
        connected(world)
        from jax.experimental import multihost_utils
        tree = {{"a": np.arange(3) + world.rank, "b": [np.bool_(world.rank == 1)]}}
        got = multihost_utils.broadcast_one_to_all(tree)
        assert got["a"].tolist() == [0, 1, 2] and got["b"][0] == False
        got = multihost_utils.broadcast_one_to_all(tree, is_source=world.rank == 1)
        assert got["a"].tolist() == [1, 2, 3] and got["b"][0] == True

    @on_jax
    def test_a_barrier_of_another_name_raises(world):
        connected(world)
        from jax.experimental import multihost_utils
        multihost_utils.sync_global_devices("same")
        with pytest.raises(AssertionError, match="name mismatch"):
            multihost_utils.sync_global_devices(f"step {{world.rank}}")

    @on_jax
    def test_the_client_keeps_keys(world):
        jax = connected(world)
        client = jax._src.distributed.global_state.client
        client.key_value_set(f"shards/{{world.rank}}", str(world.rank))
        with pytest.raises(jax.errors.JaxRuntimeError, match="ALREADY_EXISTS"):
            client.key_value_set(f"shards/{{world.rank}}", "again")
        client.wait_at_barrier("written", 60_000)
        assert sorted(client.key_value_dir_get("shards/")) == [
            (f"shards/{{each}}", str(each)) for each in range(3)
        ]
        assert client.blocking_key_value_get("shards/2", 1000) == "2"
        client.wait_at_barrier("read", 60_000)
        client.wait_at_barrier("read", 60_000)  # a name may be used again
        if world.rank < 2:
            client.wait_at_barrier("two of them", 60_000, process_ids=[0, 1])
        if world.is_primary:
            client.key_value_delete("shards")
        client.wait_at_barrier("deleted", 60_000)
        with pytest.raises(jax.errors.JaxRuntimeError, match="NOT_FOUND"):
            client.key_value_try_get("shards/0")
        with pytest.raises(jax.errors.JaxRuntimeError, match="DEADLINE_EXCEEDED"):
            client.blocking_key_value_get("never", 100)

    @on_jax
    def test_orbax_saves_together(world, shared_tmp_path):
        connected(world)
        import orbax.checkpoint as ocp
        with ocp.StandardCheckpointer() as saver:
            saver.save(shared_tmp_path / "state", {{"w": np.arange(4.0)}})
            saver.wait_until_finished()
            restored = saver.restore(shared_tmp_path / "state")
        assert restored["w"].tolist() == [0, 1, 2, 3]
"""


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "worlds",
    [
        pytest.param(backend, marks=pytest.mark.program(VALUES.format(backend=backend)), id=backend)
        for backend in ("simulated", "jax")
    ],
    indirect=True,
)
def test_simulated_processes_exchange_what_real_ones_do(worlds: Worlds) -> None:
    """The same tests pass in both."""
    worlds.run.assert_outcomes(passed=6)


HANGS = """
    import time

    import numpy as np
    import pytest

    simulated = pytest.mark.multihost(ranks=16, backend="simulated", timeout=100)

    def connected(world):
        import jax
        jax.distributed.initialize("localhost:1", world.size, world.rank)
        return jax._src.distributed.global_state.client

    @simulated
    @pytest.mark.multihost_expect("finished", culprits=[5], match="sync_global_devices")
    def test_a_process_skips_the_barrier(world):
        connected(world)
        from jax.experimental import multihost_utils
        if world.rank != 5:
            multihost_utils.sync_global_devices("saved")

    @simulated
    @pytest.mark.multihost_expect("straggler", culprits=[0], match="blocking_key_value_get config")
    def test_a_key_is_never_set(world):
        client = connected(world)
        import jax.numpy as jnp
        assert float(jnp.ones(3).sum()) == 3  # XLA has threads now
        if world.is_primary:
            time.sleep(600)
        client.blocking_key_value_get("config", 600_000)

    @simulated
    @pytest.mark.multihost_expect("mismatch", culprits=[0], match="broadcast_one_to_all")
    def test_a_broadcast_meets_a_gather(world):
        connected(world)
        from jax.experimental import multihost_utils
        if world.is_primary:
            multihost_utils.broadcast_one_to_all(np.ones(3))
        else:
            multihost_utils.process_allgather(np.ones(3))

    @simulated
    @pytest.mark.multihost_expect("finished", culprits=[3], match="initialize")
    def test_a_process_does_not_connect(world):
        if world.rank != 3:
            connected(world)

    @simulated
    def test_slow_processes_are_waited_for(world):
        client = connected(world)
        from jax.experimental import multihost_utils
        time.sleep(0.2 * (world.rank % 3))
        multihost_utils.sync_global_devices("saved")
        client.wait_at_barrier("done", 60_000)
"""


@pytest.mark.timeout(300)
@pytest.mark.program(HANGS)
def test_a_process_that_others_wait_for_is_named(worlds: Worlds) -> None:
    """In a barrier, for a key, in another operation, or before it has connected."""
    worlds.run.assert_outcomes(passed=5)
    hung = [each for each in worlds.all_verdicts if each["outcome"] == "hung"]
    assert {each["diagnosis"]["detected_by"] for each in hung} <= {"proof", "mismatch"}
    assert len(hung) == 4


@pytest.mark.program(
    """
    import pytest

    simulated = pytest.mark.multihost(ranks=2, backend="simulated")

    @simulated
    def test_without_processes_there_is_nothing_to_wait_for(world):
        import jax
        from jax.experimental import multihost_utils
        assert jax.process_count() == 1
        for call in (multihost_utils.sync_global_devices, multihost_utils.broadcast_one_to_all):
            with pytest.raises(RuntimeError, match="call jax.distributed.initialize"):
                call("saved" if call is multihost_utils.sync_global_devices else 1)

    @simulated
    def test_programs_over_all_devices_are_refused(world):
        import jax
        jax.distributed.initialize("localhost:1", world.size, world.rank)
        from jax.experimental import multihost_utils
        for call in (jax.devices, jax.device_count, lambda: jax.make_mesh((2,), ("x",))):
            with pytest.raises(RuntimeError, match="is not simulated: each rank has the devices"):
                call()
        with pytest.raises(RuntimeError, match="host_local_array_to_global_array is not simulated"):
            multihost_utils.host_local_array_to_global_array(1, None, None)

    @simulated
    def test_other_processes_than_the_ranks_are_refused(world):
        import jax
        with pytest.raises(RuntimeError, match="jax's processes are its ranks, here . of 2"):
            jax.distributed.initialize("localhost:1", 4, world.rank)

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
def test_what_would_return_the_values_of_one_process_is_refused(worlds: Worlds) -> None:
    """With the reason; jax of one process works as ever."""
    worlds.run.assert_outcomes(passed=4)
