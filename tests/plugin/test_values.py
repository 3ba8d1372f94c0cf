"""Faults of what a rank alone sees: errors of calls, data, files, the clock, returned values."""

from __future__ import annotations

import pytest

HEAD = """
import copy, datetime, errno, glob, os, pickle, time
from datetime import date
from time import localtime, strftime
import pytest
from pytest_multihost import at, faults

def with_faults(*given, **more):
    return pytest.mark.multihost(ranks=2, timeout=30, faults=list(given), **more)

@pytest.fixture
def folder(tmp_path):
    for name in ("struck", "spared"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a").write_text("text")
        (tmp_path / name / "b").write_text("text")
    return tmp_path / "struck"
"""


def fired(worlds) -> dict[str, set[str]]:
    """Return the ranks to which the first fault of each test has happened."""
    return {name: set(each["faults"][0]["fired"]) for name, each in worlds.verdicts.items()}


@pytest.mark.program(
    HEAD
    + """
def failing(call, error=None, **point):
    fault = faults.fails(rank=1, error=error, at=at.io("*/struck/*", call=call, **point))
    return with_faults(fault)

def number(action, *args):
    try:
        action(*args)
    except OSError as error:
        assert str(args[-1]) in str(error), error
        return error.errno
    return 0

@pytest.fixture(autouse=True)
def healed(folder):
    yield
    os.stat(folder / "a")
    os.replace(folder / "a", folder / "b")
    (folder / "b").write_text("text")

@failing("rename")
def test_rename(world, folder):
    assert number(os.replace, folder.parent / "spared" / "a", folder.parent / "spared" / "c") == 0
    assert number(os.replace, folder / "b", folder / "c") == (errno.ESTALE if world.rank else 0)
    assert os.path.exists(folder / "b") == (world.rank == 1)
    (folder / "d").write_text("")
    os.replace(folder / "d", folder / "e")

@failing("stat")
def test_stat(world, folder):
    assert number(os.stat, folder / "a") == (errno.ESTALE if world.rank else 0)

@failing("mkdir")
def test_mkdir(world, folder):
    assert number(os.mkdir, folder / "c") == (errno.ENOSPC if world.rank else 0)

@failing("unlink", "EPERM")
def test_named(world, folder):
    assert number(os.unlink, folder / "b") == (errno.EPERM if world.rank else 0)

@failing("write", nth=3, onwards=True)
def test_onwards(world, folder):
    for _ in range(3):
        with (folder / "a").open("wb", buffering=0) as file:
            try:
                file.write(b"more")
            except OSError as error:
                assert (world.rank, error.errno) == (1, errno.ENOSPC)
            else:
                assert world.rank == 0
    assert number(os.stat, folder / "a") == 0
"""
)
def test_a_call_on_a_file_fails_with_the_error_that_fits_it(worlds) -> None:
    """Once, or from then on; other calls, files and ranks do not fail, nor does a teardown."""
    worlds.run.assert_outcomes(passed=5)
    assert set(map(frozenset, fired(worlds).values())) == {frozenset("1")}
    [times] = worlds.verdicts["test_onwards"]["faults"][0]["fired"].values()
    assert len(times) == 3


@pytest.mark.program(
    HEAD
    + """
import torch
from torch.utils.data import DataLoader

def make():
    yield from range(4)

def rows(count):
    return list(range(count))

def matrix():
    return torch.ones(2, 4)

@pytest.fixture(autouse=True)
def healed(world):
    yield
    assert [*make()] == [0, 1, 2, 3]
    assert rows(2) == [0, 1]

@with_faults(faults.short_data(rank=1, at=at.batch("test_worlds:make", nth=4)))
def test_short(world):
    assert [*make()] == ([0, 1, 2] if world.rank else [0, 1, 2, 3])
    assert [*make()] == [0, 1, 2, 3]

@with_faults(faults.empty_data(rank=1, at=at.batch("test_worlds:make", nth=6)))
def test_empty(world):
    assert [*make()] == [0, 1, 2, 3]
    for _ in range(2):
        assert [*make()] == ([] if world.rank else [0, 1, 2, 3])

@with_faults(faults.short_data(rank=1, at=at.batch("test_worlds:rows", nth=3)))
def test_list(world):
    assert rows(3) == ([0, 1] if world.rank else [0, 1, 2])
    assert rows(3) == [0, 1, 2]

@with_faults(faults.empty_data(rank=1, at=at.batch("test_worlds:rows", nth=5)))
def test_empty_list(world):
    assert rows(3) == [0, 1, 2]
    assert (rows(2), rows(1)) == (([], []) if world.rank else ([0, 1], [0]))

@with_faults(faults.short_data(rank=1, at=at.batch("test_worlds:matrix", nth=2)))
def test_rows_of_an_array(world):
    assert matrix().shape == ((1, 4) if world.rank else (2, 4))

@with_faults(faults.short_data(rank=1, at=at.batch("torch.utils.data:DataLoader", nth=2)))
def test_torch(world):
    loader = DataLoader(range(6), batch_size=2)
    found = [batch.tolist() for batch in loader]
    assert found == ([[0, 1]] if world.rank else [[0, 1], [2, 3], [4, 5]])
    assert len(loader) == 3 and [*make()] == [0, 1, 2, 3]
"""
)
def test_data_ends_early_or_is_not_there(worlds) -> None:
    """For one rank; its next epoch is complete where it was only short, and so is its teardown."""
    worlds.run.assert_outcomes(passed=6)
    assert fired(worlds) == {name: {"1"} for name in worlds.verdicts}


@pytest.mark.program(
    HEAD
    + """
import torch, torch.distributed as dist

def make():
    yield from range(3)

short = faults.short_data(rank=1, at=at.batch("test_worlds:make", nth=3))

@with_faults(short, backend="gloo")
def test_it(world):
    for batch in make():
        dist.all_reduce(torch.ones(2))
"""
)
def test_uneven_data_hangs_what_does_not_expect_it(worlds) -> None:
    """The rank with less is found; the other waits for it in the next collective."""
    diagnosis = worlds.verdicts["test_it"]["diagnosis"]
    assert (diagnosis["kind"], diagnosis["culprits"], diagnosis["waiting"]) == (
        "finished",
        [1],
        [0],
    )


@pytest.mark.program(
    HEAD
    + """
@with_faults(faults.shuffled_listing(rank=1, path="*/struck/*", at=at.sync_point("x")))
def test_it(world, folder):
    def listings(folder):
        with os.scandir(folder) as entries:
            scanned = [each.name for each in entries]
        walked = next(os.walk(folder))[2]
        globbed = [os.path.basename(each) for each in glob.glob(f"{folder}/*")]
        iterated = [each.name for each in folder.iterdir()]
        return [os.listdir(folder), scanned, walked, globbed, iterated]

    before, other = listings(folder), listings(folder.parent / "spared")
    world.sync_point("x")
    assert listings(folder) == [each[::-1] if world.rank else each for each in before]
    assert listings(folder.parent / "spared") == other
    assert sorted(os.listdir(folder)) == sorted(before[0])
    assert os.listdir(os.fsencode(folder)) == [each.encode() for each in os.listdir(folder)]

@pytest.fixture(autouse=True)
def healed(world):
    yield
    assert not hasattr(os.listdir, "__wrapped__")
"""
)
def test_folders_are_listed_in_another_order(worlds) -> None:
    """By every way of listing; what sorts is not affected, nor are other folders and ranks."""
    worlds.run.assert_outcomes(passed=1)
    assert fired(worlds) == {"test_it": {"1"}}


@pytest.mark.program(
    HEAD
    + """
@with_faults(faults.stale_files(rank=1, seconds=600, path="*.json", at=at.sync_point("x")))
def test_it(world, shared_tmp_path):
    old, new, own = (shared_tmp_path / f"{name}.json" for name in ("old", "new", "own"))
    if world.rank == 0:
        old.write_text("old")
    world.barrier("old")
    world.sync_point("x")
    world.barrier("begun")
    if world.rank == 0:
        (shared_tmp_path / "x.tmp").write_text("new")
        os.replace(shared_tmp_path / "x.tmp", new)
        (shared_tmp_path / "other").write_text("other")
        old.write_text("changed")
    world.barrier("new")
    is_seen = world.rank == 0
    names = ["new.json", "old.json", "other"] if is_seen else ["old.json", "other"]
    assert sorted(os.listdir(shared_tmp_path)) == names
    assert sorted(each.name for each in os.scandir(shared_tmp_path)) == names
    assert new.exists() == os.path.isfile(new) == is_seen
    assert old.read_text() == "changed"
    world.barrier("looked")
    if is_seen:
        new.read_text()
    else:
        with pytest.raises(FileNotFoundError):
            new.read_text()
        own.write_text("own")
        assert own.read_text() == "own" and "own.json" in os.listdir(shared_tmp_path)
    world.barrier("end")

@with_faults(faults.stale_files(rank=1, seconds=3, path="*.json"))
def test_a_while(world, shared_tmp_path):
    file = shared_tmp_path / "x.json"
    world.barrier("begun")
    if world.rank == 0:
        file.write_text("x")
    world.barrier("made")
    missed = 0
    while not file.exists():
        missed += 1
        time.sleep(0.01)
    assert (missed > 0) == (world.rank == 1)

@pytest.fixture(autouse=True)
def healed(world, shared_tmp_path):
    yield
    assert len([*shared_tmp_path.glob("*.json")]) in (1, 3)
"""
)
def test_what_another_rank_has_made_is_not_seen_for_a_while(worlds) -> None:
    """What was there before, what the rank makes itself, and what does not match is seen."""
    worlds.run.assert_outcomes(passed=2)
    assert fired(worlds) == {name: {"1"} for name in worlds.verdicts}


def test_what_others_make_before_a_rank_has_begun_its_test_is_not_seen(
    run_worlds, pytester
) -> None:
    """From the start is from the world's start: not every rank begins at once."""
    pytester.makeconftest(
        """
        import os, pathlib, time
        import pytest

        @pytest.hookimpl(wrapper=True, tryfirst=True)
        def pytest_runtest_protocol():
            while os.environ.get("RANK") == "1" and not pathlib.Path("made").exists():
                time.sleep(0.01)
            return (yield)
        """
    )
    worlds = run_worlds(
        HEAD
        + """
@with_faults(faults.stale_files(rank=1, seconds=600, path="*.json"))
def test_it(world, shared_tmp_path):
    if world.rank == 0:
        (shared_tmp_path / "x.json").write_text("x")
        open("made", "w").close()
    assert (shared_tmp_path / "x.json").exists() == (world.rank == 0)
"""
    )
    worlds.run.assert_outcomes(passed=1)
    assert fired(worlds) == {"test_it": {"1"}}


@pytest.mark.program(
    HEAD
    + """
DAYS, real = 3 * 86400, time.time

def times():
    "Seconds since 1970, by everything that tells them."
    yield time.time()
    yield time.time_ns() / 1e9
    yield time.clock_gettime(time.CLOCK_REALTIME)
    yield time.mktime(localtime())
    yield time.mktime(time.strptime(time.ctime()))
    yield float(strftime("%s"))
    yield datetime.datetime.now().timestamp()
    yield datetime.datetime.now(datetime.timezone.utc).timestamp()
    yield datetime.datetime.utcnow().replace(tzinfo=datetime.timezone.utc).timestamp()

def is_near(first, second):
    return abs(first - second) < 20

@with_faults(faults.clock_skew(rank=1, seconds=-DAYS, at=at.sync_point("x")))
def test_it(world):
    before, steady, today = real(), time.monotonic(), date.today()
    assert all(is_near(each, before) for each in times())
    world.sync_point("x")
    ahead = -DAYS if world.rank else 0
    assert [each for each in times() if not is_near(each, before + ahead)] == []
    assert is_near(time.monotonic(), steady)
    assert is_near((date.today() - today).total_seconds(), ahead) or real() % 86400 < 60
    assert time.localtime(0) == localtime(0) and time.gmtime(0).tm_year == 1970
    moment = datetime.datetime(2026, 1, 2, tzinfo=datetime.timezone.utc)
    dates = [moment, moment.date()]
    assert pickle.loads(pickle.dumps(dates)) == copy.deepcopy(dates) == dates
    assert isinstance(moment, datetime.datetime) and isinstance(moment, date)
    assert issubclass(datetime.datetime, date) and type(moment + (moment - moment)) is type(moment)

@pytest.fixture(autouse=True)
def healed(world):
    yield
    assert is_near(time.time(), real()) and time.time is real
    assert date is datetime.date and type(date.today()) is date
"""
)
def test_the_wall_clock_of_one_rank_is_wrong_from_a_point_on(worlds) -> None:
    """For all that tells the time, by whatever name; waits and the monotonic clock are right."""
    worlds.run.assert_outcomes(passed=1)
    assert fired(worlds) == {"test_it": {"1"}}


@pytest.mark.program(
    HEAD
    + """
import queue, threading
from time import monotonic

DAY, real = 86400, (time.monotonic, time.time, time.perf_counter_ns)

@with_faults(faults.elapsed_time(rank=1, seconds=DAY, read=3, at=at.sync_point("x")))
def test_it(world):
    begun, now = monotonic(), time.time()
    world.sync_point("x")
    assert monotonic() - begun < 60 and time.perf_counter() < real[2]() / 1e9 + 60
    ahead = DAY if world.rank else 0
    assert abs(time.monotonic() - begun - ahead) < 60
    assert abs(time.time() - now - ahead) < 60
    assert abs(time.perf_counter_ns() - real[2]() - ahead * 10**9) < 60 * 10**9
    assert abs(time.monotonic_ns() - begun * 10**9 - ahead * 10**9) < 60 * 10**9
    with pytest.raises(queue.Empty):  # by the clock of Python's own library
        queue.Queue().get(timeout=0.01)
    assert not threading.Event().wait(0.01)

@with_faults(faults.elapsed_time(rank=1, seconds=DAY, read=9, must_fire=False))
def test_that_reads_too_seldom(world):
    begun = monotonic()
    assert monotonic() - begun < 60

@pytest.fixture(autouse=True)
def healed(world):
    yield
    assert (time.monotonic, time.time, time.perf_counter_ns) == real and monotonic is real[0]
"""
)
def test_more_time_elapses_for_the_code_of_one_rank(worlds) -> None:
    """From a read of a clock on, whichever clock it is; libraries wait by the real one."""
    worlds.run.assert_outcomes(passed=2)
    assert fired(worlds) == {"test_it": {"1"}, "test_that_reads_too_seldom": set()}


@pytest.mark.program(
    HEAD
    + """
import asyncio, math, torch

calls = []

def should_stop():
    calls.append(1)
    return False

def fails():
    raise ValueError

def loss(weight):
    return (weight * 2).sum()

async def decide():
    return "yes"

def returning(value, name, **point):
    fault = faults.returns(rank=1, value=value, at=at.call(f"test_worlds:{name}", **point))
    return with_faults(fault)

@pytest.fixture(autouse=True)
def healed(world):
    yield
    assert not hasattr(should_stop, "__wrapped__") and not hasattr(loss, "__wrapped__")

@returning(True, "should_stop", nth=2)
def test_once(world):
    assert [should_stop() for _ in range(3)] == [False, world.rank == 1, False]
    assert len(calls) == (2 if world.rank else 3)

@returning(None, "should_stop", nth=2, onwards=True)
def test_onwards(world):
    answers = [should_stop() for _ in range(3)]
    assert answers == ([False, None, None] if world.rank else [False] * 3)

@returning("fine", "fails", when="after")
def test_instead_of_an_error(world):
    if world.rank == 0:
        with pytest.raises(ValueError):
            fails()
    else:
        assert fails() == "fine"
        with pytest.raises(ValueError):
            fails()

@returning("no", "decide")
def test_coroutine(world):
    assert asyncio.run(decide()) == ("no" if world.rank else "yes")

@returning(float("nan"), "loss", when="after")
def test_nan(world):
    weight = torch.ones(3, requires_grad=True)
    found = loss(weight)
    found.backward()
    assert math.isnan(found.item()) == bool(weight.grad.isnan().all()) == (world.rank == 1)
    assert found.dtype == torch.float32 and found.shape == ()

@returning(7, "loss", when="after")
def test_number(world):
    assert loss(torch.ones(3)).item() == (7 if world.rank else 6)
"""
)
def test_a_call_returns_something_else(worlds) -> None:
    """Instead of running, or afterwards; once, or from then on; for one rank, in the body alone."""
    worlds.run.assert_outcomes(passed=6)
    assert fired(worlds) == {name: {"1"} for name in worlds.verdicts}
    assert worlds.verdicts["test_nan"]["faults"][0]["params"] == {"value": "nan"}


@pytest.mark.program(
    HEAD
    + """
class Planned(Exception):
    pass

def first(point):
    error = f"{Planned.__module__}:Planned"
    return with_faults(faults.raise_at(rank="first", error=error, at=point))

@first(at.sync_point("x", nth=2))
def test_it(world):
    struck = []
    for turn in range(4):
        for rank in (1, 0):
            if rank == world.rank:
                try:
                    world.sync_point("x")
                except Planned:
                    struck.append(turn)
            world.barrier("turn")
    assert struck == ([1] if world.rank else [])

@first(at.sync_point("x", onwards=True))
def test_onwards(world):
    world.barrier("before") if world.rank == 0 else None
    for _ in range(3):
        try:
            world.sync_point("x")
        except Planned:
            assert world.rank == 1
        else:
            assert world.rank == 0
    world.barrier("before") if world.rank == 1 else None

@first(at.sync_point("y"))
def test_never(world):
    world.sync_point("x")
"""
)
def test_a_fault_happens_to_whoever_is_first_at_its_point(worlds) -> None:
    """To one rank alone, and that it must have happened is said of the world."""
    worlds.run.assert_outcomes(passed=2, failed=1)
    assert fired(worlds) == {"test_it": {"1"}, "test_onwards": {"1"}, "test_never": set()}
    [fault] = worlds.verdicts["test_it"]["faults"]
    assert (fault["ranks"], fault["is_first"]) == ([0, 1], True)
    assert "faults.raise_at(rank='first', " in worlds.stdout
    assert "never fired on ranks 0,1: rank 0 passed x x1" in worlds.stdout


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("fails(rank=1, at=at.io('*/a', call='rename'))", "ESTALE"),
        ("returns(rank=1, value=nan, at=at.call('test_worlds:loss'))", "nan"),
    ],
)
def test_these_faults_can_be_given_on_the_command_line(run_worlds, fault, words) -> None:
    """As in a marker."""
    worlds = run_worlds(
        HEAD
        + """
def loss():
    return 1.0

@with_faults()
def test_it(world, tmp_path):
    (tmp_path / "b").write_text("")
    try:
        os.replace(tmp_path / "b", tmp_path / "a")
        print("returned", loss())
    except OSError as error:
        print(errno.errorcode[error.errno])
""",
        "-s",
        "--multihost-fault",
        fault,
    )
    worlds.run.assert_outcomes(passed=1)
    assert words in worlds.output("test_it", 1)
    assert words not in worlds.output("test_it", 0)
