"""Ranks that are held until the others wait: real ranks, real waits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

HEAD = """
import os, threading, time
import pytest
from pytest_multihost import at, faults

def held(*ranks, backend="none", point=None, size=3, timeout=30, **limits):
    fault = faults.hold(rank=list(ranks), at=point or at.sync_point("x"), **limits)
    return pytest.mark.multihost(ranks=size, timeout=timeout, backend=backend, faults=[fault])
"""


def reasons(verdict: Mapping[str, Any]) -> Mapping[str, list[str]]:
    """Return why each rank was let go."""
    found: Mapping[str, list[str]] = verdict["faults"][0]["released"]
    return found


@pytest.mark.program(
    HEAD
    + """
@held(1)
def test_barrier(world, shared_tmp_path):
    if world.rank == 1:
        world.sync_point("x")
        assert {each.name for each in shared_tmp_path.iterdir()} == {"0", "2"}
    else:
        time.sleep(0.15 * (world.rank + 1))
        (shared_tmp_path / str(world.rank)).touch()
    world.barrier()

@held(0, 1)
def test_two(world, shared_tmp_path):
    if world.rank < 2:
        world.sync_point("x")
        assert (shared_tmp_path / "2").exists()
    else:
        time.sleep(0.2)
        (shared_tmp_path / "2").touch()
    world.barrier()

@held(0, 1, 2)
def test_all(world, shared_tmp_path):
    time.sleep(0.1 * world.rank)
    (shared_tmp_path / str(world.rank)).touch()
    world.sync_point("x")
    assert len([*shared_tmp_path.iterdir()]) == 3

@held(1)
def test_thread(world, shared_tmp_path):
    if world.rank == 1:
        thread = threading.Thread(target=world.sync_point, args=["x"])
        thread.start()
        thread.join()
        assert len([*shared_tmp_path.iterdir()]) == 2
    else:
        time.sleep(0.1)
        (shared_tmp_path / str(world.rank)).touch()
    world.barrier()

@held(1)
def test_pipe(world, shared_tmp_path):
    "Nothing is recorded of these waits."
    path = shared_tmp_path / f"pipe-{world.rank}"
    if world.rank != 1:
        time.sleep(0.1)
        os.mkfifo(path)
        path.read_bytes()
    else:
        world.sync_point("x")
        for rank in (0, 2):
            (shared_tmp_path / f"pipe-{rank}").write_bytes(b"go on")
"""
)
def test_a_rank_is_held_until_the_others_wait(worlds) -> None:
    """Whoever they are, however they wait; what sleeps for a while comes first to where it waits.

    The call at the point goes on as if nothing had been.
    """
    worlds.run.assert_outcomes(passed=5)
    found = {name: reasons(each) for name, each in worlds.verdicts.items()}
    assert found["test_two"] == {"0": ["others wait"], "1": ["others wait"]}
    assert {reason for ranks in found.values() for each in ranks.values() for reason in each} == {
        "others wait"
    }


@pytest.mark.program(
    HEAD
    + """
@held(1)
def test_left(world):
    time.sleep(0.05 * world.rank)
    world.sync_point("x")

@held(1)
def test_poll(world, shared_tmp_path):
    world.sync_point("x")
    if world.rank == 1:
        (shared_tmp_path / "done").touch()
    while not (shared_tmp_path / "done").exists():
        time.sleep(0.01)

@held(1, max_s=0.3)
def test_compute(world):
    world.sync_point("x")
    ends = time.monotonic() + 1
    while world.rank == 0 and time.monotonic() < ends:
        pass
    world.barrier()

@held(1, min_s=0.5)
def test_least(world):
    began = time.monotonic()
    world.sync_point("x")
    assert world.rank != 1 or time.monotonic() - began > 0.45
    world.barrier()
"""
)
def test_why_a_rank_goes_on_where_others_do_not_wait(worlds) -> None:
    """They have left, or look again and again, or compute for longer than the hold may be."""
    worlds.run.assert_outcomes(passed=4)
    found = {name: reasons(each)["1"] for name, each in worlds.verdicts.items()}
    assert found == {
        "test_left": ["others have left"],
        "test_poll": ["others poll"],
        "test_compute": ["max_s"],
        "test_least": ["others wait"],
    }


@pytest.mark.program(
    HEAD
    + """
@held(0)
def test_it(world, shared_tmp_path):
    "Whoever finds no marker waits where nobody comes."
    if world.rank == 0:
        world.sync_point("x")
        (shared_tmp_path / "marker").touch()
    elif not (shared_tmp_path / "marker").exists():
        world.barrier("made")
    world.barrier("end")
"""
)
def test_a_hold_makes_a_hidden_hang_certain(worlds) -> None:
    """The page says how long the rank was held, and until when; its token repeats it."""
    verdict = worlds.verdicts["test_it"]
    assert (verdict["outcome"], reasons(verdict)) == ("hung", {"0": ["others wait"]})
    assert "s: others wait" in worlds.stdout
    assert "faults.hold(rank=0, until='others-wait', at=at.sync_point('x'))" in worlds.stdout


@pytest.mark.program(
    HEAD
    + """
@held(1, min_s=3, timeout=60)
def test_it(world):
    world.sync_point("x")
    world.barrier()

@held(1, min_s=2, timeout=60)
def test_raised(world, shared_tmp_path):
    world.sync_point("x")
    if world.rank == 0:
        raise ValueError("planned")
    if world.rank == 1:
        (shared_tmp_path / "went on").touch()
        print("went on")
"""
)
def test_a_world_in_which_a_rank_is_held_is_not_judged(worlds) -> None:
    """Nobody can move for longer than a proof takes; nor is it when another one has raised."""
    worlds.run.assert_outcomes(passed=1, failed=1)
    assert worlds.verdicts["test_raised"]["outcome"] == "failed"
    assert "went on" in worlds.output("test_raised", 1)


@pytest.mark.program(
    HEAD
    + """
@held(1, min_s=60, timeout=2)
def test_it(world):
    world.sync_point("x")
    world.barrier()
"""
)
def test_a_held_rank_ends_with_its_world(worlds) -> None:
    """And answers when it is asked for its stack."""
    worlds.run.assert_outcomes(failed=1)
    assert "sync_point" in (worlds.directory("test_it") / "rank-1.stacks").read_text()


@pytest.mark.program(
    HEAD
    + """
import torch, torch.distributed as dist

@held(1, backend="gloo", point=at.collective("all_reduce", nth=3))
def test_reduce(world):
    for _ in range(4):
        dist.all_reduce(torch.ones(1))

@held(1, backend="gloo", point=at.collective("send"), size=2)
def test_transfer(world):
    if world.rank:
        dist.send(torch.ones(1 << 20), 0)
    else:
        dist.recv(torch.ones(1 << 20), 1)

@held(1, point=at.collective("store.set"), size=2)
def test_store(world, shared_tmp_path):
    store = dist.FileStore(str(shared_tmp_path / "store"), 2)
    if world.rank:
        store.set("key", "value")
    assert store.get("key") == b"value"

@held(1, backend="jax", point=at.collective("sync_global_devices", nth=2))
def test_jax(world):
    from jax.experimental.multihost_utils import sync_global_devices
    for number in range(3):
        sync_global_devices(str(number))
"""
)
def test_ranks_in_operations_of_a_runtime_wait(worlds) -> None:
    """Also in a transfer, at a store, in what jax compiles, and where a runtime's threads poll."""
    worlds.run.assert_outcomes(passed=4)
    assert {*map(str, map(reasons, worlds.verdicts.values()))} == {"{'1': ['others wait']}"}
