"""Jitted collectives on a part of the processes: who takes part is known, and who does not."""

from __future__ import annotations


def test_who_has_no_part_in_a_jitted_collective_is_not_blamed(run_worlds) -> None:
    """A ring of pairs is a deadlock; of two pairs only the one that waits has lost somebody."""
    worlds = run_worlds(
        """
        import jax, jax.numpy as jnp, numpy as np, pytest
        from jax.sharding import Mesh, NamedSharding, PartitionSpec

        def total(processes):
            devices = [each for each in jax.devices() if each.process_index in processes]
            mesh = Mesh(np.array(devices), ("x",))
            array = jax.make_array_from_callback(
                (mesh.size,), NamedSharding(mesh, PartitionSpec("x")), lambda _: np.ones(1)
            )
            jax.jit(jnp.sum, out_shardings=NamedSharding(mesh, PartitionSpec()))(array)

        @pytest.mark.multihost(ranks=3, backend="jax", timeout=25)
        def test_ring(world):
            for pair in [[(0, 1), (0, 2)], [(1, 2), (0, 1)], [(0, 2), (1, 2)]][world.rank]:
                total(pair)

        @pytest.mark.multihost(ranks=4, backend="jax", timeout=25)
        def test_bystanders(world):
            pair = (0, 1) if world.rank < 2 else (2, 3)
            for _ in range(2 if world.rank == 2 else 1):
                total(pair)
        """
    )
    found = {name: verdict["diagnosis"] for name, verdict in worlds.verdicts.items()}
    assert (found["test_ring"]["kind"], found["test_ring"]["waiting"]) == ("deadlock", [0, 1, 2])
    bystanders = found["test_bystanders"]
    assert (bystanders["kind"], bystanders["culprits"]) == ("finished", [3])
    assert bystanders["operation"]["group"] == [2, 3]
    assert "► rank 3" in worlds.stdout
