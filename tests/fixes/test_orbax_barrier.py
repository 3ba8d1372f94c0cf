from __future__ import annotations

from collections.abc import Mapping

import pytest

from pytest_multihost import World
from pytest_multihost.fixes import UnknownVersionError, refuse_unknown
from pytest_multihost.fixes.orbax_barrier import (
    BarrierTimeoutError,
    patch_orbax_single_replica_restore,
    pre_broadcast_barrier,
)

HEAD = """
import os
from pathlib import Path
import pytest
from orbax.checkpoint import version
from pytest_multihost import at, faults
from pytest_multihost.fixes.orbax_barrier import patch_orbax_single_replica_restore
from single_replica import check, restore, save

CHECKPOINT = Path(__file__).parent / "ckpt"
late = pytest.mark.multihost_expect("straggler", culprits=[0], waiting=[1, 2, 3])

def slow_primary(seconds, at, **given):
    "Its restore meets the fault twice, one after the other; a hang is judged within the first."
    fault = faults.slow_io(rank=0, seconds=seconds, path="*/ckpt/d/*", at=at)
    return pytest.mark.multihost(ranks=4, backend="jax", local_devices=2, faults=[fault], **given)
"""

WARM = (
    HEAD
    + """
def slow(seconds):
    "XLA gives up after 4 s instead of half an hour."
    env = {"XLA_FLAGS": "--xla_cpu_collective_timeout_seconds=4"}
    return slow_primary(seconds, at.sync_point("connected"), timeout=60, env=env, clock="jump")

def restore_late(world, path, barrier):
    assert version.__version__ == os.environ["ORBAX"]
    save(path)
    with patch_orbax_single_replica_restore(barrier, timeout_s=50):
        restore(path)
        world.sync_point("connected")
        check(restore(path))

@late
@slow(10)
def test_unfixed(world, shared_tmp_path):
    restore_late(world, shared_tmp_path / "ckpt", None)

@late
@slow(10)
def test_device(world, shared_tmp_path):
    restore_late(world, shared_tmp_path / "ckpt", "device")

@slow(4)
def test_coordination(world, shared_tmp_path):
    restore_late(world, shared_tmp_path / "ckpt", "coordination")
"""
)

SAVING = (
    HEAD
    + """
@pytest.mark.multihost(ranks=1, backend="jax", local_devices=2)
def test_save(world):
    save(CHECKPOINT)
"""
)

COLD = (
    HEAD
    + """
def slow(seconds):
    return slow_primary(seconds, at.start(), timeout=90, clock="jump")

def restore_late(barrier):
    with patch_orbax_single_replica_restore(barrier, timeout_s=80):
        check(restore(CHECKPOINT))

@late
@slow(40)
def test_unfixed(world):
    restore_late(None)

@slow(18)
def test_coordination(world):
    restore_late("coordination")
"""
)


def said_by(verdict) -> set[str]:
    """Return what ranks 1 to 3 raised, each up to its first colon but one."""
    errors = [each["error"] for each in verdict["rank_results"][1:]]
    return {":".join(error["message"].split(":")[:2]) for error in errors if error is not None}


@pytest.mark.timeout(200)
@pytest.mark.parametrize(
    ("orbax", "late"),
    [
        ("installed", {"test_unfixed": "all-reduce"}),
        pytest.param("installed", {"test_device": "AllGather"}, marks=pytest.mark.runtimes),
        pytest.param(
            "newest",
            {"test_unfixed": "all-reduce", "test_device": "AllGather"},
            marks=pytest.mark.runtimes,
        ),
    ],
    ids=["none", "as published", "newest"],
)
@pytest.mark.claim("apply the fix for a hang that others have published")
def test_a_slow_reader_fails_the_others_unless_they_wait_on_the_coordination_service(
    run_restores, orbax: str, late: Mapping[str, str]
) -> None:
    """The barrier on devices, as published, fails like none at all: only in another collective.

    Ranks wait for gloo's limit each on its own, so the world may end while one still waits.
    """
    worlds = run_restores(WARM, "-k", " or ".join([*late, "test_coordination"]), orbax=orbax)
    worlds.run.assert_outcomes(passed=len(late) + 1)
    for test, collective in late.items():
        verdict = worlds.verdicts[test]
        outcomes = [each["outcome"] for each in verdict["rank_results"]]
        assert verdict["outcome"] == "hung"
        assert outcomes[0] == "hung"
        assert {"collateral"} <= set(outcomes[1:]) <= {"collateral", "hung"}
        assert said_by(verdict) == {f"UNKNOWN: Gloo {collective} failed"}
    [fault] = worlds.verdicts["test_coordination"]["faults"]
    assert worlds.verdicts["test_coordination"]["duration_s"] > 2 * 4
    assert set(fault["fired"]) == {"0"}


@pytest.mark.runtimes
@pytest.mark.timeout(200)
def test_the_first_broadcast_fails_after_half_a_minute_that_nobody_has_set(run_restores) -> None:
    """The restore is the first collective, and all limits are as they come. Both run at once."""
    run_restores(SAVING).run.assert_outcomes(passed=1)
    worlds = run_restores(COLD, "-p", "xdist", "-n", "2")
    worlds.run.assert_outcomes(passed=2)
    verdict = worlds.verdicts["test_unfixed"]
    assert said_by(verdict) == {"UNKNOWN: Gloo context initialization failed"}
    assert worlds.verdicts["test_coordination"]["duration_s"] > 2 * 18


@pytest.mark.multihost(ranks=3, backend="jax", timeout=30)
def test_the_barrier_names_who_is_missing_and_a_latecomer_is_told(world: World) -> None:
    """Processes 0 and 2 have met before, under this name and another: that does not count."""
    pre_broadcast_barrier("here", timeout_s=20)
    pre_broadcast_barrier("here", timeout_s=20)
    if world.rank != 1:
        pre_broadcast_barrier("here", timeout_s=20, processes=[0, 2])
        with pytest.raises(BarrierTimeoutError, match="process 1 did not arrive") as caught:
            pre_broadcast_barrier("here", timeout_s=0.5)
        assert (caught.value.name, caught.value.missing) == ("here", (1,))
    world.barrier("gave up")
    if world.rank == 1:
        with pytest.raises(BarrierTimeoutError, match="last came after others gave up") as caught:
            pre_broadcast_barrier("here", timeout_s=0.5)
        assert caught.value.missing == ()


@pytest.mark.multihost(ranks=1, timeout=30)
def test_one_process_alone_meets_nobody() -> None:
    """Nor does it need a coordination service."""
    pre_broadcast_barrier("here", timeout_s=20)


@pytest.mark.multihost(ranks=1, timeout=60)
def test_an_orbax_that_nobody_has_looked_at_is_left_as_it_is(monkeypatch) -> None:
    """So it is for a barrier that there is not; a known orbax is whole again afterwards."""
    from orbax.checkpoint import version
    from orbax.checkpoint._src.multihost import multislice

    original = multislice.broadcast_one_replica_to_all
    with patch_orbax_single_replica_restore():
        assert multislice.broadcast_one_replica_to_all is not original
    assert multislice.broadcast_one_replica_to_all is original
    with (
        pytest.raises(ValueError, match="not 'gloo'"),
        patch_orbax_single_replica_restore("gloo"),  # type: ignore[arg-type]
    ):
        pass
    monkeypatch.setattr(version, "__version__", "0.13.0")
    with (
        pytest.raises(UnknownVersionError, match=r"0\.13\.0 was not patched"),
        patch_orbax_single_replica_restore(),
    ):
        pass
    assert multislice.broadcast_one_replica_to_all is original


@pytest.mark.parametrize("found", ["0.11.32", "0.11.40", "0.12.8"])
def test_versions_within_the_known_ones_may_be_patched(found: str) -> None:
    """The first and the last as well."""
    refuse_unknown("orbax", found, first="0.11.32", last="0.12.8", instead="")


@pytest.mark.parametrize("found", ["0.11.4", "0.11.31", "0.12.9", "0.12.10", "0.12.8rc1", "1", ""])
def test_other_versions_may_not(found: str) -> None:
    """Numbers are compared, not texts; what is no release is not known."""
    with pytest.raises(UnknownVersionError, match=r"made for 0\.11\.32 to 0\.12\.8"):
        refuse_unknown("orbax", found, first="0.11.32", last="0.12.8", instead="")
