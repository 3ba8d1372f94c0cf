"""Points at which faults strike, in real ranks; and that a token strikes there again and again."""

from __future__ import annotations

import re

import pytest

from pytest_multihost import faults
from pytest_multihost.model.fault import resolve

HEAD = """
import asyncio
import pytest
from pytest_multihost import at, faults

class Planned(Exception):
    pass

def planned(point):
    "Both ranks raise there, so that nobody waits for anybody."
    error = f"{Planned.__module__}:Planned"
    return pytest.mark.multihost(
        ranks=2, timeout=30, faults=[faults.raise_at(rank="all", error=error, at=point)])

calls = []

def work(fails=False):
    calls.append("work")
    if fails:
        raise ValueError

class Base:
    def inherited(self):
        calls.append(self)

class Thing(Base):
    def method(self, value):
        return self, value

    @staticmethod
    def static(value):
        return value

    @classmethod
    def made(cls, value):
        return cls, value

    async def coroutine(self):
        return "done"
"""


def test_a_fault_strikes_functions_of_every_kind_before_and_after(run_worlds) -> None:
    """They return what they did before and after it; only the second call is struck."""
    worlds = run_worlds(
        HEAD
        + """
@planned(at.call("test_worlds:work", when="after"))
def test_after(world):
    with pytest.raises(Planned):
        work()
    assert calls == ["work"]
    work()

@planned(at.call("test_worlds:work", nth=2, when="after"))
def test_after_a_raise(world):
    with pytest.raises(ValueError):
        work(fails=True)
    with pytest.raises(Planned) as caught:
        work(fails=True)
    assert isinstance(caught.value.__context__, ValueError)

@planned(at.call("test_worlds:work"))
def test_before(world):
    with pytest.raises(Planned):
        work()
    assert calls == []

@planned(at.call("test_worlds:Thing.method", nth=2))
def test_method(world):
    thing = Thing()
    assert thing.method(1) == (thing, 1)
    with pytest.raises(Planned):
        Thing().method(value=2)
    assert Thing.method(thing, 3) == (thing, 3)

@planned(at.call("test_worlds:Thing.inherited", nth=2))
def test_inherited(world):
    Thing().inherited()
    Base().inherited()  # not of Thing
    with pytest.raises(Planned):
        Thing().inherited()

@planned(at.call("test_worlds:Thing.static", nth=2))
def test_static(world):
    assert Thing.static(1) == 1
    with pytest.raises(Planned):
        Thing().static(2)

@planned(at.call("test_worlds:Thing.made", nth=2))
def test_class(world):
    assert Thing.made(1) == (Thing, 1)
    with pytest.raises(Planned):
        Thing().made(2)

@planned(at.call("test_worlds:Thing.coroutine", nth=2))
def test_coroutine(world):
    assert asyncio.iscoroutinefunction(Thing.coroutine)
    assert asyncio.run(Thing().coroutine()) == "done"
    unawaited = Thing().coroutine()
    with pytest.raises(Planned):
        asyncio.run(unawaited)
    assert asyncio.run(Thing().coroutine()) == "done"

@pytest.fixture(autouse=True)
def put_back(world):
    yield
    kept = [getattr(Thing, name) for name in ("method", "static", "made", "coroutine")]
    assert not any(hasattr(each, "__wrapped__") for each in (work, *kept))
    assert "inherited" not in vars(Thing)
"""
    )
    worlds.run.assert_outcomes(passed=8)
    for verdict in worlds.all_verdicts:
        [fault] = verdict["faults"]
        assert [len(times) for times in fault["fired"].values()] == [1, 1], verdict["nodeid"]


def test_a_fault_strikes_before_a_collective_is_entered(run_worlds) -> None:
    """Torch's and jax's, by number and by name; the next one works, so none was left half-way."""
    worlds = run_worlds(
        HEAD
        + """
def with_backend(backend, point):
    return lambda test: pytest.mark.multihost(backend=backend)(planned(point)(test))

@with_backend("gloo", at.collective("all_reduce", nth=2))
def test_gloo(world):
    import torch, torch.distributed as dist
    x = torch.ones(2)
    dist.all_reduce(x)
    dist.barrier()
    with pytest.raises(Planned):
        dist.all_reduce(x)
    dist.all_reduce(x)
    assert x[0] == 4

@with_backend("gloo", at.collective(nth=3))
def test_gloo_any(world):
    import torch, torch.distributed as dist
    dist.barrier()
    dist.broadcast(torch.ones(2), 0)
    with pytest.raises(Planned):
        dist.barrier()

@with_backend("jax", at.collective("process_allgather", nth=2))
def test_jax(world):
    import numpy
    from jax.experimental import multihost_utils
    multihost_utils.sync_global_devices("a")
    multihost_utils.process_allgather(numpy.ones(2))
    with pytest.raises(Planned):
        multihost_utils.process_allgather(numpy.ones(2))
    assert multihost_utils.process_allgather(numpy.ones(2)).shape == (2, 2)

@with_backend("jax", at.collective(nth=2))
def test_jax_any(world):
    from jax.experimental import multihost_utils
    multihost_utils.sync_global_devices("a")
    with pytest.raises(Planned):
        multihost_utils.sync_global_devices("b")
""",
    )
    worlds.run.assert_outcomes(passed=4)


def test_a_point_that_was_never_reached_fails_the_test_with_what_was(run_worlds) -> None:
    """One failure for each kind of point; a glob that matches nothing is one of them."""
    points = {
        "call": ("at.call('test_worlds:work', nth=3)", "rank 0 passed test_worlds:work x1"),
        "sync_point": ("at.sync_point('y')", "rank 0 passed x x2"),
        "collective": ("at.collective(op='all_gather')", "rank 0 passed all_reduce x1"),
        "io": ("at.io('*/nothing/*')", "rank 0 passed none such"),
    }
    tests = "".join(
        f"""
@pytest.mark.multihost(ranks=2, backend="gloo", faults=[faults.kill(rank=0, at={point})])
def test_{name}(world, tmp_path):
    import torch, torch.distributed as dist
    work()
    world.sync_point("x")
    world.sync_point("x")
    dist.all_reduce(torch.ones(2))
    (tmp_path / "x").write_text("")
"""
        for name, (point, _) in points.items()
    )
    worlds = run_worlds(HEAD + tests)
    worlds.run.assert_outcomes(failed=4)
    for name, (point, passed) in points.items():
        words = f"faults.kill(rank=0, at={point}) never fired on rank 0: {passed}"
        assert f"FAILED test_worlds.py::test_{name} - {words}" in worlds.stdout


LATE = (
    HEAD
    + """
import os

@pytest.mark.multihost(ranks=2, timeout=30, faults=[
    faults.delay(rank="one", seconds=0.4, at=at.sync_point("elect"))])
def test_it(world, shared_tmp_path):
    world.barrier("begin")
    world.sync_point("elect")
    try:  # whoever comes first leads; the code below takes it for granted that this is rank 0
        os.close(os.open(shared_tmp_path / "leader", os.O_CREAT | os.O_EXCL))
        leads = True
    except FileExistsError:
        leads = False
    if leads and world.rank == 1:
        world.barrier("led by the wrong one")
    world.barrier("end")
"""
)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_token_repeats_a_hang_that_only_one_order_of_the_ranks_has(run_worlds) -> None:
    """Ten times of ten, whatever the seed; and the other order passes."""
    fault = faults.delay(rank="one", seconds=1)
    drawn = {seed: resolve([fault], size=2, seed=seed)[0].ranks for seed in range(20)}
    late, early = (next(s for s in drawn if drawn[s] == (rank,)) for rank in (0, 1))
    run_worlds(LATE, "--multihost-seed", str(early)).run.assert_outcomes(passed=1)
    first = run_worlds(LATE, "--multihost-seed", str(late))
    [token] = set(re.findall(r"--multihost-replay (\S+)", first.stdout))
    for seed in range(10):
        again = run_worlds(LATE, "--multihost-replay", token, "--multihost-seed", str(seed))
        verdict = again.verdicts["test_it"]
        told = (verdict["outcome"], [*verdict["faults"][0]["fired"]], verdict["replay"])
        assert told == ("hung", ["0"], token)
        assert (
            verdict["diagnosis"]["summary"] == (first.verdicts["test_it"]["diagnosis"]["summary"])
        )
