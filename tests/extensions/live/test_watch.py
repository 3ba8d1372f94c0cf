"""`pytest --multihost-watch` on plain tests that start their own ranks."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import pytest
from runtimes import require

pytestmark = pytest.mark.processes

TESTS = """
import datetime, fcntl, multiprocessing, os, pathlib, pytest, subprocess, sys, time

RANK = '''
import fcntl, os, sys, time
file = open(sys.argv[1], "w")
if os.environ["RANK"] == "1":
    fcntl.flock(file, fcntl.LOCK_EX)
    time.sleep(600)
time.sleep(1)
fcntl.flock(file, fcntl.LOCK_EX)
'''

def ranks(path):
    return [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(path / "lock")],
            env={**os.environ, "RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank),
                 "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511"},
        )
        for rank in (0, 1)
    ]

def test_hang(tmp_path):
    print([each.wait() for each in ranks(tmp_path)])

def test_rescue(tmp_path):
    found = ranks(tmp_path)
    try:
        found[0].wait(timeout=7)
    except subprocess.TimeoutExpired:
        pass
    [each.kill() for each in found]
    assert [each.wait() for each in found] == [-9, -9]

def test_gives_up(tmp_path):
    found = ranks(tmp_path)
    folder = pathlib.Path(os.environ["PYTEST_MULTIHOST_WATCHED"])
    until_s = time.monotonic() + 100
    while not [*folder.glob("*.answer")] and time.monotonic() < until_s:
        time.sleep(0.2)
    [each.kill() for each in found]
    [each.wait() for each in found]
    raise AssertionError("the suite's own limit")

def hold(path, rank):
    file, held = open(path, "w"), pathlib.Path(path + ".held")
    while rank != 1 and not held.exists():
        time.sleep(0.1)
    fcntl.flock(file, fcntl.LOCK_EX)
    held.touch()
    time.sleep(600)

def test_pool(tmp_path):
    with multiprocessing.get_context("fork").Pool(2) as pool:
        pool.starmap(hold, [(str(tmp_path / "lock"), rank) for rank in (0, 1)], chunksize=1)

def test_no_answer():
    context = multiprocessing.get_context("spawn")
    answers, one = context.Queue(), context.Process(target=int)
    one.start()
    assert answers.get() == 1

def test_outer():
    hold("lock", int(os.environ.get("RANK", os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:])))

def listen(pipe):
    pipe.recv()

def test_pipes():
    context = multiprocessing.get_context("spawn")
    pairs = [context.Pipe() for _ in range(2)]
    [context.Process(target=listen, args=(theirs,)).start() for _, theirs in pairs]
    assert [mine.recv() for mine, _ in pairs]

def test_nested():
    subprocess.run([sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:randomly",
                    "test_it.py::test_pool"], capture_output=True)

def test_key():
    import torch.distributed as dist
    rank = int(os.environ["PYTEST_XDIST_WORKER"][2:])
    if rank == 1:
        os._exit(0)
    store = dist.TCPStore("127.0.0.1", int(os.environ["KEY_PORT"]), None, rank == 0)
    store.set_timeout(datetime.timedelta(minutes=30))
    store.get("of rank 1")

@pytest.mark.multihost(ranks=2, backend="none", timeout=8)
def test_world(world):
    hold("lock", world.rank)

def test_naps():
    subprocess.run(["sleep", "600"])

def test_fails():
    assert os.getppid() != 1 and not 1

def test_is_watched():
    assert "PYTEST_MULTIHOST_WATCHED" in os.environ

def test_imports():
    rooms = ["attempt", "blame", "engine", "report"]
    assert os.environ["PYTEST_MULTIHOST_WATCHED"]
    assert [room for room in rooms if f"pytest_multihost.core.{room}" in sys.modules] == []

if __name__ == "__main__":
    test_hang(pathlib.Path.cwd())
"""
PYTEST = ("pytest", "-p", "no:cacheprovider", "-p", "no:randomly")
MULTIHOST = ("pytest_multihost.core.command.main", "watch", "--")
OUTSIDE = {name: text for name, text in os.environ.items() if name != "PYTEST_XDIST_WORKER"}
"""A worker of xdist is watched by the watcher above its controller, and starts none of its own."""

LINE = "nothing can move any more in test_it.py::"
Start = Callable[..., subprocess.Popen[str]]
T = TypeVar("T")


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start pytest, or another module, in a session of its own; end all of it."""
    started: list[subprocess.Popen[str]] = []

    def begin(
        *words: str, module: Sequence[str] = PYTEST, **variables: str
    ) -> subprocess.Popen[str]:
        (tmp_path / "test_it.py").write_text(TESTS)
        started.append(
            subprocess.Popen(
                [sys.executable, "-m", *module, *words],
                cwd=tmp_path,
                env={**OUTSIDE, **variables},
                text=True,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        )
        return started[-1]

    yield begin
    for each in started:
        subprocess.run(["pkill", "-KILL", "-s", str(each.pid)], check=False)
        each.communicate()


def read_until(run: subprocess.Popen[str], text: str, within_s: float = 120.0) -> str:
    """Return what a run prints until a text appears."""
    assert run.stdout is not None
    found, end_s = "", time.monotonic() + within_s
    while text not in found and time.monotonic() < end_s and (line := run.stdout.readline()):
        found += line
    assert text in found, found
    return found


@pytest.mark.claim("I have a suite that hangs, and will not rewrite it")
def test_a_hang_is_said_at_once_and_its_page_follows_when_the_run_is_interrupted(
    start: Start,
) -> None:
    """Ctrl-C ends pytest as always; the page names the rank that holds the lock."""
    run = start("--multihost-watch", "test_it.py::test_hang")
    read_until(run, f"{LINE}test_hang")
    os.killpg(run.pid, signal.SIGINT)
    rest, _ = run.communicate(timeout=60)
    assert run.returncode == pytest.ExitCode.INTERRUPTED
    assert "test_hang was interrupted" in rest
    assert "rank 1" in rest


def test_the_report_of_a_test_that_fails_has_the_page(start: Start, tmp_path: Path) -> None:
    """A limit of the suite ends the ranks; the page says for whom they waited, and is kept."""
    out, _ = start("--multihost-watch", "test_it.py::test_gives_up").communicate(timeout=200)
    assert "AssertionError: the suite's own limit" in out
    assert "multihost watch: for whom the ranks waited" in out
    [folder] = (tmp_path / ".pytest_multihost" / "watched").iterdir()
    assert json.loads((folder / "verdict.json").read_text())["diagnosis"]["culprits"] == [1]
    assert "rank 1" in (folder / "page.txt").read_text()


def test_ranks_are_ended_on_a_proof_if_that_is_asked(start: Start) -> None:
    """The test fails with the page, although it ignores how its ranks have ended."""
    run = start("--multihost-watch=end", "test_it.py::test_hang", "test_it.py::test_rescue")
    out, _ = run.communicate(timeout=200)
    assert f"{LINE}test_hang; its ranks are ended" in out
    assert "1 failed, 1 passed" in out
    assert "HUNG  rank 0 waits for a lock that rank 1 holds" in out
    assert "The test itself: it would have passed" in out


def test_workers_of_a_pool_are_not_ended_alone(start: Start) -> None:
    """The pool would start others, and its task would be lost: the run is stopped."""
    out, _ = start("--multihost-watch=end", "test_it.py::test_pool").communicate(timeout=200)
    assert f"{LINE}test_pool; its ranks are workers of a pool, so the run is stopped" in out
    assert "KeyboardInterrupt" in out


def test_a_test_that_waits_alone_is_named_and_the_run_is_stopped(start: Start) -> None:
    """Its rank has ended without an answer: there is nobody to end but pytest."""
    out, _ = start("--multihost-watch=end", "test_it.py::test_no_answer").communicate(timeout=200)
    assert f"{LINE}test_no_answer; it has no ranks, so the run is stopped" in out
    assert "the test itself waits at test_it.py:" in out
    assert "KeyboardInterrupt" in out


def test_a_test_that_its_ranks_wait_for_is_named(start: Start) -> None:
    """Both sides of their pipes listen."""
    run = start("--multihost-watch", "test_it.py::test_pipes")
    assert "the test itself waits at test_it.py:" in read_until(run, f"{LINE}test_pipes")


def test_a_pytest_that_a_test_has_started_is_watched(start: Start) -> None:
    """The ranks are those of the inner test, not its process."""
    run = start("--multihost-watch", "test_it.py::test_nested")
    assert "rank 0 waits for a lock that rank 1 holds" in read_until(run, f"{LINE}test_pool")


def test_any_command_can_be_watched(start: Start) -> None:
    """A script without pytest gets the line and the page at once, and is not ended."""
    run = start(sys.executable, "test_it.py", module=MULTIHOST)
    found = read_until(run, "nothing can move any more in process")
    found += read_until(run, "HUNG")
    assert "rank 1" in found
    assert run.poll() is None
    os.kill(run.pid, signal.SIGTERM)
    run.wait(timeout=60)  # its ranks keep the pipe open
    assert run.returncode == -signal.SIGTERM


def test_a_watched_command_ends_with_its_own_status(start: Start) -> None:
    """As without the watcher."""
    run = start("sh", "-c", "exit 7", module=MULTIHOST)
    out, _ = run.communicate(timeout=60)
    assert (run.returncode, out) == (7, "")


def test_a_test_that_rescues_its_ranks_is_left_alone(start: Start) -> None:
    """The limit of its wait ends the wait, however still its ranks are."""
    out, _ = start("--multihost-watch", "test_it.py::test_rescue").communicate(timeout=120)
    assert "1 passed" in out
    assert LINE not in out


def test_the_status_is_pytests(start: Start) -> None:
    """A test that fails fails the run, and a watcher that finds nothing says nothing."""
    run = start("--multihost-watch", "test_it.py::test_fails")
    out, _ = run.communicate(timeout=120)
    assert run.returncode == pytest.ExitCode.TESTS_FAILED
    assert "multihost watch" not in out


def test_a_watched_run_without_worlds_imports_nothing_that_runs_or_judges_worlds(
    start: Start,
) -> None:
    """Such an import takes half a second of a processor, which short suites notice."""
    out, _ = start("--multihost-watch", "test_it.py::test_imports").communicate(timeout=100)
    assert "1 passed" in out, out


@pytest.mark.parametrize(
    ("plugin", "is_watched"),
    [
        pytest.param("import numpy", True, id="threads-that-end-at-a-fork"),
        pytest.param(
            "from threading import *; Thread(target=Event().wait, daemon=True).start()",
            False,
            id="a-thread-that-a-child-would-lack",
        ),
    ],
)
def test_a_plugin_with_threads(start: Start, tmp_path: Path, plugin: str, is_watched: bool) -> None:
    """A run is watched unless the fork would lose a thread; then it runs on as it is."""
    (tmp_path / "with_threads.py").write_text(
        f"import os\n{plugin}\nassert len(os.listdir('/proc/self/task')) > 1\n"
    )
    words = ("-p", "with_threads", "--multihost-watch", "test_it.py::test_is_watched")
    variables = {"OPENBLAS_NUM_THREADS": "2", "TMPDIR": str(tmp_path), "PYTHONPATH": str(tmp_path)}
    out, _ = start(*words, **variables).communicate(timeout=100)
    assert ("1 passed" in out) == is_watched, out
    assert ("so it is not watched: use multihost watch -- pytest" in out) != is_watched
    assert [*tmp_path.glob("multihost-watch-*")] == []


def test_a_signal_to_the_first_process_reaches_pytest(start: Start) -> None:
    """`kill PID` ends the run with the same status as without the watcher."""
    run = start("--multihost-watch", "test_it.py::test_hang")
    read_until(run, f"{LINE}test_hang")
    os.kill(run.pid, signal.SIGTERM)
    run.communicate(timeout=60)
    assert run.returncode == -signal.SIGTERM


def test_no_pytest_is_left_when_its_watcher_is_killed(start: Start) -> None:
    """The child ends with its parent."""
    run = start("--multihost-watch", "test_it.py::test_hang")
    read_until(run, f"{LINE}test_hang")
    os.kill(run.pid, signal.SIGKILL)
    run.wait()
    time.sleep(1.0)
    left = subprocess.run(
        ["pgrep", "-s", str(run.pid), "-f", "--", "-m pytest"], check=False, capture_output=True
    )
    assert left.stdout == b""


def test_ranks_of_a_test_in_a_worker_of_xdist_are_watched(start: Start) -> None:
    """The watcher above the controller watches; plugins that talk to it end no wait of a test."""
    require("xdist")
    run = start(
        "--multihost-watch=end", "-n", "2", "test_it.py::test_hang", "test_it.py::test_fails"
    )
    out, _ = run.communicate(timeout=200)
    assert f"{LINE}test_hang; its ranks are ended" in out
    assert "2 failed" in out
    assert "HUNG  rank 0 waits for a lock that rank 1 holds" in out


def test_workers_that_are_ranks_themselves_are_watched(start: Start) -> None:
    """With --dist=each; the page is shown once."""
    require("xdist")
    run = start("--multihost-watch", "-n", "2", "--dist=each", "test_it.py::test_outer")
    read_until(run, f"{LINE}test_outer")
    os.killpg(run.pid, signal.SIGINT)
    rest, _ = run.communicate(timeout=60)
    assert rest.count("test_outer was interrupted") == 1
    assert "rank 0 waits for a lock that rank 1 holds" in rest


def test_a_worker_that_has_ended_is_named_if_the_others_wait_for_it(start: Start) -> None:
    """With --dist=each; xdist has replaced it, and the new worker has no test."""
    require("xdist")
    require("torch")
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = str(found.getsockname()[1])
    run = start("--multihost-watch", "-n3", "--dist=each", "test_it.py::test_key", KEY_PORT=port)
    assert "rank 1 has ended" in read_until(run, f"{LINE}test_key")


def test_pytests_that_a_launcher_has_started_as_ranks_are_watched(start: Start) -> None:
    """As by `multihost watch -- torchrun -m pytest`: each is a rank of one job."""
    one = f"{sys.executable} -m {' '.join(PYTEST)} test_it.py::test_outer"
    variables = "WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29517"
    ranks = " & ".join(f"RANK={rank} LOCAL_RANK={rank} {variables} {one}" for rank in (0, 1))
    run = start("sh", "-c", f"{ranks} & wait", module=MULTIHOST)
    assert "rank 0 waits for a lock that rank 1 holds" in read_until(run, f"{LINE}test_outer")


@pytest.mark.parametrize("method", ["signal", "thread"])
def test_a_limit_of_pytest_timeout_shows_the_page(start: Start, method: str) -> None:
    """Its alarm fails the test, whose report has the page; its thread ends pytest."""
    require("pytest_timeout")
    limit = ("--timeout=25", f"--timeout-method={method}")
    run = start("--multihost-watch", *limit, "test_it.py::test_hang")
    out = read_until(run, "files     processes")
    assert f"{LINE}test_hang" in out
    title = {"signal": "multihost watch: for whom the ranks waited", "thread": "was interrupted"}
    assert title[method] in out


def test_a_world_is_not_watched_twice(start: Start) -> None:
    """Its own controller does that."""
    out, _ = start("--multihost-watch", "test_it.py::test_world").communicate(timeout=200)
    assert "1 failed" in out
    assert "multihost watch" not in out


def test_nothing_is_left_when_the_watcher_is_killed(start: Start, tmp_path: Path) -> None:
    """Not even the folder in which pytest told its tests."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    run = start("--multihost-watch", "test_it.py::test_hang", TMPDIR=str(scratch))
    read_until(run, f"{LINE}test_hang")
    assert any(scratch.glob("multihost-watch-*"))
    os.kill(run.pid, signal.SIGKILL)
    run.wait()
    until_s = time.monotonic() + 30.0
    while any(scratch.glob("multihost-watch-*")) and time.monotonic() < until_s:
        time.sleep(0.1)
    assert not any(scratch.glob("multihost-watch-*"))


def test_ctrl_z_stops_pytest_and_its_watcher_and_fg_continues_both(tmp_path: Path) -> None:
    """The shell sees that its child is stopped, and ends it later."""
    (tmp_path / "test_it.py").write_text(TESTS)
    command = [sys.executable, "-m", *PYTEST, "--multihost-watch", "test_it.py::test_naps"]
    with subprocess.Popen(
        command, cwd=tmp_path, env=OUTSIDE, process_group=0, stdout=subprocess.DEVNULL
    ) as run:
        try:
            watched = until(lambda: children(run.pid) and children(children(run.pid)[-1]))
            os.killpg(run.pid, signal.SIGTSTP)
            until(lambda: all(state(pid) == "T" for pid in (run.pid, *watched)))
            os.killpg(run.pid, signal.SIGCONT)
            until(lambda: all(state(pid) == "S" for pid in (run.pid, *watched)))
            os.killpg(run.pid, signal.SIGINT)
            assert run.wait(timeout=60) == pytest.ExitCode.INTERRUPTED
        finally:
            with contextlib.suppress(ProcessLookupError):  # it has ended
                os.killpg(run.pid, signal.SIGKILL)


def until(ask: Callable[[], T]) -> T:
    """Return an answer as soon as it is true."""
    end_s = time.monotonic() + 60.0
    while not (found := ask()) and time.monotonic() < end_s:
        time.sleep(0.1)
    assert found
    return found


def children(pid: int) -> list[int]:
    """Return the children of a process in its own group, in the order of their start."""
    found = subprocess.run(["pgrep", "-P", str(pid)], check=False, capture_output=True)
    return [each for each in map(int, found.stdout.split()) if os.getpgid(each) == os.getpgid(pid)]


def state(pid: int) -> str:
    """Return the letter of a process's state."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
