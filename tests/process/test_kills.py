"""Whoever is killed, and at whatever moment: nothing is left. More of it: benchmarks/soak.py."""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from runs import await_that, living, server_of, start_pytest
from runtimes import needs

MOMENTS = int(os.environ.get("KILL_MOMENTS", "3"))

# Each rank leaves a child in its own group, and one in a session of its own.
WORLDS = """
import pathlib, pytest, subprocess

@pytest.mark.parametrize("i", range({count}))
@pytest.mark.multihost(ranks=4)
def test_it(world, i):
    pathlib.Path("has_worlds").touch()
    subprocess.Popen(["sleep", "600"])
    subprocess.Popen(["sleep", "600"], start_new_session=True)
    world.barrier()
"""

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start pytest in a directory of its own; at the end nothing may be alive that works there."""
    started = []

    def start(source: str, *args: str, **variables: str) -> subprocess.Popen[str]:
        started.append(start_pytest(tmp_path, source, *args, **variables))
        return started[-1]

    yield start
    for run in started:
        run.kill()
    await_that(lambda: all(run.poll() is not None for run in started))
    left = living(tmp_path)
    for process in left:  # before the pipes are read to their ends, which they may hold open
        process.kill()
    for run in started:
        run.communicate(timeout=20)
    assert left == []


@pytest.mark.parametrize("moment", range(MOMENTS))
@pytest.mark.parametrize("mode", ["fork", "server"])
def test_nothing_outlives_pytest(start: Start, tmp_path: Path, mode: str, moment: int) -> None:
    """SIGKILL of pytest, some while it starts up and most in the middle of its worlds."""
    run = start(WORLDS.format(count=1000), f"--multihost-launch={mode}")
    if moment > 1:
        await_that((tmp_path / "has_worlds").exists)
    time.sleep(random.Random(f"{mode} {moment}").uniform(0.0, 1.0))
    assert run.poll() is None, "it was to be killed in the middle"
    run.kill()
    run.wait()
    await_that(lambda: living(tmp_path) == [])


@pytest.mark.parametrize("mode", ["fork", "server"])
def test_no_server_outlives_pytest_that_is_not_ready_yet(
    start: Start, tmp_path: Path, mode: str
) -> None:
    """It collects, or imports what the ranks share, for as long as the project takes."""
    (tmp_path / "conftest.py").write_text(
        """
import os, pathlib, time

def wait():
    pathlib.Path("waits").touch()
    time.sleep(600)

def pytest_multihost_server_start():
    wait()

def pytest_collection_modifyitems():
    if os.environ.get("PYTEST_MULTIHOST_SERVER"):
        wait()
"""
    )
    run = start(WORLDS.format(count=1), f"--multihost-launch={mode}")
    await_that((tmp_path / "waits").exists)
    assert len(living(tmp_path)) == 2
    run.kill()
    run.wait()
    await_that(lambda: living(tmp_path) == [])


@pytest.mark.parametrize(
    ("number", "status"),
    [
        (signal.SIGTERM, pytest.ExitCode.INTERRUPTED),
        (signal.SIGHUP, pytest.ExitCode.INTERRUPTED),
        (signal.SIGQUIT, -signal.SIGQUIT),
    ],
)
def test_nothing_outlives_pytest_that_is_told_to_go(
    start: Start, tmp_path: Path, number: signal.Signals, status: int
) -> None:
    """At any moment of a run, also by a signal that nobody handles."""
    run = start(WORLDS.format(count=1000))
    await_that(lambda: len(living(tmp_path)) > 2)
    run.send_signal(number)
    assert run.wait(timeout=60) == status
    await_that(lambda: living(tmp_path) == [])


def test_an_impatient_ctrl_c_leaves_nothing(start: Start, tmp_path: Path) -> None:
    """The second one comes while the ranks are being ended, and they take their time."""
    run = start(
        """
import pathlib, pytest, signal, time

@pytest.mark.multihost(ranks=4)
def test_it(world):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    world.barrier()
    pathlib.Path("deaf").touch()
    time.sleep(600)
"""
    )
    await_that((tmp_path / "deaf").exists)
    for _ in range(2):
        run.send_signal(signal.SIGINT)
        time.sleep(0.1)
    output, _ = run.communicate(timeout=30)
    assert "KeyboardInterrupt" in output
    await_that(lambda: living(tmp_path) == [])


@pytest.mark.parametrize("moment", range(MOMENTS))
def test_a_server_that_is_killed_costs_one_test_and_leaves_nothing(
    start: Start, tmp_path: Path, moment: int
) -> None:
    """At a random moment of a run; all other tests pass, with the server's replacement."""
    count = 15
    run = start(WORLDS.format(count=count))
    servers: list[psutil.Process] = []
    await_that(lambda: servers or servers.extend(filter(None, [server_of(run)])))
    time.sleep(random.Random(f"server {moment}").uniform(0.0, 0.4))
    servers[0].kill()
    output, _ = run.communicate(timeout=60)
    told = {
        word: int(number) for number, word in re.findall(r"(\d+) (passed|error|failed)", output)
    }
    errors = told.get("error", 0)
    assert (told["passed"] + errors, errors <= 1) == (count, True), output
    await_that(lambda: living(tmp_path) == [])


# Three hosts on a network with a fault, so that the server has a netfault daemon beside the ranks.
HOSTS = """
import pathlib, pytest, subprocess
from pytest_multihost import faults

@pytest.mark.parametrize("i", range(8))
@pytest.mark.multihost(ranks=3, hosts="netns", faults=[faults.net_delay(rank=0, seconds=0.01)])
def test_it(world, i):
    subprocess.Popen(["sleep", "600"], start_new_session=True)
    world.barrier()
"""


def started_with(text: str) -> list[int]:
    """Return the processes that have a text in the environment of their program, forks included."""
    found = []
    for pid in psutil.pids():
        with contextlib.suppress(OSError):
            if text.encode() in Path(f"/proc/{pid}/environ").read_bytes():
                found.append(pid)
    return found


def victim_of(run: subprocess.Popen[str], kind: str) -> psutil.Process | None:
    """Return the server, one of its ranks, or a child of it that is no rank."""
    server = server_of(run)
    if server is None or kind == "server":
        return server
    for child in server.children():
        with contextlib.suppress(OSError):
            if (os.getsid(child.pid) == child.pid) == (kind == "rank"):
                return child
    return None


def kill(process: psutil.Process | None) -> bool:
    """Kill a process; return whether it was still there."""
    with contextlib.suppress(psutil.NoSuchProcess):
        if process is not None:
            process.kill()
            return True
    return False


@pytest.mark.usefixtures("netns_hosts")
@pytest.mark.parametrize("moment", range(MOMENTS))
@pytest.mark.parametrize("kind", ["controller", "server", "rank", "daemon"])
def test_whatever_is_killed_leaves_no_process_namespace_or_file(
    start: Start, tmp_path: Path, kind: str, moment: int
) -> None:
    """And costs one test: at a random moment of worlds with namespaces, mounts and network faults.

    A namespace without a name ends with the last process that is in it or holds a descriptor of it,
    and with it the interfaces, addresses and mounts in it.
    """
    (tmp_path / "tmp").mkdir()
    run = start(HOSTS, TMPDIR=str(tmp_path / "tmp"))
    await_that(lambda: victim_of(run, "rank"))
    time.sleep(random.Random(f"{kind} {moment}").uniform(0.0, 0.8))
    assert started_with(str(tmp_path))
    if kind == "controller":
        run.kill()
    else:
        await_that(lambda: kill(victim_of(run, kind)))
    output, _ = run.communicate(timeout=100)
    if kind != "controller":
        last = output.splitlines()[-1]
        told = [int(each) for each in re.findall(r"(\d+) (?:passed|error|failed)", last)]
        assert sum(told) == 8, output
        assert int(re.findall(r"(\d+) passed", last)[0]) >= 7, output
    await_that(lambda: living(tmp_path) == [])
    await_that(lambda: started_with(str(tmp_path)) == [])
    left = [each.name for each in (tmp_path / "tmp").iterdir()]
    assert [each for each in left if not each.startswith("pytest-of-")] == []


@pytest.mark.parametrize("moment", range(MOMENTS))
def test_a_rank_that_is_killed_crashes_its_world_and_no_other(
    start: Start, tmp_path: Path, moment: int
) -> None:
    """By somebody else, at a random moment: the kernel for its memory, say."""
    run = start(
        """
import os, pathlib, pytest, time

@pytest.mark.multihost(ranks=4, timeout=30)
def test_it(world):
    if world.rank == 2:
        pathlib.Path("pid.new").write_text(str(os.getpid()))
        os.rename("pid.new", "pid")
    end = time.monotonic() + 20
    while time.monotonic() < end:
        world.barrier()

@pytest.mark.multihost(ranks=4)
def test_next(world):
    world.barrier()
"""
    )
    await_that((tmp_path / "pid").exists)
    time.sleep(random.Random(f"rank {moment}").uniform(0.0, 0.3))
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
    output, _ = run.communicate(timeout=60)
    assert "CRASHED  rank 2: was killed by SIGKILL in the test" in output
    assert "1 failed, 1 passed" in output
    await_that(lambda: living(tmp_path) == [])


def test_a_rank_that_is_stopped_from_outside_is_ended_with_its_world(
    start: Start, tmp_path: Path
) -> None:
    """SIGSTOP in the middle of a computation: it cannot end by itself, nor answer."""
    run = start(
        """
import os, pathlib, pytest

@pytest.mark.multihost(ranks=2, timeout=3)
def test_it(world):
    if world.rank:
        pathlib.Path("pid.new").write_text(str(os.getpid()))
        os.rename("pid.new", "pid")
        while True:
            sum(range(1000))
    world.barrier()

@pytest.mark.multihost(ranks=2)
def test_next(world):
    world.barrier()
"""
    )
    await_that((tmp_path / "pid").exists)
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGSTOP)
    output, _ = run.communicate(timeout=60)
    assert "HUNG  rank 1 is stopped by a signal such as SIGSTOP; rank 0 waits for it" in output
    assert "1 failed, 1 passed" in output
    await_that(lambda: living(tmp_path) == [])


# Each rank leaves a daemon that no longer has anything of it: no session, parent, descriptor or
# environment. It has not called exec either, so /proc shows the environment of pytest.
DAEMONS = """
import os, pathlib, pytest, signal, time

def leave_a_daemon():
    if os.fork():
        return
    os.setsid()
    if os.fork() == 0:
        os.environ.clear()
        os.closerange(0, 1000)
        time.sleep(600)
    pathlib.Path("daemons").open("a").write(f"{os.getpid()}\\n")
    os._exit(0)

@pytest.mark.multihost(ranks=2, timeout=60)
def test_it(world):
    leave_a_daemon()
    world.barrier()
    time.sleep(600)

@pytest.mark.multihost(ranks=2, timeout=60, backend="gloo")
@pytest.mark.multihost_expect(kind="straggler", culprits=[1])
def test_hang(world):
    world.barrier()
    if world.rank == 0:
        import torch.distributed
        torch.distributed.barrier()
    time.sleep(600)
"""


def await_daemons(path: Path) -> None:
    """Wait until the daemons of both ranks are alone."""
    file = path / "daemons"
    await_that(lambda: file.exists() and len(file.read_text().splitlines()) == 2)
    await_that(lambda: len([each for each in living(path) if each.ppid() != os.getpid()]) == 5)


@needs("torch")
@pytest.mark.parametrize("mode", ["fork", "spawn"])
def test_daemons_of_ranks_go_with_a_killed_server(start: Start, tmp_path: Path, mode: str) -> None:
    """And the next world is judged as ever: its hang is proven."""
    run = start(DAEMONS, f"--multihost-launch={mode}")
    await_daemons(tmp_path)
    server = server_of(run)
    assert server is not None
    server.kill()
    output, _ = run.communicate(timeout=100)
    assert "1 passed, 1 error" in output
    await_that(lambda: living(tmp_path) == [])


@needs("torch")
def test_daemons_of_ranks_go_with_a_killed_controller(start: Start, tmp_path: Path) -> None:
    """Its server ends them."""
    run = start(DAEMONS)
    await_daemons(tmp_path)
    run.kill()
    await_that(lambda: living(tmp_path) == [])


@needs("torch")
def test_daemons_of_ranks_go_before_the_next_server_serves(start: Start, tmp_path: Path) -> None:
    """Where controller and server were killed at once, as `pkill -9 pytest` does."""
    run = start(DAEMONS)
    await_daemons(tmp_path)
    server = server_of(run)
    assert server is not None
    server.suspend()  # so that it does not notice
    run.kill()
    server.kill()
    await_that(lambda: len(living(tmp_path)) == 2)
    output, _ = start(DAEMONS, "-k", "test_hang").communicate(timeout=100)
    assert "1 passed" in output
    await_that(lambda: living(tmp_path) == [])
