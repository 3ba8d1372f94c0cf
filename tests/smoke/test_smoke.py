"""One world for each launch and backend: it passes, it fails, and its hang has a culprit."""

from __future__ import annotations

import pytest
from runtimes import needs

PROGRAM = """
import pytest, time

pytestmark = pytest.mark.multihost(ranks=2, backend="$backend", timeout=60)

def test_passes(world, shared_tmp_path):
    assert world.gather(world.rank) == [0, 1]
    assert world.gather(str(shared_tmp_path)) == [str(shared_tmp_path)] * 2

def test_fails(world):
    world.barrier("together")
    assert world.rank != 1

def test_hangs(world):
    if world.rank == 1:
        time.sleep(600)
    $operation
"""

FULL = pytest.mark.runtimes
BACKENDS = [
    pytest.param("none", "world.barrier('b')", id="none"),
    pytest.param(
        "gloo",
        "import torch, torch.distributed; torch.distributed.all_reduce(torch.ones(1))",
        id="gloo",
        marks=needs("torch"),
    ),
    pytest.param(
        "jax",
        "from jax.experimental import multihost_utils as m; m.sync_global_devices('x')",
        id="jax",
        marks=needs("jax"),
    ),
]


# Each launch, and each backend: those together that share no code are worlds of the full tier.
PAIRS = [
    pytest.param(
        launch,
        *backend.values,
        id=f"{launch}-{backend.id}",
        marks=[*backend.marks, *([] if launch == "fork" or backend.id == "none" else [FULL])],
    )
    for launch in ("fork", "server", "spawn")
    for backend in BACKENDS
]


@pytest.mark.parametrize(("launch", "backend", "operation"), PAIRS)
@pytest.mark.program(PROGRAM, "--multihost-launch=$launch")
@pytest.mark.claim("test jax instead of torch")
def test_a_world_passes_fails_and_hangs(worlds, launch, backend, operation) -> None:
    """Each result is that of the rank that made it, and the next world runs normally."""
    worlds.run.assert_outcomes(passed=1, failed=2)
    outcomes = {name: verdict["outcome"] for name, verdict in worlds.verdicts.items()}
    assert outcomes == {"test_passes": "passed", "test_fails": "failed", "test_hangs": "hung"}
    diagnosis = worlds.verdicts["test_hangs"]["diagnosis"]
    assert (diagnosis["detected_by"], diagnosis["culprits"]) == ("proof", [1])
    assert diagnosis["where"]["source"] == "time.sleep(600)"
    assert diagnosis["waiting"] == [0]
