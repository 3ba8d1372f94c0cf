"""Faults against real ranks: what was asked for happens, where it was asked for, and is undone."""

from __future__ import annotations

import re

import pytest

HEAD = """
import os, resource, signal, time
import pytest
from pytest_multihost import at, faults

def work(): pass

def marked(*given, **more):
    return pytest.mark.multihost(ranks=2, timeout=20, faults=list(given), **more)
"""


def fired(worlds, test: str) -> list[dict[str, list[float]]]:
    """Return when each fault of a test has happened, by rank."""
    return [each["fired"] for each in worlds.verdicts[test]["faults"]]


@pytest.mark.claim("delay, freeze or kill a rank, or slow its files")
@pytest.mark.program(
    HEAD
    + """
def took(action):
    began = time.monotonic()
    action()
    return time.monotonic() - began

def limits():
    return [resource.getrlimit(each) for each in (resource.RLIMIT_DATA, resource.RLIMIT_NOFILE)]

BEFORE = limits()

@pytest.fixture
def healed(world):
    yield
    assert limits() == BEFORE

@pytest.fixture
def unpatched(world):
    yield
    assert not any(hasattr(each, "__wrapped__") for each in (open, os.read, work))

pytestmark = pytest.mark.usefixtures("healed", "unpatched")

@marked(faults.delay(rank=1, seconds=0.5, at=at.call("test_worlds:work", nth=2)))
def test_delay(world):
    assert took(work) < 0.4
    assert (took(work) >= 0.5) == (world.rank == 1)
    assert took(work) < 0.4

@marked(faults.freeze(rank=1, seconds=0.5, at=at.sync_point("x")))
def test_freeze(world):
    assert (took(lambda: world.sync_point("x")) >= 0.5) == (world.rank == 1)

@marked(faults.raise_at(rank=1, error=OSError, at=at.sync_point("x")))
def test_raise(world):
    try:
        world.sync_point("x")
    except OSError:
        assert world.rank == 1
    else:
        assert world.rank == 0

@marked(faults.memory_pressure(rank=1, headroom_mb=64))
def test_memory(world):
    try:
        bytearray(200 << 20)
    except MemoryError:
        assert world.rank == 1
    else:
        assert world.rank == 0

@marked(faults.fd_pressure(rank=1, headroom=3))
def test_descriptors(world):
    opened = []
    try:
        for _ in range(10):
            opened.append(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        pass
    assert len(opened) == (3 if world.rank == 1 else 10)

@marked(faults.slow_io(rank=1, seconds=0.3, path="*/ckpt/*"))
def test_slow(world, tmp_path):
    (tmp_path / "ckpt").mkdir()
    file = tmp_path / "ckpt" / "a"
    assert (took(lambda: file.write_text("hello")) >= 0.6) == (world.rank == 1)
    assert file.read_text() == "hello"
    assert took(lambda: (tmp_path / "b").write_text("other")) < 0.3

@marked(faults.slow_io(rank=1, error="ENOSPC", path="full/*"))
def test_full(world, tmp_path):
    (tmp_path / "full").mkdir()
    try:
        (tmp_path / "full" / "a").write_text("hello")
    except OSError as error:
        assert (world.rank, error.errno) == (1, 28)
    else:
        assert world.rank == 0

@marked(faults.cpu_throttle(rank=1, percent=20, at=at.sync_point("x")))
def test_throttle(world):
    world.sync_point("x")
    began, used = time.monotonic(), time.process_time()
    while time.monotonic() - began < 1.5:
        pass
    share = (time.process_time() - used) / (time.monotonic() - began)
    assert share < 0.35 or world.rank == 0

@marked(faults.kill(rank=1, at=at.io("*/x.txt")))
def test_kill(world, tmp_path):
    (tmp_path / "x.txt").write_text("a")
    assert world.rank == 0
"""
)
def test_faults_strike_at_their_points_and_are_undone(worlds) -> None:
    """Each test compares the rank that is struck with the one that is not; its teardown is well."""
    worlds.run.assert_outcomes(passed=9)
    for name in worlds.verdicts:
        [times] = fired(worlds, name)
        assert set(times) == {"1"}, name
    outcomes = [each["outcome"] for each in worlds.verdicts["test_kill"]["rank_results"]]
    assert outcomes == ["passed", "killed_as_planned"]


@pytest.mark.program(
    HEAD
    + """
LATE = at.call("test_worlds:work", nth=5)

@marked(faults.kill(rank=1, at=LATE))
def test_never(world):
    work()

@marked(faults.kill(rank=1, at=LATE, must_fire=False))
def test_need_not(world):
    work()

@marked(faults.slow_io(rank=1, seconds=1, path="*/nothing/*"))
def test_no_file(world):
    pass

@marked(faults.slow_io(rank=1, seconds=1, path="*/a", at=at.sync_point("passed")))
def test_no_file_from_there(world, tmp_path):
    (tmp_path / "a").write_text("before")
    world.sync_point("passed")

@marked(faults.slow_io(rank=1, seconds=1, path="*/a", at=at.sync_point("not passed")))
def test_not_from_there(world, tmp_path):
    world.sync_point("passed")

@marked(faults.kill(rank=1, at=LATE))
def test_hang(world):
    if world.rank == 0:
        world.barrier("x")
    else:
        time.sleep(600)
"""
)
def test_a_fault_that_never_fired_fails_the_test_unless_it_need_not(worlds) -> None:
    """The reason names the fault and what was passed instead; a hang stays a hang."""
    worlds.run.assert_outcomes(passed=1, failed=5)
    assert "never fired on rank 1: rank 1 passed test_worlds:work x1" in worlds.stdout
    assert "never fired on rank 1: it used no file that matches '*/a'" in worlds.stdout
    assert "never fired on rank 1: rank 1 passed passed x1" in worlds.stdout
    assert "it used no file that matches '*/nothing/*'" in worlds.stdout
    assert worlds.verdicts["test_never"]["outcome"] == "failed"
    hang = worlds.verdicts["test_hang"]
    assert hang["outcome"] == "hung"
    assert "never fired on rank 1: rank 1 passed no such point" in hang["diagnosis"]["notes"][0]


def test_wrong_faults_are_usage_errors_all_at_once(run_worlds) -> None:
    """Each names the test and the fault."""
    worlds = run_worlds(
        HEAD
        + """
@marked(faults.delay(rank=2, seconds=-1))
def test_one(world): pass

@marked(faults.kill(rank=0, at=at.call("test_worlds:wrok")), faults.freeze(rank=0))
def test_two(world): pass

@marked(faults.kill(rank=0), faults.freeze(rank=0))
def test_three(world): pass

@marked(faults.hash_seed())
def test_four(world): pass
""",
        "--multihost-launch=server",
    )
    assert worlds.run.ret == pytest.ExitCode.USAGE_ERROR
    errors = worlds.run.stderr.str()
    assert "test_one: @pytest.mark.multihost faults: faults.delay(rank=2, seconds=-1)" in errors
    assert "rank 2 is out of range" in errors
    assert "the nearest: work" in errors
    assert "exclude each other on rank 0" in errors
    assert "test_four: @pytest.mark.multihost faults: faults.hash_seed(rank=[0, 1]): " in errors
    assert "fresh interpreters, and --multihost-launch=server forks the ranks" in errors


def test_a_call_that_only_a_rank_finds_missing_is_an_error_without_frames(
    run_worlds,
) -> None:
    """The controller imports no module for a fault; the frames would be this plugin's own."""
    worlds = run_worlds(
        HEAD
        + """
@marked(faults.kill(rank=0, at=at.call("colorsys:rgb_to_hvs")))
def test_one(world): pass
"""
    )
    assert "there is no 'rgb_to_hvs' in colorsys; the nearest: rgb_to_hsv" in worlds.stdout
    assert "core/rank/agent.py" not in worlds.stdout


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--multihost-fault", "slow_oi(rank=0)"], "Did you mean slow_io?"),
        (["--multihost-fault", "delay(rank=0, seconds=-1)"], "test_it: "),
        (["--multihost-fault", "kill(rank=7)"], "rank 7 is out of range"),
        (["--multihost-fault", "kill(rank=0, at=at.call('jsn:loads'))"], "the nearest: json"),
        (["--multihost-replay", "abc"], "the token cannot be replayed: it is damaged"),
    ],
)
def test_what_is_wrong_on_the_command_line_is_a_usage_error(run_worlds, args, words) -> None:
    """No world is started."""
    worlds = run_worlds(
        """
        import pytest

        @pytest.mark.multihost(ranks=2)
        def test_it(world): pass
        """,
        *args,
    )
    assert worlds.run.ret == pytest.ExitCode.USAGE_ERROR
    assert words in worlds.run.stderr.str()
    assert worlds.all_verdicts == []


def test_a_token_repeats_whom_it_struck(run_worlds) -> None:
    """Whatever the seed is now; a token of another test is refused."""
    source = (
        HEAD
        + """
@marked(faults.raise_at(rank="one", at=at.sync_point("x")))
def test_it(world):
    world.sync_point("x")
"""
    )
    first = run_worlds(source, "--multihost-seed", "3")
    struck = fired(first, "test_it")[0].keys()
    [shown] = set(re.findall(r"--multihost-replay (\S+)", first.stdout))
    assert shown == first.verdicts["test_it"]["replay"]
    again = run_worlds(source, "--multihost-seed", "4", "--multihost-replay", shown)
    assert fired(again, "test_it")[0].keys() == struck
    other = run_worlds(source.replace("test_it", "test_other"), "--multihost-replay", shown)
    assert other.run.ret == pytest.ExitCode.USAGE_ERROR
    assert "the token is of another test" in other.run.stderr.str()


def test_faults_of_the_command_line_and_of_a_conftest_file(run_worlds, pytester) -> None:
    """A third party's kind is told, performed and undone as ours are."""
    pytester.makeconftest(
        """
        import os
        from pytest_multihost.faults.kind import FaultKind, text

        def perform(strike):
            os.environ["STRUCK"] = strike.fault.params["word"]
            strike.healing.callback(os.environ.pop, "STRUCK")

        def pytest_multihost_faults():
            return [FaultKind(name="set_word", perform=perform, params={"word": text}, lasts=True)]
        """
    )
    source = (
        HEAD
        + """
@pytest.mark.multihost(ranks=2)
def test_it(world):
    assert os.environ.get("STRUCK") == ("hello" if world.rank == 1 else None)
"""
    )
    worlds = run_worlds(source, "--multihost-fault", "other('set_word', rank=1, word='hello')")
    worlds.run.assert_outcomes(passed=1)
    assert set(fired(worlds, "test_it")[0]) == {"1"}


@pytest.mark.program(
    HEAD
    + """
@marked(faults.slow_io(rank="all", seconds=0, path="*/x"), faults.delay(
    rank="all", seconds=0, at=at.call("test_worlds:work")))
def test_with(world, tmp_path):
    work()
    (tmp_path / "x").write_text("")
    assert hasattr(work, "__wrapped__") and hasattr(open, "__wrapped__")

@marked()
def test_without(world):
    assert not hasattr(work, "__wrapped__") and not hasattr(open, "__wrapped__")
""",
    "--multihost-launch=fork",
)
def test_nothing_is_replaced_in_a_test_without_faults(worlds) -> None:
    """Neither files nor functions, whatever other tests of the run have."""
    worlds.run.assert_outcomes(passed=2)


@pytest.mark.program(
    HEAD
    + """
@marked(faults.hash_seed(), faults.start_skew(rank=1, seconds=0.3))
def test_it(world):
    assert len(set(world.gather(hash("text")))) == 2
"""
)
def test_ranks_hash_differently_and_one_comes_late(worlds) -> None:
    """Both need what comes before the test."""
    worlds.run.assert_outcomes(passed=1)
    assert [set(each) for each in fired(worlds, "test_it")] == [{"0", "1"}, {"1"}]


@pytest.mark.parametrize("options", [(), ("-p", "xdist", "-n", "1")], ids=["alone", "xdist"])
def test_the_points_that_ranks_pass_are_listed(run_worlds, options: tuple[str, ...]) -> None:
    """In order, equal ranks once: what `at=` can name."""
    worlds = run_worlds(
        HEAD
        + """
@pytest.mark.multihost(ranks=3)
def test_it(world, tmp_path):
    world.sync_point("a")
    world.sync_point("a")
    if world.rank == 2:
        (tmp_path / "x.txt").write_text("hello")
        (tmp_path / f"{os.getpid()}.tmp").mkdir()
""",
        "--multihost-points",
        *options,
    )
    worlds.run.assert_outcomes(passed=1)
    assert "ranks 0,1  at.sync_point('a') x2" in worlds.stdout
    assert (
        "rank 2  at.sync_point('a') x2, at.io('*/test_it0/x.txt', call='open'), "
        "at.io('*/test_it0/x.txt', call='write'), at.io('*/test_it0/*.tmp', call='mkdir')\n"
    ) in worlds.stdout


@pytest.mark.program(
    HEAD
    + """
@pytest.mark.multihost(ranks=2, timeout=20, faults=[faults.freeze(rank=1, at=at.sync_point("x"))])
def test_1_frozen_for_good(world):
    world.sync_point("x")
    world.barrier("end")

@pytest.mark.multihost(ranks=2, timeout=20, faults=[faults.freeze(rank=1, at=at.sync_point("x"))])
def test_1_nobody_waits(world):
    world.sync_point("x")

@pytest.mark.multihost(ranks=2, timeout=20, faults=[faults.delay(rank=1, seconds=0)])
def test_1_stopped_from_outside(world):
    if world.rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    world.barrier("end")

@pytest.mark.multihost(ranks=2, timeout=3, faults=[
    faults.cpu_throttle(rank=1, percent=10), faults.memory_pressure(rank=1, headroom_mb=16)])
def test_2_throttled(world):
    while True:
        time.sleep(0.01)

@marked()
def test_3_next(world):
    bytearray(100 << 20)
    world.barrier("end")
""",
)
def test_ranks_that_are_stopped_do_not_outlive_a_hang(worlds) -> None:
    """The next test of the same server is as if there had been none."""
    worlds.run.assert_outcomes(passed=1, failed=4)
    frozen, alone, stopped = (
        worlds.verdicts[f"test_1_{name}"]["diagnosis"]
        for name in ("frozen_for_good", "nobody_waits", "stopped_from_outside")
    )
    told = [(each["kind"], each["culprits"], each["waiting"]) for each in (frozen, alone, stopped)]
    assert told == [("straggler", [1], [0]), ("stuck", [1], []), ("stopped", [1], [0])]
    assert frozen["summary"].startswith("rank 1 is frozen by faults.freeze(rank=1, at=")
    assert stopped["summary"].startswith("rank 1 is stopped by a signal such as SIGSTOP")
    assert "stopped by a signal" not in str((frozen, alone))


@pytest.mark.program(
    HEAD
    + """
@marked(faults.freeze(rank=1, seconds=4, at=at.sync_point("x")))
def test_it(world):
    world.sync_point("x")
    world.barrier("end")
"""
)
def test_a_frozen_rank_is_waited_for(worlds) -> None:
    """Its thaw is planned, so nothing is proven however long the others stand still."""
    worlds.run.assert_outcomes(passed=1)


@pytest.mark.program(
    HEAD
    + """
import threading

def build(): pass

KILLED = faults.kill(rank="first", at=at.call("test_worlds:build"))

@pytest.mark.multihost(ranks=3, timeout=5, faults=[KILLED])
def test_holder(world, shared_tmp_path):
    lock = shared_tmp_path / "lock"
    try:
        os.close(os.open(lock, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        while lock.exists():
            time.sleep(0.02)
    else:
        time.sleep(0.2)
        build()
        lock.unlink()

@pytest.mark.multihost(ranks=3, timeout=5, faults=[KILLED])
def test_bystander(world):
    if world.rank == 0:
        threading.Lock().acquire()
        time.sleep(600)
    if world.rank == 1:
        build()
"""
)
def test_a_rank_that_was_killed_as_planned_is_blamed_if_the_others_wait_for_it(worlds) -> None:
    """Who polls for what it would have done waits for it; who is stuck by itself does not."""
    found = {name: each["diagnosis"] for name, each in worlds.verdicts.items()}
    holder, bystander = found["test_holder"], found["test_bystander"]
    assert (holder["kind"], holder["confidence"]) == ("died", "likely")
    assert len(holder["culprits"]) == 1
    assert sorted([*holder["culprits"], *holder["waiting"]]) == [0, 1, 2]
    assert (bystander["kind"], bystander["culprits"]) == ("stuck", [0])


@pytest.mark.program(
    HEAD
    + """
import torch, torch.distributed as dist

THIRD = faults.kill(rank=1, at=at.collective("all_reduce", nth=3))

@marked(THIRD, backend="gloo")
def test_well(world):
    x = torch.ones(2)
    dist.all_reduce(x)
    dist.all_reduce(x)
    with pytest.raises(RuntimeError):
        dist.all_reduce(x)

@marked(THIRD, backend="gloo")
def test_ill(world):
    x = torch.ones(2)
    for _ in range(3):
        dist.all_reduce(x)
"""
)
def test_survivors_of_a_planned_kill_are_what_is_tested(worlds) -> None:
    """Who takes it well passes; what one does not is its own failure, not a symptom."""
    worlds.run.assert_outcomes(passed=1, failed=1)
    ranks = {
        name: [each["outcome"] for each in worlds.verdicts[name]["rank_results"]]
        for name in ("test_well", "test_ill")
    }
    assert ranks["test_well"] == ["passed", "killed_as_planned"]
    assert ranks["test_ill"] == ["failed", "killed_as_planned"]
