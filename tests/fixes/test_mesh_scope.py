from __future__ import annotations

import pytest

from pytest_multihost import World
from pytest_multihost.fixes import UnknownVersionError
from pytest_multihost.fixes.mesh_scope import (
    local_mesh_scope,
    patch_orbax_mesh_scope,
    without_context_mesh,
)

RESTORES = """
import contextlib
import os
import jax
import pytest
from orbax.checkpoint import version
from pytest_multihost.fixes.mesh_scope import patch_orbax_mesh_scope, without_context_mesh
from single_replica import check, mesh, restore, save

pytestmark = pytest.mark.multihost(ranks=3, backend="jax", local_devices=2, timeout=60)

def restore_within_mesh(path, patch, restore=restore):
    assert version.__version__ == os.environ["ORBAX"]
    save(path)
    with patch, jax.set_mesh(mesh()):
        check(restore(path))
        assert jax.sharding.get_mesh() == mesh()

def test_none(shared_tmp_path):
    restore_within_mesh(shared_tmp_path / "ckpt", contextlib.nullcontext())
"""

PATCHED = """
@pytest.mark.multihost_expect(
    "raised", culprits=[0], waiting=[1, 2],
    match="rank 0 raised .* incompatible devices .* ranks 1,2 wait for it in jit_")
def test_published(shared_tmp_path):
    restore_within_mesh(shared_tmp_path / "ckpt", patch_orbax_mesh_scope("published"))

def test_complete(shared_tmp_path):
    restore_within_mesh(shared_tmp_path / "ckpt", patch_orbax_mesh_scope())

def test_in_a_thread(shared_tmp_path):
    alone = without_context_mesh(restore)
    restore_within_mesh(shared_tmp_path / "ckpt", contextlib.nullcontext(), alone)
"""


@pytest.mark.timeout(200)
@pytest.mark.claim("apply the fix for a hang that others have published")
def test_mended_by_half_an_error_becomes_a_hang_and_mended_whole_it_restores(run_restores) -> None:
    """Without a patch all fail and nobody waits; as published, the reader alone is to blame."""
    worlds = run_restores(RESTORES + PATCHED)
    worlds.run.assert_outcomes(passed=3, failed=1)

    none = worlds.verdicts["test_none"]
    assert [each["outcome"] for each in none["rank_results"]] == ["failed"] * 3
    assert none["diagnosis"] is None

    published = worlds.verdicts["test_published"]
    outcomes = [each["outcome"] for each in published["rank_results"]]
    assert (published["expected"], outcomes) == (True, ["failed", "collateral", "collateral"])
    where = published["diagnosis"]["where"]
    assert (where["rank"], where["file"], where["function"]) == (0, "single_replica.py", "restore")
    assert where["source"].startswith("return checkpointer.restore(path")
    text = published["rank_results"][0]["error"]["text"]
    assert "jnp.expand_dims(s.data, axis=0)" in text  # upstream's own line

    for fixed in ("test_complete", "test_in_a_thread"):
        assert worlds.verdicts[fixed]["outcome"] == "passed"


@pytest.mark.runtimes
def test_the_newest_orbax_needs_no_patch_and_takes_none(run_restores) -> None:
    """Upstream has mended both places."""
    worlds = run_restores(
        RESTORES
        + """
from pytest_multihost.fixes import UnknownVersionError

def test_patch():
    with pytest.raises(UnknownVersionError, match="needs no patch"), patch_orbax_mesh_scope():
        pass
""",
        orbax="newest",
    )
    worlds.run.assert_outcomes(passed=2)


@pytest.mark.multihost(ranks=2, backend="jax", local_devices=4, timeout=60)
def test_what_a_process_computes_alone_needs_a_scope_of_its_own(world: World) -> None:
    """Zeros on half of its devices, and one shard's new axis; a `with mesh:` changes nothing."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    everywhere = jax.make_mesh((2, 4), ("replica", "model"))
    mine = Mesh(np.array(jax.local_devices()[2:]), ("model",))
    shard = jax.device_put(np.ones(3, np.float32), jax.local_devices()[3])

    def zeros() -> jax.Array:
        sharding = NamedSharding(mine, PartitionSpec("model"))
        return jax.jit(lambda: jnp.zeros(8), out_shardings=sharding)()

    def expand() -> jax.Array:
        return jnp.expand_dims(shard, 0)

    refused = pytest.raises(ValueError, match="incompatible devices for jitted computation")
    with jax.set_mesh(everywhere):
        for compute in (zeros, expand):
            with refused:
                compute()
        with refused, pytest.warns(DeprecationWarning, match="set_mesh"), mine:
            zeros()
        with local_mesh_scope(mine):
            assert zeros().sharding.device_set == set(mine.devices.flat)
            with refused:
                expand()
        with local_mesh_scope(None):
            assert zeros().sharding.device_set == set(mine.devices.flat)
            assert expand().sharding.device_set == {jax.local_devices()[3]}
        assert without_context_mesh(expand)().shape == (1, 3)
        assert jax.sharding.get_mesh() == everywhere
    assert jax.sharding.get_mesh().empty


@pytest.mark.multihost(ranks=1, timeout=60)
def test_a_function_called_without_the_mesh_returns_and_raises_what_it_does() -> None:
    """With the arguments and the context variables of its caller, and an error's own lines."""
    from contextvars import ContextVar

    told = ContextVar[str]("told")
    told.set("by the caller")

    @without_context_mesh
    def divide(one: int, *, by: int) -> tuple[float, str]:
        """Divide."""
        return one / by, told.get()

    assert divide(6, by=4) == (1.5, "by the caller")
    assert (divide.__name__, divide.__doc__) == ("divide", "Divide.")
    with pytest.raises(ZeroDivisionError) as caught:
        divide(6, by=0)
    assert caught.traceback[-1].name == "divide"


@pytest.mark.multihost(ranks=1, timeout=60)
def test_a_patched_orbax_is_whole_again_afterwards(monkeypatch) -> None:
    """And one that nobody has looked at is not touched, nor for a part that there is not."""
    from orbax.checkpoint import version
    from orbax.checkpoint._src.multihost import multislice
    from orbax.checkpoint._src.serialization import jax_array_handlers

    def state() -> dict[str, object]:
        return vars(multislice) | vars(jax_array_handlers)

    before = state()
    with patch_orbax_mesh_scope():
        changed = {name for name, value in state().items() if value is not before[name]}
    assert changed == {
        "_globalize_single_replica_arrays",
        "_single_replica_deserialize_and_broadcast",
        "broadcast_one_replica_to_all",
    }
    assert state() == before
    with pytest.raises(ValueError, match="not 'half'"), patch_orbax_mesh_scope("half"):  # type: ignore[arg-type]
        pass
    monkeypatch.setattr(version, "__version__", "0.11.31")
    with pytest.raises(UnknownVersionError), patch_orbax_mesh_scope():
        pass
    assert state() == before
