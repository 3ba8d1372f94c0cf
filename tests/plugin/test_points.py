"""Points at which faults strike, in real ranks; and that a token strikes there again and again."""

from __future__ import annotations

import json
import re

import pytest

from pytest_multihost import faults
from pytest_multihost.intercept.recorded import recorded_points
from pytest_multihost.testing import Event, PointsRecorded, from_json, resolve

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


@pytest.mark.program(
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
def test_a_fault_strikes_functions_of_every_kind_before_and_after(worlds) -> None:
    """They return what they did before and after it; only the second call is struck."""
    worlds.run.assert_outcomes(passed=8)
    for verdict in worlds.all_verdicts:
        [fault] = verdict["faults"]
        assert [len(times) for times in fault["fired"].values()] == [1, 1], verdict["nodeid"]


@pytest.mark.program(
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
"""
)
def test_a_fault_strikes_before_a_collective_is_entered(worlds) -> None:
    """Torch's and jax's, by number and by name; the next one works, so none was left half-way."""
    worlds.run.assert_outcomes(passed=4)


FILES = """
import contextlib, glob, os, shutil
from os import remove

def on(call, pattern="*/struck/*", nth=1):
    error = f"{Planned.__module__}:Planned"
    fault = faults.raise_at(rank=1, error=error, at=at.io(pattern, call=call, nth=nth))
    return pytest.mark.multihost(ranks=2, timeout=30, faults=[fault])

@contextlib.contextmanager
def struck(world):
    "What is within raises on rank 1, and on rank 0 it does what it should."
    if world.rank == 0:
        yield
    else:
        with pytest.raises(Planned):
            yield

@pytest.fixture
def folder(tmp_path):
    for name in ("struck", "spared"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a").write_text("")
    return tmp_path / "struck"

@pytest.fixture(autouse=True)
def put_back(world):
    yield
    names = ("stat", "rename", "replace", "unlink", "mkdir", "listdir", "scandir", "fsync")
    assert not any(hasattr(getattr(os, name), "__wrapped__") for name in names)
    assert remove is os.remove
"""


@pytest.mark.program(
    HEAD
    + FILES
    + """
@on("stat")
def test_stat(world, folder):
    (folder.parent / "spared" / "a").stat()
    with struck(world):
        assert (folder / "a").exists()
    assert os.path.isfile(folder / "a") and os.access(folder / "a", os.R_OK)

@on("rename")
def test_rename_to(world, folder):
    os.replace(folder.parent / "spared" / "a", folder.parent / "spared" / "b")
    with struck(world):
        os.replace(folder.parent / "spared" / "b", folder / "b")
    assert (folder / "b").exists() == (world.rank == 0)

@on("rename")
def test_rename_from(world, folder):
    with struck(world):
        (folder / "a").rename(folder.parent / "spared" / "b")

@on("link", nth=2)
def test_link(world, folder):
    os.link(folder / "a", folder / "b")
    with struck(world):
        (folder / "c").symlink_to("a")

@on("unlink")
def test_unlink(world, folder):
    with struck(world):
        (folder / "a").unlink()

@on("unlink")
def test_imported_by_name(world, folder):
    with struck(world):
        remove(folder / "a")

@on("mkdir")
def test_mkdir(world, folder):
    with struck(world):
        os.makedirs(folder / "c" / "d")

@on("rmdir", "*/struck")
def test_rmdir(world, folder):
    with struck(world):
        shutil.rmtree(folder)
    assert not (folder / "a").exists()

@on("listdir", "*/struck")
def test_listdir(world, folder):
    with struck(world):
        glob.glob(str(folder / "*"))
    assert os.listdir(folder) == [each.name for each in folder.iterdir()] == ["a"]

@on("rename", nth=2)
def test_rename_of_what_is_moved_away(world, folder):
    (folder / "a").rename(folder.parent / "spared" / "c")
    (folder.parent / "spared" / "c").rename(folder.parent / "spared" / "d")
    with struck(world):
        (folder.parent / "spared" / "d").rename(folder / "a")

@on("fsync")
def test_fsync(world, folder):
    with (folder / "a").open("w") as file:
        file.write("text")
        file.flush()
        with struck(world):
            os.fsync(file.fileno())

@on("write", nth=2)
def test_write(world, folder):
    (folder / "a").write_text("text")
    with struck(world):
        (folder / "a").write_text("more")

@on("open", nth=2)
def test_open_relative_to_a_folder(world, folder):
    descriptor = os.open(folder, os.O_RDONLY)
    with struck(world):
        os.close(os.open("a", os.O_RDONLY, dir_fd=descriptor))
    os.close(descriptor)
"""
)
def test_a_fault_strikes_the_call_on_a_file_that_is_named(worlds) -> None:
    """Other calls on the file, calls on other files and other ranks are as ever."""
    worlds.run.assert_outcomes(passed=13)
    assert {tuple(each["faults"][0]["fired"]) for each in worlds.all_verdicts} == {("1",)}


@pytest.mark.program(
    HEAD
    + FILES
    + """
import torch, torch.distributed as dist

def at_operation(name, nth=1):
    fault = faults.raise_at(rank=1, error=f"{Planned.__module__}:Planned",
                            at=at.collective(name, nth=nth))
    return pytest.mark.multihost(ranks=2, timeout=30, backend="gloo", faults=[fault])

@on("open", nth=2)
def test_save_begins(world, folder):
    torch.save([1], folder.parent / "spared" / "b")
    with struck(world):
        torch.save([1], folder / "b")
    torch.save([1], folder / "b")
    assert torch.load(folder / "b") == [1]

@on("write")
def test_save_ends(world, folder):
    with struck(world):
        torch.save([1], folder / "b")

@at_operation("store.set")
def test_set(world, tmp_path):
    store = dist.FileStore(str(tmp_path / "store"), 1)
    store.add("a", 1)
    with struck(world):
        store.set("b", "1")
    store.set("c", "1")
    assert store.get("c") == b"1"

@at_operation("store.add", nth=2)
def test_add(world, tmp_path):
    store = dist.FileStore(str(tmp_path / "store"), 1)
    store.add("a", 1)
    with struck(world):
        store.add("a", 1)
    assert store.add("a", 1) == 3 - world.rank

@at_operation("all_gather_object", nth=2)
def test_gather(world):
    found = [None, None]
    dist.all_gather_object(found, world.rank)
    with struck(world):
        if world.rank:
            dist.all_gather_object(found, world.rank)
    assert found == [0, 1]

@at_operation(None, nth=2)
def test_any_counts_collectives_alone(world, tmp_path):
    dist.FileStore(str(tmp_path / "store"), 1).set("a", "1")
    dist.barrier()
    with struck(world):
        if world.rank:
            dist.barrier()
"""
)
def test_a_fault_strikes_where_torch_writes_and_where_a_store_is_used(worlds) -> None:
    """And where objects are gathered, which also counts as the collectives that it is made of."""
    worlds.run.assert_outcomes(passed=6)


@pytest.mark.program(
    HEAD
    + """
class Loader:
    batches = 3
    def __iter__(self):
        return iter(range(self.batches))
    def __len__(self):
        return self.batches

class Own:
    "Its own iterator."
    def __init__(self):
        self.left = [2, 1, 0]
    def __iter__(self):
        return self
    def __next__(self):
        if not self.left:
            raise StopIteration
        return self.left.pop()

class Twice(Loader):
    "Calls itself again, as grain's do."
    is_inner = False
    def __iter__(self):
        self.is_inner = not self.is_inner
        return type(self).__iter__(self) if self.is_inner else iter(range(self.batches))

LOADER, OTHER = Loader(), Loader()

def make():
    return Loader()

def generate():
    yield from range(3)

ITER = Loader.__iter__

@pytest.fixture(autouse=True)
def put_back(world):
    yield
    assert Loader.__iter__ is ITER and not hasattr(generate, "__wrapped__")

def drawn(loader):
    "Two epochs, and in which of all draws something was raised."
    found, count, struck = [], 0, []
    for epoch in range(2):
        iterator = iter(loader())
        while True:
            count += 1
            try:
                found.append(next(iterator))
            except StopIteration:
                break
            except Planned:
                struck.append(count)
    assert found == [0, 1, 2] * 2
    return struck

def sixth(name):
    return planned(at.batch(f"test_worlds:{name}", nth=6))

@sixth("Loader")
def test_class(world):
    assert drawn(Loader) == [6]

@sixth("LOADER")
def test_object(world):
    assert drawn(lambda: OTHER) == []
    assert drawn(lambda: LOADER) == [6]

@sixth("Twice")
def test_loader_that_calls_itself(world):
    assert drawn(Twice) == [6]

@sixth("make")
def test_function(world):
    assert drawn(lambda: OTHER) == []
    assert drawn(lambda: make()) == [6]
    assert len(make()) == 3 and type(make()) is Loader

@sixth("generate")
def test_generator(world):
    assert drawn(lambda: generate()) == [6]

@sixth("Own")
def test_iterator(world):
    assert drawn(Own) == [6]

@planned(at.batch("torch.utils.data:DataLoader", nth=2))
def test_torch(world):
    from torch.utils.data import DataLoader
    assert [*zip(range(1), DataLoader(range(4), batch_size=2))][0][1].tolist() == [0, 1]
    with pytest.raises(Planned):
        [*DataLoader(range(4), batch_size=2)]
"""
)
def test_a_fault_strikes_where_a_batch_is_drawn(worlds) -> None:
    """From generators, iterators, loaders, their classes; what is drawn is what it was."""
    worlds.run.assert_outcomes(passed=7)


def test_a_point_that_was_never_reached_fails_the_test_with_what_was(run_worlds) -> None:
    """One failure for each kind of point; a glob that matches nothing is one of them."""
    points = {
        "call": ("at.call('test_worlds:work', nth=3)", "rank 0 passed test_worlds:work x1"),
        "sync_point": ("at.sync_point('y')", "rank 0 passed x x2"),
        "collective": ("at.collective(op='all_gather')", "rank 0 passed all_reduce x1"),
        "io": ("at.io('*/nothing/*')", "rank 0 passed no such point"),
        "batch": ("at.batch('test_worlds:draw', nth=3)", "rank 0 passed test_worlds:draw x2"),
    }
    tests = "".join(
        f"""
@pytest.mark.multihost(ranks=2, backend="gloo", faults=[faults.kill(rank=0, at={point})])
def test_{name}(world, tmp_path):
    import torch, torch.distributed as dist
    work()
    assert [*draw()] == [1]
    world.sync_point("x")
    world.sync_point("x")
    dist.all_reduce(torch.ones(2))
    (tmp_path / "x").write_text("")
"""
        for name, (point, _) in points.items()
    )
    worlds = run_worlds(HEAD + tests + "def draw(): yield 1")
    worlds.run.assert_outcomes(failed=5)
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


def test_what_is_recorded_names_each_passage_as_a_fault_would(run_worlds) -> None:
    """In order, with the user's line, its thread, and how many operations were begun before."""
    worlds = run_worlds(
        """
import threading
import pytest, torch, torch.distributed as dist

@pytest.mark.multihost(ranks=2, timeout=30, backend="gloo")
def test_it(world, tmp_path):
    (tmp_path / "a").write_text("")
    dist.all_gather_object([None, None], world.rank)
    if world.rank:
        dist.isend(torch.ones(1), 0).wait()
        thread = threading.Thread(target=save, args=[tmp_path / "a"])
        thread.start()
        thread.join()
    else:
        dist.recv(torch.ones(1), 1)
    dist.all_gather([torch.ones(1), torch.ones(1)], torch.ones(1))
    world.barrier()

def save(path):
    torch.save([1], path)
""",
        "--multihost-points",
    )
    worlds.run.assert_outcomes(passed=1)
    lines = (worlds.directory("test_it") / "history.jsonl").read_text().splitlines()
    events = [
        Event(
            each["at_s"],
            each["rank"],
            from_json(PointsRecorded, {**each["detail"], "kind": each["kind"]}),
        )
        for each in map(json.loads, lines)
        if each["kind"] == "record"
    ]
    found = recorded_points(events)
    assert [
        (
            each.point.call or each.point.name,
            each.point.nth,
            each.span,
            each.is_main,
            each.where.line,
        )
        for each in found[1]
        if each.where is not None
    ] == [
        ("open", 1, 0, True, 6),
        ("all_gather_object", 1, 0, True, 7),
        ("send", 1, 1, True, 9),
        ("open", 2, 2, False, 19),
        ("write", 1, 2, False, 19),
        ("all_gather", 3, 2, True, 15),
        ("world.barrier", 1, 3, True, 16),
    ]
    assert {each.where.file for each in found[0] if each.where is not None} == {"test_worlds.py"}


def test_what_reads_source_code_passes_no_point(run_worlds) -> None:
    """`inspect` looks for the folder of every module, Python and packages are elsewhere."""
    worlds = run_worlds(
        """
import inspect, linecache, os, sys
import pytest

@pytest.mark.multihost(ranks=1, timeout=30)
def test_it(world, tmp_path):
    inspect.modulesbyfile.clear()
    inspect._filesbymodname.clear()
    inspect.getmodule(object(), "nowhere.py")
    os.stat(os.path.dirname(os.__file__))
    os.path.realpath(sys.executable)
    (tmp_path / "a").exists()
""",
        "--multihost-points",
    )
    worlds.run.assert_outcomes(passed=1)
    line = next(each for each in worlds.run.outlines if each.startswith("  rank 0"))
    assert line.split("  ")[2:] == ["at.io('*/test_it0/a', call='stat')"]


def test_calls_that_are_asked_for_and_loaders_that_are_imported_late_are_recorded(
    run_worlds,
) -> None:
    """Each call of a function that a sweep is to change, and each batch."""
    worlds = run_worlds(
        """
import pytest

def should_stop(step):
    return step == 2

def examples():
    yield from range(2)

@pytest.mark.multihost(ranks=2, timeout=30)
@pytest.mark.multihost_sweep(
    families=("late",), decisions=["test_worlds:should_stop"], batches="test_worlds:examples"
)
def test_it(world):
    from torch.utils.data import DataLoader
    assert [*examples()] == [0, 1]
    for step, _ in enumerate(DataLoader(range(8), batch_size=2)):
        if should_stop(step):
            break
""",
        "--multihost-points",
        "--multihost-sweep",
    )
    stop = "at.call('test_worlds:should_stop')"
    batch = "at.batch('torch.utils.data:DataLoader')"
    assert ", ".join([batch, stop] * 3) in worlds.stdout
    assert "at.batch('test_worlds:examples')" in worlds.stdout


@pytest.mark.program(
    HEAD
    + """
import torch, torch.distributed as dist

def failing(op, backend, **more):
    fault = faults.fails(rank="all", at=at.collective(op, **more))
    return pytest.mark.multihost(ranks=2, timeout=30, backend=backend, faults=[fault])

@failing("all_reduce", "gloo", nth=2)
def test_collective(world):
    total = torch.ones(1)
    dist.all_reduce(total)
    with pytest.raises(RuntimeError, match="all_reduce: planned by"):
        dist.all_reduce(total)
    dist.all_reduce(total)
    assert total.tolist() == [4.0]

@failing("store.get", "gloo")
def test_store(world):
    with pytest.raises(dist.DistStoreError):
        dist.distributed_c10d._get_default_store().get("key")

@failing("key_value_set", "jax")
def test_jax_set(world):
    import jax
    client = jax._src.distributed.global_state.client
    with pytest.raises(jax.errors.JaxRuntimeError):
        client.key_value_set(f"key of {world.rank}", "value")
    client.key_value_set(f"key of {world.rank}", "value")

@failing("key_value_try_get", "jax", nth=2)
def test_jax_try_get(world):
    import jax
    client = jax._src.distributed.global_state.client
    client.key_value_set(f"key of {world.rank}", "value")
    assert client.key_value_try_get(f"key of {world.rank}") == "value"
    with pytest.raises(jax.errors.JaxRuntimeError, match="planned by"):
        client.key_value_try_get(f"key of {world.rank}")

@failing("sync_global_devices", "jax", onwards=True)
def test_jax(world):
    import jax
    from jax.experimental.multihost_utils import sync_global_devices
    for _ in range(2):
        with pytest.raises(jax.errors.JaxRuntimeError):
            sync_global_devices("a")
"""
)
def test_an_operation_fails_with_what_its_runtime_raises(worlds) -> None:
    """So that code which handles that error is seen to do so; nobody has entered it."""
    worlds.run.assert_outcomes(passed=5)


@pytest.mark.program(
    HEAD
    + FILES
    + """
import numpy, tensorstore
from safetensors.numpy import load_file, save_file

ARRAYS = {"a": numpy.ones(2)}

def spec(path):
    return {"driver": "zarr", "kvstore": f"file://{path}/b",
            "metadata": {"shape": [2], "dtype": "<f4"}}

@on("write", nth=2)
def test_safetensors_save(world, folder):
    save_file(ARRAYS, folder / "b")
    with struck(world):
        save_file(filename=folder / "b", tensor_dict=ARRAYS)

@on("open", nth=3)
def test_safetensors_load(world, folder):
    save_file(ARRAYS, folder / "b")
    with struck(world):
        load_file(folder / "b")
    assert load_file(folder / "b")["a"].tolist() == [1, 1]

@on("open", nth=2)
def test_tensorstore_open(world, folder):
    with struck(world):
        tensorstore.open(spec(folder), create=True).result()
    tensorstore.open(spec(folder), create=True, open=True).result()

@on("write", nth=2)
def test_tensorstore_write(world, folder):
    store = tensorstore.open(spec(folder), create=True).result()
    store.write([1, 2]).result()
    with struck(world):
        store[:1].write([3]).result()
    assert store.read().result().tolist() in ([1, 2], [3, 2])
"""
)
def test_a_fault_strikes_where_native_code_opens_files(worlds) -> None:
    """Of safetensors, imported by name or not, and of tensorstore, by which orbax writes."""
    worlds.run.assert_outcomes(passed=4)


def test_what_orbax_writes_in_native_code_is_recorded(run_worlds) -> None:
    """With the user's line, though other threads write it."""
    worlds = run_worlds(
        """
import numpy, orbax.checkpoint as ocp, pytest

@pytest.mark.multihost(ranks=2, timeout=60, backend="jax")
def test_it(world, shared_tmp_path):
    ocp.Checkpointer(ocp.StandardCheckpointHandler()).save(
        shared_tmp_path / "ckpt", args=ocp.args.StandardSave({"a": numpy.ones(2)}))
""",
        "--multihost-points",
        timeout=200,
    )
    worlds.run.assert_outcomes(passed=1)
    written = re.findall(r"at.io\('\*/ckpt[^']*', call='write'\)", worlds.stdout)
    assert len(written) > 0
