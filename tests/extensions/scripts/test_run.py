"""A script run in ranks with `multihost run`."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from runs import await_that, living
from runtimes import needs_clock_library, require
from scripts import run_script, start_script

HANG = """
import time
from pytest_multihost import current_world

def read_shard():
    time.sleep(600)

world = current_world()
print("up", flush=True)
if world.rank == 1:
    read_shard()
world.barrier("step")
"""


@pytest.fixture(autouse=True)
def nothing_left(tmp_path: Path) -> Iterator[None]:
    """No process works in the directory of the script when its run is over."""
    yield
    await_that(lambda: living(tmp_path) == [])


def verdict_in(path: Path) -> Any:  # noqa: ANN401 - JSON
    """Return the verdict of the last run."""
    [found] = (path / ".pytest_multihost" / "latest").glob("*/verdict.json")
    return json.loads(found.read_text())


@pytest.mark.claim("run a script, not a test")
def test_the_rank_that_hangs_and_its_line_are_named(tmp_path: Path) -> None:
    """By proof, as in a test, though the script has no timeout."""
    code, printed = run_script(tmp_path, HANG)
    assert code == 3
    assert "HUNG  rank 1 never reached world.barrier" in printed
    assert "which is longer than the 300 s of --horizon" in " ".join(printed.split())
    found = verdict_in(tmp_path)["diagnosis"]
    assert (found["kind"], found["culprits"], found["waiting"]) == ("straggler", [1], [0])
    assert found["where"]["file"] == "train.py"
    assert found["where"]["source"] == "time.sleep(600)"


def test_a_timeout_that_comes_before_the_horizon_is_the_limit_that_is_named(tmp_path: Path) -> None:
    """A sleep of half an hour is longer than both."""
    code, printed = run_script(tmp_path, HANG, "--timeout", "20", "train.py")
    assert code == 3
    words = " ".join(printed.split())
    assert "and the timeout is 20 s; found" in words
    assert "set a longer timeout if it may sleep that long" in words
    assert "horizon" not in words


def test_a_hang_leaves_a_page_and_can_be_explained_again(tmp_path: Path) -> None:
    """The same files as those of a test."""
    run_script(tmp_path, HANG)
    [folder] = (tmp_path / ".pytest_multihost" / "latest").glob("train.py-*")
    assert {"report.html", "rank-0.log"} <= {each.name for each in folder.iterdir()}
    command = [sys.executable, "-m", "pytest_multihost.core.command.main", "explain", str(folder)]
    again = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert again.stdout.splitlines()[-1] == "agrees with verdict.json"


def test_a_rank_that_waits_in_torch_is_named(tmp_path: Path) -> None:
    """The script initialises torch from the environment, as under torchrun."""
    require("torch", reason="the script's collectives are torch's")
    source = """
import time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
if dist.get_rank() == 0:
    time.sleep(600)
dist.all_reduce(torch.ones(3))
"""
    code, printed = run_script(tmp_path, source)
    assert code == 3
    assert "HUNG  rank 0 never reached all_reduce" in printed


def test_a_script_that_ends_well_leaves_nothing(tmp_path: Path) -> None:
    """Each line of the output says whose it is."""
    code, printed = run_script(tmp_path, "import os\nprint('I am', os.environ['RANK'])\n")
    assert code == 0
    assert sorted(printed.splitlines()) == ["[rank 0] I am 0", "[rank 1] I am 1"]
    assert [each.name for each in tmp_path.iterdir()] == ["train.py"]  # it is $TMPDIR as well


def test_a_rank_may_wait_for_the_end_of_another(tmp_path: Path) -> None:
    """What a rank that is over has open is closed in the end, if only another waits for that."""
    source = """
import os
from pytest_multihost import current_world
world = current_world()
if world.rank == 0:
    os.mkfifo("fifo")
world.barrier()
if world.rank == 0:
    kept = open("fifo", "w")
    print("data", file=kept, flush=True)
else:
    print(open("fifo").read(), end="")
"""
    code, printed = run_script(tmp_path, source)
    assert (code, printed) == (0, "[rank 1] data\n")


def test_the_files_of_a_script_that_ends_well_can_be_kept(tmp_path: Path) -> None:
    """With --keep."""
    code, _ = run_script(tmp_path, "print('done')\n", "--keep", "train.py")
    assert code == 0
    assert verdict_in(tmp_path)["outcome"] == "passed"


def test_output_can_go_to_files_alone(tmp_path: Path) -> None:
    """With --log-dir nothing of it is shown."""
    code, printed = run_script(tmp_path, "print('done')\n", "--log-dir", "logs", "train.py")
    assert (code, printed) == (0, "")
    [log] = tmp_path.glob("logs/latest/*/rank-1.log")
    assert log.read_text() == "done\n"


def test_a_script_sees_the_proxy_and_no_outer_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may load its data through that; the rank is its own."""
    monkeypatch.setenv("https_proxy", "http://proxy:3128")
    monkeypatch.setenv("RANK", "7")
    source = "import os\nprint(os.environ['https_proxy'], os.environ['RANK'])\n"
    code, printed = run_script(tmp_path, source, "-n1", "train.py")
    assert (code, printed) == (0, "[rank 0] http://proxy:3128 0\n")


def test_a_rank_that_raises_is_named_with_its_traceback(tmp_path: Path) -> None:
    """The exit code is 1, and no frame of ours is in the traceback."""
    source = "import os\nif os.environ['RANK'] == '1':\n    raise ValueError('no shard')\n"
    code, printed = run_script(tmp_path, source)
    assert code == 1
    assert "FAILED  rank 1: ValueError: no shard" in printed
    _, _, page = printed.partition("FAILED")
    assert "Traceback (most recent call last):" in page
    assert f'File "{tmp_path}/train.py", line 3' in page
    assert "runpy" not in printed
    assert "scripts/in_rank.py" not in printed
    assert "rank/body.py" not in printed


@pytest.mark.parametrize(
    ("status", "code"), [("", 0), ("0", 0), ("3", 1), ("'no data'", 1)], ids=str
)
def test_exit_codes_of_ranks_count(tmp_path: Path, status: str, code: int) -> None:
    """As under torchrun: a rank that ends with one fails the run."""
    assert run_script(tmp_path, f"import sys\nsys.exit({status})\n")[0] == code


def test_a_rank_that_dies_is_named(tmp_path: Path) -> None:
    """The exit code is 1."""
    source = "import os\nif os.environ['RANK'] == '0':\n    os.kill(os.getpid(), 9)\n"
    code, printed = run_script(tmp_path, source)
    assert code == 1
    assert "CRASHED  rank 0: was killed by SIGKILL" in printed


def test_a_world_that_is_never_done_is_ended_at_its_timeout(tmp_path: Path) -> None:
    """It may still move: that is not proven to be a hang."""
    source = "import time\nwhile True:\n    time.sleep(0.05)\n"
    code, printed = run_script(tmp_path, source, "--timeout", "2", "train.py")
    assert code == 3
    assert "took longer than 2 s" in printed


def test_ctrl_c_shows_where_the_ranks_were_and_ends_them(tmp_path: Path) -> None:
    """Also of ranks that are merely slow."""
    source = "import time\nprint('up', flush=True)\nwhile True:\n    time.sleep(0.05)\n"
    process = start_script(tmp_path, source, "train.py")
    assert process.stdout is not None
    assert "up" in process.stdout.readline()
    assert "up" in process.stdout.readline()
    process.send_signal(signal.SIGINT)
    printed, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "interrupted by Ctrl-C; where the ranks were:" in printed
    assert "train.py:4" in printed


def test_when_the_controller_is_killed_its_ranks_end(tmp_path: Path) -> None:
    """Nobody is left to end them."""
    source = "import time\nprint('up', flush=True)\ntime.sleep(600)\n"
    process = start_script(tmp_path, source, "--horizon", "3600", "train.py")
    assert process.stdout is not None
    assert "up" in process.stdout.readline()
    process.kill()
    process.communicate(timeout=60)
    await_that(lambda: living(tmp_path) == [])


def test_when_the_controller_is_killed_its_temporary_files_are_removed(tmp_path: Path) -> None:
    """Its server does that, which outlives it."""
    source = "import time\nprint('up', flush=True)\ntime.sleep(600)\n"
    process = start_script(tmp_path, source, "--horizon", "3600", "train.py")
    assert process.stdout is not None
    assert "up" in process.stdout.readline()
    found = [each.name for each in tmp_path.glob("multihost-run-*")]
    process.kill()
    process.communicate(timeout=60)
    await_that(lambda: not list(tmp_path.glob("multihost-run-*")))
    assert len(found) == 1


def test_what_killed_runs_have_left_is_removed_by_the_next_one(tmp_path: Path) -> None:
    """Server and controller may be killed together; what a run still uses is locked."""
    for name in ("left", "used", "young"):
        (tmp_path / f"multihost-run-{name}").mkdir()
    for name in ("left", "used"):
        os.utime(tmp_path / f"multihost-run-{name}", (0, 0))
    used = os.open(tmp_path / "multihost-run-used", os.O_RDONLY)
    try:
        fcntl.flock(used, fcntl.LOCK_EX)
        assert run_script(tmp_path, "", "-n1", "train.py")[0] == 0
    finally:
        os.close(used)
    kept = {each.name for each in tmp_path.glob("multihost-run-*")}
    assert kept == {"multihost-run-used", "multihost-run-young"}


def test_a_progress_bar_is_shown_as_it_is_in_the_end(tmp_path: Path) -> None:
    """One line, and not one for each time that it was drawn."""
    source = "for share in (10, 50, 100):\n    print(f'\\r{share} %', end='')\nprint()\n"
    code, printed = run_script(tmp_path, source, "-n1", "train.py")
    assert (code, printed) == (0, "[rank 0] 100 %\n")


def test_a_terminal_shows_who_is_waited_for(tmp_path: Path) -> None:
    """As long as nothing is printed, which has a colour for each rank; it is gone in the end."""
    source = """
import time
from pytest_multihost import current_world
world = current_world()
print("begins")
end_s = time.monotonic() + 6
while world.rank == 1 and time.monotonic() < end_s:
    time.sleep(0.05)
world.barrier("step")
"""
    (tmp_path / "train.py").write_text(source)
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "pytest_multihost.core.command.main", "run", "-n2", "train.py"]
    left_out = ("CI", "NO_COLOR")
    variables = {name: value for name, value in os.environ.items() if name not in left_out}
    with subprocess.Popen(command, cwd=tmp_path, env=variables, stdout=theirs) as process:
        os.close(theirs)
        shown = b""
        with contextlib.suppress(OSError):  # EIO: the other end is closed
            while chunk := os.read(ours, 4096):
                shown += chunk
        os.close(ours)
        assert process.wait(timeout=60) == 0
    assert b"\x1b[36m[rank 0]\x1b[0m begins" in shown
    assert b"s: waiting for rank 1" in shown
    assert shown.endswith(b"\r\x1b[K")


def test_a_terminal_that_does_not_control_the_processes_is_read(tmp_path: Path) -> None:
    """It has no foreground, so nobody else reads it."""
    (tmp_path / "ask.py").write_text("print('read', input())\n")
    command = [sys.executable, "-m", "pytest_multihost.core.command.main", "run", "-n1", "ask.py"]
    ours, theirs = pty.openpty()
    os.write(ours, b"words\n")
    done = subprocess.run(
        command,
        cwd=tmp_path,
        stdin=theirs,
        capture_output=True,
        text=True,
        start_new_session=True,
        timeout=60,
        check=False,
    )
    os.close(ours)
    os.close(theirs)
    assert "read words" in done.stdout, done.stderr


def test_neither_the_ranks_nor_what_runs_them_import_pytest(tmp_path: Path) -> None:
    """It need not even be installed where jobs run."""
    source = "import sys\nprint({'pytest', '_pytest'} & set(sys.modules) or 'none')\n"
    (tmp_path / "train.py").write_text(source)
    program = """
import sys
from pytest_multihost.core.command.main import main
sys.argv = ["multihost", "run", "--keep", "--ranks", "1", "train.py"]
assert main() == 0
print({"pytest", "_pytest"} & set(sys.modules) or "none")
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60
    )
    first, *_, last = done.stdout.splitlines()
    assert (first, last) == ("[rank 0] none", "none")


def test_a_script_whose_ranks_differ_has_failed(tmp_path: Path) -> None:
    """Each rank ends well, and says with `world.same` what all are to have."""
    source = """
    from pytest_multihost import current_world

    world = current_world()
    world.same("size", world.size)
    world.same("step", world.rank)
    """
    code, printed = run_script(tmp_path, textwrap.dedent(source))
    assert code == 1
    assert "FAILED  ranks differ in 'step': rank 0 has 0 (train.py:6); rank 1 has 1" in printed


def test_a_module_runs_with_its_arguments(tmp_path: Path) -> None:
    """As with python -m: found from the working directory, its package imported."""
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "name.py").write_text("NAME = 'relative'\n")
    (package / "module.py").write_text(
        "import sys\nfrom .name import NAME\nprint(__name__, NAME, sys.argv[1:])\n"
    )
    code, printed = run_script(tmp_path, "", "-m", "package.module", "--lr", "0.1", "-m")
    assert code == 0
    assert "[rank 0] __main__ relative ['--lr', '0.1', '-m']" in printed


def test_a_fault_is_performed(tmp_path: Path) -> None:
    """At its point, and in its rank alone."""
    (tmp_path / "storage.py").write_text("def load():\n    return 1\n")
    fault = "raise_at(rank=1, error=\"OSError\", at=at.call('storage:load'))"
    code, printed = run_script(
        tmp_path, "import storage\nstorage.load()\n", "--fault", fault, "train.py"
    )
    assert code == 1
    assert "FAILED  rank 1: OSError" in printed
    assert "replay    multihost run --ranks 2 --fault" in printed


@needs_clock_library()
def test_the_clock_of_a_script_may_jump(tmp_path: Path) -> None:
    """Its ranks have a page for it, and the line that runs it again says so."""
    source = """
import os, pytest_multihost, time
clock = pytest_multihost.current_world().clock
print(os.path.exists(os.environ["PYTEST_MULTIHOST_CLOCK_PAGE"]), clock.now() <= time.monotonic())
raise RuntimeError
"""
    code, printed = run_script(tmp_path, source, "--clock", "jump", "train.py")
    assert code == 1
    assert printed.count("True True") == 2
    assert "replay    multihost run --ranks 2 --clock jump" in printed
    assert verdict_in(tmp_path)["clock"] == "jump"


def test_the_clock_of_a_script_is_the_machines(tmp_path: Path) -> None:
    """Unless it is asked for another."""
    source = "import os\nprint('PYTEST_MULTIHOST_CLOCK_PAGE' in os.environ)\n"
    code, printed = run_script(tmp_path, source)
    assert (code, printed.count("False")) == (0, 2)


def join(path: Path, source: str, **variables: str) -> list[subprocess.Popen[str]]:
    """Start two processes as torchrun does, with more variables; each runs the same command."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    (path / "train.py").write_text(source)
    return [
        subprocess.Popen(
            [sys.executable, "-m", "pytest_multihost.core.command.main", "run", "train.py"],
            cwd=path,
            env={**os.environ, **shared, "RANK": str(rank), **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]


def test_processes_of_a_launcher_join(tmp_path: Path) -> None:
    """Each starts its rank; rank 0's shows the output of all."""
    source = "import os\nprint(os.environ['RANK'], 'of', os.environ['WORLD_SIZE'])\n"
    processes = join(tmp_path, source)
    first, second = (each.communicate(timeout=100)[0] for each in processes)
    assert [each.returncode for each in processes] == [0, 0]
    assert sorted(first.splitlines()) == ["[rank 0] 0 of 2", "[rank 1] 1 of 2"]
    assert second == ""


def test_the_others_end_after_a_process_of_rank_0_that_takes_long_to_end(tmp_path: Path) -> None:
    """A launcher blames the first process that fails."""
    (tmp_path / "sitecustomize.py").write_text(
        """
import atexit, os, time
if os.environ.get("RANK") == "0" and "PYTEST_MULTIHOST_JOB" not in os.environ:
    atexit.register(time.sleep, 3)
"""
    )
    first, second = join(tmp_path, "raise SystemExit(1)\n", PYTHONPATH=str(tmp_path))
    second.wait(100)
    assert first.poll() is not None
    assert [each.wait(100) for each in (first, second)] == [1, 1]
    for each in (first, second):
        each.communicate()


def test_a_rank_of_another_process_is_named(tmp_path: Path) -> None:
    """With its line; all processes end with the exit code of the run."""
    processes = join(tmp_path, HANG)
    first, _ = (each.communicate(timeout=100)[0] for each in processes)
    assert [each.returncode for each in processes] == [3, 3]
    assert "HUNG  rank 1 never reached world.barrier" in first
    assert "time.sleep(600)" in first


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["missing.py"], "there is no script missing.py"),
        (["--hosts", "moon", "train.py"], "must be one of one, netns"),
        (["--fault", "burn(rank=0)", "train.py"], "there is no faults.burn"),
        (["--fault", "kill(rank=7)", "train.py"], "--fault"),
        (["--clock", "fast", "train.py"], "must be one of real, jump, not 'fast'"),
    ],
    ids=["script", "hosts", "fault", "rank", "clock"],
)
def test_what_cannot_be_run_is_said(tmp_path: Path, args: list[str], words: str) -> None:
    """Before any rank is started; the exit code is 2."""
    code, printed = run_script(tmp_path, "", *args)
    assert code == 2
    assert words in printed
    assert "Traceback" not in printed


def test_a_child_that_runs_on_does_not_speak_for_its_rank(tmp_path: Path) -> None:
    """It ends as a process of Python does, and its rank goes on."""
    source = """
import os
if os.fork():
    assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
    print("parent")
"""
    code, printed = run_script(tmp_path, source)
    assert code == 0
    assert printed.count("parent") == 2


LEFT = """
import datetime, subprocess, sys, threading, time
import torch, torch.distributed as dist

def looks():
    while True:
        time.sleep(0.5)

def answers():
    asked = torch.ones(1)
    dist.recv(asked, 1)
    time.sleep(LATE_S)
    dist.send(asked, 1)

def speaks():
    time.sleep(LATE_S)
    asked = torch.ones(1)
    dist.recv(asked, 1)
    dist.send(asked, 1)

dist.init_process_group("gloo", timeout=datetime.timedelta(hours=1))
dist.barrier()
if dist.get_rank() == 0:
    threading.Thread(target=THREAD, daemon=True).start()
else:
    dist.send(torch.ones(1), 0)
    dist.recv(torch.ones(1), 0)
"""


def test_a_rank_that_has_left_while_a_thread_of_it_looks_on_is_named(tmp_path: Path) -> None:
    """As progress bars and zmq have them; without the harness its process would have ended.

    It is only likely: nobody knows what a thread of the program will still do.
    """
    code, printed = run_script(tmp_path, LEFT.replace("THREAD", "looks"))
    assert code == 3
    assert "HUNG  rank 0 returned from the script; rank 1 waits for it" in printed
    assert "(finished, likely)" in printed
    found = verdict_in(tmp_path)["diagnosis"]
    assert any("threads that still run in rank 0 were ignored" in each for each in found["notes"])


@pytest.mark.parametrize("thread", ["answers", "speaks"])
def test_a_thread_that_answers_others_counts_after_its_rank_has_left(
    tmp_path: Path, thread: str
) -> None:
    """It has entered operations, and may enter more; or it sleeps before its first one."""
    source = LEFT.replace("THREAD", thread).replace("LATE_S", "20")
    assert run_script(tmp_path, source) == (0, "")


def test_a_child_of_a_rank_that_has_left_does_not_take_its_part(tmp_path: Path) -> None:
    """It can enter no collective of its parent's, whatever it does."""
    child = "import time\nwhile True: time.sleep(0.3)"
    source = LEFT.replace(
        "threading.Thread(target=THREAD, daemon=True).start()",
        f"subprocess.Popen([sys.executable, '-c', {child!r}])",
    )
    code, printed = run_script(tmp_path, source)
    assert code == 3
    assert "HUNG  rank 0 returned from the script; rank 1 waits for it" in printed
    assert "(finished, likely)" in printed


def test_threads_and_exit_functions_end_as_with_python(tmp_path: Path) -> None:
    """The rank waits for its threads, then calls what the script has registered."""
    source = """
import atexit, threading, time
atexit.register(print, "exit")
threading.Thread(target=lambda: (time.sleep(0.5), print("thread"))).start()
"""
    code, printed = run_script(tmp_path, source, "-n1", "train.py")
    assert code == 0
    assert printed.splitlines() == ["[rank 0] thread", "[rank 0] exit"]


@pytest.mark.parametrize(
    ("args", "remedy"),
    [
        (["train.py", "--ranks", "2"], "Options come first: multihost run --ranks N train.py"),
        (["python", "train.py"], "Leave out python: multihost run --ranks N train.py"),
    ],
    ids=["options behind the script", "python before it"],
)
def test_a_command_of_another_tool_is_explained(
    tmp_path: Path, args: list[str], remedy: str
) -> None:
    """As torchrun and mpirun have them."""
    (tmp_path / "train.py").write_text("")
    given = [] if "--ranks" in args else ["--ranks", "2"]
    command = [sys.executable, "-m", "pytest_multihost.core.command.main", "run", *given, *args]
    ended = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60
    )
    assert (ended.returncode, remedy in ended.stderr) == (2, True), ended.stderr


def test_an_unknown_option_is_refused_with_the_options_of_the_command(tmp_path: Path) -> None:
    """Not with those of `multihost`, which has none to choose from."""
    code, printed = run_script(tmp_path, "", "--backing", "gloo", "train.py")
    assert code == 2
    assert "usage: multihost run" in printed
    assert "unrecognized arguments: --backing" in printed
