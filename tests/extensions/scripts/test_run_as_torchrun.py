"""`multihost run` in place of torchrun: its options, standard input, and waits that last long."""

from __future__ import annotations

import os
import pty
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from runtimes import needs_clock_library
from scripts import run_script, start_script

SHOW = "import os, sys\nprint(os.environ['RANK'], os.environ['WORLD_SIZE'], sys.argv[1:])\n"
READ = "import os, sys\nprint(os.environ['RANK'], repr(sys.stdin.read()))\n"
COMMAND = [sys.executable, "-m", "pytest_multihost.core.command.main", "run"]


def run(path: Path, *args: str, given: str = "", **variables: str) -> tuple[int, str]:
    """Run `multihost run` with these arguments and input; return exit code and output."""
    done = subprocess.run(
        [*COMMAND, *args],
        cwd=path,
        env={**os.environ, "TMPDIR": str(path), **variables},
        input=given,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=100,
    )
    return done.returncode, done.stdout


# Options


@pytest.mark.parametrize("sign", ["-", "_"])
def test_a_command_line_of_torchrun_works_as_it_is(tmp_path: Path, sign: str) -> None:
    """Its options change nothing but the number of ranks."""
    (tmp_path / "train.py").write_text(SHOW)
    per, port = f"--nproc{sign}per{sign}node=2", f"--master{sign}port=29500"
    code, printed = run(tmp_path, "--standalone", "--nnodes=1", per, port, "train.py", "--lr", "1")
    assert code == 0
    assert "[rank 0] 0 2 ['--lr', '1']" in printed
    assert "[rank 1] 1 2 ['--lr', '1']" in printed
    assert "multihost run: --master-port is ignored: each run has a free port" in printed


@pytest.mark.claim("use it on a suite that starts its own ranks")
def test_a_test_that_started_torchrun_prints_the_verdict(pytester: pytest.Pytester) -> None:
    """One line changes: `multihost run` in place of torchrun's module."""
    pytester.makepyfile(
        train="""
        import torch
        import torch.distributed as dist

        dist.init_process_group("gloo")
        if dist.get_rank() == 0:
            dist.all_reduce(torch.ones(1))
        """,
        test_train=f"""
        import subprocess

        def test_it():
            command = [*{COMMAND!r}, "--nproc-per-node", "2", "train.py"]
            ended = subprocess.run(command, capture_output=True, text=True)
            assert ended.returncode == 0, ended.stdout + ended.stderr
        """,
    )
    result = pytester.runpytest_subprocess("-p", "multihost_hangs", timeout=100)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*HUNG  rank 1 *all_reduce #1*"])


def test_restarts_are_left_to_the_shell(tmp_path: Path) -> None:
    """A hint says why and how; the run goes on."""
    (tmp_path / "train.py").write_text(SHOW)
    code, printed = run(tmp_path, "--nproc-per-node", "1", "--max-restarts", "3", "train.py")
    assert code == 0
    assert "--max-restarts is ignored: a rank that fails or hangs ends the run" in printed
    assert "until multihost run" in printed
    assert "[rank 0] 0 1 []" in printed


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--nnodes", "2"], "torchrun --nnodes N --nproc-per-node M --no-python multihost run"),
        (["--node-rank", "1"], "multihost run starts ranks on one machine"),
        (["--virtual-local-rank"], "leave it out: a script finds its device by LOCAL_RANK"),
        (["--numa-binding", "node"], "run under numactl"),
        (["--nproc-per-node", "many"], "must be a number, gpu, cpu or auto, not 'many'"),
        (
            ["-n1", "--no-python", "-m"],
            "--no-python and -m: the program is either a command or a module",
        ),
    ],
    ids=lambda each: each[0] if isinstance(each, list) else "",
)
def test_what_would_change_the_ranks_is_refused(
    tmp_path: Path, args: list[str], words: str
) -> None:
    """With what to do instead; the exit code is 2, and no rank is started."""
    (tmp_path / "train.py").write_text(SHOW)
    code, printed = run(tmp_path, *args, "train.py")
    assert code == 2
    assert words in " ".join(printed.split())
    assert "[rank" not in printed


@pytest.mark.parametrize(
    "command",
    [["python", "-u", "train.py"], ["python3", "-m", "train"], ["./train"]],
    ids=["script", "module", "shebang"],
)
def test_a_python_command_is_run_in_the_ranks(tmp_path: Path, command: list[str]) -> None:
    """The interpreter's own arguments are not the script's."""
    (tmp_path / "train.py").write_text(SHOW)
    (tmp_path / "train").write_text(f"#!/usr/bin/env python3\n{SHOW}")
    (tmp_path / "train").chmod(0o755)
    beside = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    code, printed = run(tmp_path, "-n1", "--no_python", *command, "-u", PATH=beside)
    assert (code, printed) == (0, "[rank 0] 0 1 ['-u']\n")


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["sh", "train.sh"], "sh is not a Python program"),
        (["no-such-program"], "there is no command no-such-program"),
        (["python", "-c", "1"], "python -c names no script"),
        (["python"], "python names no script"),
        (["other/python", "train.py"], "is another Python than that of multihost"),
    ],
    ids=["shell", "unknown", "code", "nothing", "other"],
)
def test_a_command_that_is_not_pythons_is_refused(
    tmp_path: Path, command: list[str], words: str
) -> None:
    """Nothing would be known about its ranks."""
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "python").symlink_to(shutil.which("sh") or "/bin/sh")
    beside = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    code, printed = run(tmp_path, "-n1", "--no-python", *command, PATH=beside)
    assert code == 2
    assert words in printed
    assert "Traceback" not in printed


# Standard input


def test_rank_0_reads_standard_input(tmp_path: Path) -> None:
    """The others read nothing."""
    (tmp_path / "train.py").write_text(READ)
    code, printed = run(tmp_path, "-n2", "train.py", given="shards\n")
    assert code == 0
    assert sorted(printed.splitlines()) == ["[rank 0] 0 'shards\\n'", "[rank 1] 1 ''"]


def test_a_closed_standard_input_is_empty(tmp_path: Path) -> None:
    """No file that has got its number is read."""
    (tmp_path / "train.py").write_text(READ)
    command = ["sh", "-c", 'exec "$@" <&-', "sh", *COMMAND, "-n1", "train.py"]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=100
    )
    assert (done.returncode, done.stdout) == (0, "[rank 0] 0 ''\n")


def test_rank_0_reads_from_a_terminal(tmp_path: Path) -> None:
    """A session of its own has no part in job control."""
    (tmp_path / "train.py").write_text("print('got', input('?\\n'))\n")
    terminal, theirs = pty.openpty()
    process = subprocess.Popen(
        ["setsid", "--ctty", "--wait", *COMMAND, "-n1", "train.py"],
        cwd=tmp_path,
        stdin=theirs,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "[rank 0] ?\n"
    os.write(terminal, b"a line\n")
    assert process.communicate(timeout=100)[0] == "[rank 0] got a line\n"
    os.close(theirs)
    os.close(terminal)


WAIT = """
import sys, time
from pytest_multihost import current_world
world = current_world()
if world.rank == 0:
    READ
world.barrier("step")
print("done")
"""


def test_a_socket_as_standard_input_keeps_no_hang_secret(tmp_path: Path) -> None:
    """It is one under sshd and node, and nobody waits for it."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        (tmp_path / "train.py").write_text(WAIT.replace("READ", "time.sleep(600)"))
        done = subprocess.run(
            [*COMMAND, "-n2", "train.py"],
            cwd=tmp_path,
            stdin=theirs,
            capture_output=True,
            text=True,
            check=False,
            timeout=100,
        )
    assert done.returncode == 3
    assert "HUNG  rank 0 never reached world.barrier" in done.stdout


@pytest.mark.parametrize("kind", ["pipe", "socket"])
def test_a_rank_that_waits_for_its_input_does_not_hang(tmp_path: Path, kind: str) -> None:
    """Somebody may still write; it comes long after a hang would have been proven."""
    (tmp_path / "train.py").write_text(WAIT.replace("READ", "print(sys.stdin.readline())"))
    ours, theirs = socket.socketpair()
    with ours, theirs:
        writer = ours.fileno()
        reader = theirs.fileno()
        if kind == "pipe":
            reader, writer = os.pipe()
        slow = subprocess.Popen(["sh", "-c", "sleep 8; echo late"], stdout=writer)
        done = subprocess.run(
            [*COMMAND, "-n2", "train.py"],
            cwd=tmp_path,
            stdin=reader,
            capture_output=True,
            text=True,
            check=False,
            timeout=100,
        )
        slow.wait()
    assert done.returncode == 0, done.stdout
    assert "[rank 0] late" in done.stdout
    assert done.stdout.count("done") == 2


# Patience


SPIN = """
import time
from pytest_multihost import current_world
world = current_world()

def compute(seconds):
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        pass

STEPS
"""


def test_a_rank_that_is_waited_for_too_long_is_named_whatever_it_does(tmp_path: Path) -> None:
    """It computes, so no proof would ever end the run."""
    steps = "if world.rank == 1:\n    compute(600)\nworld.barrier('step')"
    code, printed = run_script(
        tmp_path, SPIN.replace("STEPS", steps), "--patience", "3", "train.py"
    )
    assert code == 3
    assert "HUNG  rank 1 never reached world.barrier 'step'" in printed
    assert "a rank has waited longer than the 3 s of --patience" in " ".join(printed.split())
    assert "compute" in printed


@pytest.mark.parametrize(
    "steps",
    [
        "for each in range(6):\n    compute(1 if world.rank else 0)\n    world.barrier()",
        "compute(6)",
        "if world.rank == 1:\n    compute(6)",
    ],
    ids=["slowest of all", "nobody waits", "the other one is done"],
)
def test_a_rank_that_arrives_within_the_patience_does_not_hang(tmp_path: Path, steps: str) -> None:
    """Each wait counts by itself, and one for the end of a script is none."""
    code, printed = run_script(
        tmp_path, SPIN.replace("STEPS", steps), "--patience", "4", "train.py"
    )
    assert code == 0, printed


@needs_clock_library()
def test_patience_is_measured_in_the_machines_time(tmp_path: Path) -> None:
    """A rank that sleeps for an hour is late by a clock that jumps, and waited for no longer."""
    steps = "if world.rank == 1:\n    time.sleep(3600)\nworld.barrier('step')"
    patience = ["--clock", "jump", "--patience", "60"]
    code, printed = run_script(tmp_path, SPIN.replace("STEPS", steps), *patience, "train.py")
    assert code == 0, printed


# Ranks that have raised


RAISED = """
import time
from pytest_multihost import current_world
world = current_world()

def load():
    raise ValueError("no shard")

if world.rank == 1:
    load()
print("up", flush=True)
LATER
"""


def test_a_rank_that_has_raised_is_shown_with_its_own_line(tmp_path: Path) -> None:
    """It waits in this package, of which no line is shown."""
    code, printed = run_script(tmp_path, RAISED.replace("LATER", "time.sleep(600)"))
    assert code == 1
    assert "pytest_multihost/core" not in printed
    assert "► rank 1 failed" in " ".join(printed.split())
    assert "train.py:7" in printed
    assert "time.sleep(600)" in printed
    [verdict] = (tmp_path / ".pytest_multihost" / "latest").glob("*/verdict.json")
    assert "wire.py" not in verdict.read_text()
    [page] = (tmp_path / ".pytest_multihost" / "latest").glob("*/report.html")
    assert "wire.py" not in page.read_text()


def test_ctrl_c_shows_how_ranks_have_left_the_script(tmp_path: Path) -> None:
    """Those that are over wait in this package as well."""
    source = """
import time
from pytest_multihost import current_world
world = current_world()
if world.rank == 0:
    print("up", flush=True)
    while True:
        time.sleep(0.05)
"""
    process = start_script(tmp_path, source, "train.py")
    assert process.stdout is not None
    assert "up" in process.stdout.readline()
    time.sleep(3)  # rank 1 has nothing to do
    process.send_signal(2)
    printed, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "wire.py" not in printed
    assert "rank 1 had left the script" in printed
