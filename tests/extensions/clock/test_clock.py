"""The setting `clock`: how worlds are launched with one that jumps, and what ranks see of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_multihost.extensions.clock.page import find_clock_library, why_clock_missing

with_library = pytest.mark.skipif(find_clock_library() is None, reason=why_clock_missing())

ONE = """
import time
import pytest

@pytest.mark.multihost(ranks=2, timeout=60{more})
def test_it(world):
    before_s = time.monotonic()
    assert before_s <= world.clock.now() <= time.monotonic()
    world.barrier()
"""

EITHER = """
import os, subprocess, sys, time
import pytest

CHILD = "import os, time; print(os.environ.get('PYTEST_MULTIHOST_CLOCK_PAGE'), time.monotonic())"

@pytest.mark.parametrize("clock", [
    pytest.param("real", marks=pytest.mark.multihost(ranks=2, clock="real")),
    pytest.param("jump", marks=pytest.mark.multihost(ranks=2, clock="jump")),
])
def test_a_child_has_the_clock_of_its_rank(world, clock):
    page, before_s = os.environ.get("PYTEST_MULTIHOST_CLOCK_PAGE"), world.clock.now()
    printed = subprocess.run([sys.executable, "-c", CHILD], capture_output=True, text=True)
    seen, now_s = printed.stdout.split()
    assert seen == str(page)
    assert before_s <= float(now_s) <= world.clock.now()
    assert (page is None) == (clock == "real")

@pytest.mark.multihost(ranks=2, clock="real")
def test_a_real_clock_never_jumps(world):
    began_s = world.clock.now()
    time.sleep(0.1)
    assert world.clock.now() - began_s >= 0.1
    assert (world.clock.jumps, world.clock.is_jumping) == (0, False)
"""

# A process that is not of the world makes its clock jump, so that it is known when it does.
JUMPS = """
import asyncio, faulthandler, os, subprocess, sys, threading, time
from pathlib import Path
import pytest
from pytest_multihost import faults

JUMP = '''
import sys, time
from pathlib import Path
from pytest_multihost.extensions.clock.page import ClockPage

page, by_s, over_s = ClockPage.open(Path(sys.argv[1])), *map(float, sys.argv[2:])
while over_s and not any(abs(each.timeout_s - over_s) < 1 for each in page.waits()):
    pass
page.jump(page.now() + by_s)
while page.wake():
    time.sleep(0.001)  # signals without a pause would keep their thread in its handler
'''

def jump(world, by_s, over_s=0):
    if world.is_primary:
        page, outside = os.environ["PYTEST_MULTIHOST_CLOCK_PAGE"], {**os.environ, "LD_PRELOAD": ""}
        command = [sys.executable, "-c", JUMP, page, str(by_s), str(over_s)]
        subprocess.run(command, env=outside, check=True)
    world.barrier()

pytestmark = pytest.mark.multihost(ranks=2, clock="jump", timeout=3000)
CHILD = "import time; print(time.monotonic(), time.time())"

def test_all_ranks_and_their_children_jump_together(world, tmp_path):
    began_s, date_s, jumps = world.clock.now(), time.time(), world.clock.jumps
    world.barrier()
    jump(world, 1000)
    assert world.clock.now() >= began_s + 1000
    assert time.time() >= date_s + 999
    assert world.clock.jumps > jumps
    printed = subprocess.run([sys.executable, "-c", CHILD], capture_output=True, text=True)
    now_s, child_date_s = map(float, printed.stdout.split())
    assert now_s >= began_s + 1000
    assert child_date_s >= date_s + 999
    (tmp_path / "file").touch()
    assert (tmp_path / "file").stat().st_mtime < date_s + 900

def test_a_sleep_ends_with_a_jump_over_it(world):
    began_s = time.monotonic()
    if not world.is_primary:
        time.sleep(1000)
        assert 1000 <= time.monotonic() - began_s < 1500
    jump(world, 1001, over_s=1000)

def test_faulthandler_follows(world, tmp_path):
    with (tmp_path / "stacks").open("w") as stacks:
        faulthandler.dump_traceback_later(500, file=stacks)
        world.barrier()
        jump(world, 299)
        assert not (tmp_path / "stacks").stat().st_size
        jump(world, 202)
        while not (tmp_path / "stacks").stat().st_size:
            os.sched_yield()
        faulthandler.cancel_dump_traceback_later()

async def wait_for_nothing(seconds):
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.Event().wait(), seconds)

def test_asyncio_and_locks_follow(world):
    began_s = time.monotonic()
    if not world.is_primary:
        asyncio.run(wait_for_nothing(700))
        assert 700 <= time.monotonic() - began_s < 900
    jump(world, 701, over_s=700)
    if not world.is_primary:
        assert not threading.Event().wait(800)
        assert 1500 <= time.monotonic() - began_s < 1900
    jump(world, 801, over_s=800)

@pytest.mark.multihost(faults=[faults.stale_files(rank=1, seconds=500, path="*/shared/*")])
def test_files_are_seen_after_so_long_in_the_worlds_time(world, shared_tmp_path):
    file = shared_tmp_path / "file"
    world.barrier()
    jump(world, 1000)
    if world.is_primary:
        file.touch()
    world.barrier()
    assert file.exists() == world.is_primary
    jump(world, 400)
    assert file.exists() == world.is_primary
    jump(world, 101)
    assert file.exists()
"""


@with_library
@pytest.mark.claim("test what happens after gloo's 30-minute timeout")
@pytest.mark.program(JUMPS)
def test_what_ranks_see_of_a_jump(worlds) -> None:
    """Their clocks, waits and children, and faults that last for a while; files keep real times."""
    worlds.run.assert_outcomes(passed=5)


@with_library
def test_each_test_has_the_clock_that_it_asks_for(run_worlds) -> None:
    """Its ranks, and what they start; the header says why there is a second server."""
    worlds = run_worlds(EITHER)
    worlds.run.assert_outcomes(passed=3)
    assert "launch: fork, server (clock=jump)" in worlds.stdout
    clocks = [each["clock"] for each in worlds.all_verdicts]
    assert clocks == ["real", "jump", "real"]


@with_library
@pytest.mark.parametrize(
    ("more", "args", "launch"),
    [
        ("", ("--multihost-clock=jump",), "server (clock=jump)"),
        (', env={"A": "b"}, clock="jump"', (), "server (env={'A': 'b'}; clock=jump)"),
        (
            ', clock="jump"',
            ("--multihost-fault", "slow_io(rank=0, seconds=0, path='*/ckpt/*')"),
            "server (slow_io; clock=jump)",
        ),
        (', clock="jump"', ("--multihost-launch=spawn",), "spawn (clock=jump)"),
        (
            ', clock="jump"',
            ("--multihost-fault", "hash_seed(rank='all')"),
            "spawn (hash_seed; clock=jump)",
        ),
    ],
    ids=["option", "env", "slow_io", "spawn", "hash_seed"],
)
def test_one_server_has_all_that_a_test_needs(
    run_worlds, more: str, args: tuple[str, ...], launch: str
) -> None:
    """Also fresh interpreters; the header names each reason."""
    worlds = run_worlds(ONE.format(more=more), *args)
    assert f"1 test runs on several ranks, launch: {launch}\n" in worlds.stdout
    assert worlds.verdicts["test_it"]["clock"] == "jump"
    outcomes = {each["outcome"] for each in worlds.verdicts["test_it"]["rank_results"]}
    assert outcomes == {"passed"}


@with_library
@pytest.mark.usefixtures("netns_hosts")
def test_hosts_of_namespaces_share_a_clock(run_worlds) -> None:
    """They have networks and names of their own, but this machine's memory and processes."""
    worlds = run_worlds(JUMPS, "-k", "sleep", "--multihost-hosts=netns")
    worlds.run.assert_outcomes(passed=1, deselected=4)
    hosts = [each["host"] for each in worlds.all_verdicts[0]["rank_results"]]
    assert hosts == ["host-0", "host-1"]


@with_library
def test_the_ini_file_and_the_environment_give_a_clock(
    run_worlds, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The environment counts more; a marker counts more than both."""
    pytester.makeini("[pytest]\nmultihost_clock = jump\n")
    assert run_worlds(ONE.format(more="")).verdicts["test_it"]["clock"] == "jump"
    marked = run_worlds(ONE.format(more=', clock="real"'))
    assert marked.verdicts["test_it"]["clock"] == "real"
    monkeypatch.setenv("PYTEST_MULTIHOST_CLOCK", "real")
    assert run_worlds(ONE.format(more="")).verdicts["test_it"]["clock"] == "real"


@pytest.mark.parametrize(
    ("more", "args", "words"),
    [
        (', clock="fast"', (), "clock must be 'real' or 'jump', not 'fast'"),
        ("", ("--multihost-clock=fast",), "--multihost-clock: must be one of real, jump, not"),
        (', clock="jump"', ("--multihost-launch=fork",), "leave out --multihost-launch=fork"),
    ],
    ids=["marker", "option", "fork"],
)
def test_what_cannot_be_is_a_usage_error(
    run_worlds, more: str, args: tuple[str, ...], words: str
) -> None:
    """Before any test runs, with what to do instead."""
    worlds = run_worlds(ONE.format(more=more), *args)
    assert worlds.run.ret == pytest.ExitCode.USAGE_ERROR
    assert words in worlds.run.stderr.str()
    assert worlds.all_verdicts == []


def test_a_machine_without_a_compiler_says_so(
    run_worlds, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A test whose clock shall jump does not run with another; tests with a real clock do."""
    monkeypatch.setenv("CC", "/no/compiler")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    worlds = run_worlds(ONE.format(more=', clock="jump"'))
    assert worlds.run.ret == pytest.ExitCode.USAGE_ERROR
    told = worlds.run.stderr.str()
    assert "clock='jump' needs a library that is not available here" in told
    assert "There is no C compiler" in told
    assert "or say clock='real'" in told
    run_worlds(ONE.format(more="")).run.assert_outcomes(passed=1)


TIMEOUTS = """
import time
import pytest

pytestmark = pytest.mark.multihost(ranks=2, clock="jump")

@pytest.mark.timeout(3600)
def test_ends_before(world):
    time.sleep(1800)
    world.barrier()

@pytest.mark.timeout(300)
def test_does_not_end_before(world):
    while world.is_primary:
        time.sleep(50)
    world.barrier()
"""


@with_library
@pytest.mark.program(TIMEOUTS, "-p", "timeout")
def test_a_timeout_of_pytest_timeout_counts_in_the_worlds_time(worlds) -> None:
    """As the marker's own does: it neither strikes half an hour too late, nor at once."""
    worlds.run.assert_outcomes(passed=1, failed=1)
    assert worlds.verdicts["test_ends_before"]["duration_s"] > 1800
    verdict = worlds.verdicts["test_does_not_end_before"]
    assert verdict["outcome"] == "hung"
    assert verdict["diagnosis"]["culprits"] == [0]
    assert 200 < verdict["duration_s"] < 400


ALARMS = """
import ctypes, select, signal, socket, threading, time
import pytest

pytestmark = pytest.mark.multihost(ranks=2, clock="jump", timeout=3000)

def test_alarms_come_when_the_clock_has_jumped(world):
    began_s, came_s, done = time.monotonic(), [], threading.Event()
    def comes(*_):
        came_s.append(time.monotonic() - began_s)
        if len(came_s) == 3:
            done.set()
    signal.signal(signal.SIGALRM, comes)
    if world.is_primary:
        signal.setitimer(signal.ITIMER_REAL, 500, 300)
        done.wait()
        signal.setitimer(signal.ITIMER_REAL, 0)
    world.barrier()
    for seconds, wanted in zip(came_s, (500, 800, 1100)):
        assert wanted <= seconds < wanted + 100

class timers(ctypes.Structure):
    _fields_ = [(name, ctypes.c_long) for name in ("every_s", "every_ns", "in_s", "in_ns")]

def test_timers_that_are_descriptors(world):
    began_s, libc = time.monotonic(), ctypes.CDLL(None)
    fd = libc.timerfd_create(time.CLOCK_MONOTONIC, 0)
    libc.timerfd_settime(fd, 0, ctypes.byref(timers(in_s=700)), None)
    assert select.select([fd], [], [])[0] == [fd]
    assert 700 <= time.monotonic() - began_s < 800
    world.barrier()

def test_sockets_have_timeouts_of_their_own(world):
    here, there = socket.socketpair()
    here.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, (900).to_bytes(8, "little") + bytes(8))
    began_s = time.monotonic()
    with pytest.raises(BlockingIOError):
        here.recv(1)
    assert 900 <= time.monotonic() - began_s < 1000
    world.barrier()
"""


@with_library
@pytest.mark.program(ALARMS)
def test_alarms_and_timeouts_of_sockets_follow(worlds) -> None:
    """What the kernel itself times: it does so in the machine's time, unless it is told."""
    worlds.run.assert_outcomes(passed=3)
