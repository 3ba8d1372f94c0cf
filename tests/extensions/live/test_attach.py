"""`multihost attach` on real jobs: which one is meant, who is late, and who only looks so."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from runs import start_together
from runtimes import require

from pytest_multihost.core.command.main import main
from pytest_multihost.extensions.live.reader import LocalReader
from pytest_multihost.testing import KernelSnapshot

ATTACH = (sys.executable, "-m", "pytest_multihost.core.command.main", "attach")
Start = Callable[..., list[subprocess.Popen[bytes]]]

LOCK = """
import fcntl, os, subprocess, sys, time
rank = int(os.environ["RANK"])
file = open(sys.argv[1], "w")
if rank == 1:
    fcntl.flock(file, fcntl.LOCK_EX)
print("up", flush=True)
sys.stdin.readline()
print("on", flush=True)
"""
"""Rank 1 holds the lock of a file that the others ask for; each then does what is appended."""

ASK = "if rank != 1: fcntl.flock(file, fcntl.LOCK_EX)\n"


def free_port() -> str:
    """Return a port that nobody listens on."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])


def variables(size: int) -> dict[str, str]:
    """Return what a program gives to all ranks of a job of its own, as torchrun would."""
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(), "OMP_NUM_THREADS": "1"}
    return {**os.environ, **shared, "WORLD_SIZE": str(size)}


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start the ranks of a program, which are under way when they are returned; end them all."""
    started: list[subprocess.Popen[bytes]] = []

    def begin(text: str, size: int = 3) -> list[subprocess.Popen[bytes]]:
        program, given = tmp_path / "train.py", variables(size)
        program.write_text(text)
        ranks = [
            subprocess.Popen(
                [sys.executable, str(program), str(tmp_path / "lock")],
                env={**given, "RANK": str(rank)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                start_new_session=True,
            )
            for rank in range(size)
        ]
        started.extend(ranks)
        start_together(ranks)
        return ranks

    yield begin
    for each in started:
        os.killpg(each.pid, signal.SIGKILL)
        each.communicate()


def attach(*options: str | int, code: int | None = None) -> str:
    """Return what the command prints."""
    done = subprocess.run(
        [*ATTACH, *map(str, options)], capture_output=True, text=True, check=False, timeout=120
    )
    assert code is None or done.returncode == code, done.stdout + done.stderr
    return done.stdout


def verdict_on(ranks: Sequence[subprocess.Popen[bytes]], *options: str) -> dict[str, Any]:
    """Return the verdict on a job, of which one process is named."""
    found: dict[str, Any] = json.loads(attach("--json", "-", *options, ranks[0].pid))
    return found


# Which job


def test_jobs_are_listed_with_how_to_attach_to_them(start: Start) -> None:
    """Nothing was named; a child that has the rank's variables is no rank."""
    child = (
        "if rank == 0: subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
    )
    ranks = start(LOCK + child + "time.sleep(600)\n", 2)
    listed = attach(code=0)
    pids = " ".join(str(each.pid) for each in ranks)
    own = [each for each in listed.splitlines() if f"multihost attach {pids}" in each]
    assert "2 ranks, a program that sets RANK" in listed
    assert own or f"multihost attach --children-of {os.getpid()}" in listed


def test_what_a_child_of_a_rank_has_left_behind_is_no_rank(start: Start) -> None:
    """It was started last, says the same rank, and is nobody's child any more."""
    orphan = (
        "if rank == 0 and os.fork() == 0:\n"
        "    if os.fork() == 0: time.sleep(600)\n"
        "    os._exit(0)\n"
        "if rank == 0: os.wait()\n"
    )
    ranks = start(LOCK.replace('print("on"', orphan + 'print("on"') + ASK + "time.sleep(600)\n", 2)
    found = verdict_on(ranks[1:])
    assert [each["pid"] for each in found["rank_results"]] == [each.pid for each in ranks]


def test_the_job_of_a_launcher_is_found_by_it(tmp_path: Path) -> None:
    """A second job beside it, of another launcher, is none of its ranks."""
    rank = "import time; print('up', flush=True); time.sleep(600)"
    text = f"""
import os, subprocess, sys
ranks = [subprocess.Popen([sys.executable, "-c", {rank!r}], env={{**os.environ, "RANK": str(rank)}})
         for rank in range(2)]
sys.stdin.read()
for each in ranks:
    each.kill()
    each.wait()
"""
    launchers = [
        subprocess.Popen(
            [sys.executable, "-c", text],
            env=variables(2),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for _ in range(2)
    ]
    try:
        for each in launchers:
            assert each.stdout is not None
            assert sorted(each.stdout.read(6)) == sorted(b"up\nup\n")  # in any mixture
        verdict = json.loads(attach("--json", "-", "--children-of", launchers[0].pid))
        parents = {
            Path(f"/proc/{each['pid']}/stat").read_text().rpartition(")")[2].split()[1]
            for each in verdict["rank_results"]
        }
        assert parents == {str(launchers[0].pid)}
    finally:
        for each in launchers:
            each.communicate(b"")


def test_a_job_is_found_by_its_command_line(start: Start, tmp_path: Path) -> None:
    """The command that looks for it has the same text in its own."""
    start(LOCK + ASK + "time.sleep(600)\n")
    assert "rank 1" in attach("--match", str(tmp_path / "train.py"))


def test_a_list_of_jobs_is_no_failure() -> None:
    """It exits with 0, whether or not there are jobs."""
    done = subprocess.run(
        ATTACH, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_a_text_that_no_command_line_has_is_told() -> None:
    """Not even that of the command which looks for it."""
    done = subprocess.run(
        [*ATTACH, "--match", "no-such-script.py"], capture_output=True, text=True, check=False
    )
    assert "no Python process has 'no-such-script.py'" in done.stderr
    assert done.returncode == 1


# Who is late, and who only looks so


def test_the_holder_of_a_lock_is_named_by_proof(start: Start) -> None:
    """Nothing in the job can move: it sleeps, and the others wait for its lock."""
    ranks = start(LOCK + ASK + "time.sleep(600)\n")
    verdict = verdict_on(ranks)
    found = verdict["diagnosis"]
    assert (found["kind"], found["culprits"], found["waiting"]) == ("straggler", [1], [0, 2])
    assert found["where"]["source"] == "time.sleep(600)"
    assert verdict["outcome"] == "hung"
    assert "proven" in verdict["reason"]


def test_a_holder_that_computes_is_named_and_not_said_to_hang(start: Start) -> None:
    """It may be done in a moment."""
    ranks = start(LOCK + ASK + "while True: pass\n")
    verdict = verdict_on(ranks)
    assert (verdict["outcome"], verdict["diagnosis"]["culprits"]) == ("passed", [1])
    assert "NOT KNOWN TO HANG" in attach(ranks[0].pid, code=1)


def test_a_holder_that_sleeps_for_some_seconds_is_not_said_to_hang(start: Start) -> None:
    """Its timer shows that it goes on by itself."""
    ranks = start(LOCK + ASK + "while True: time.sleep(30)\n")
    assert verdict_on(ranks)["outcome"] == "passed"


def test_a_holder_whose_child_computes_is_not_said_to_hang(start: Start) -> None:
    """It waits for it as it would for one that hangs."""
    child = "[sys.executable, '-c', 'while True: pass']"
    ranks = start(LOCK + ASK + f"subprocess.run({child})\n")
    assert verdict_on(ranks)["outcome"] == "passed"


def test_a_holder_whose_child_sleeps_hangs(start: Start) -> None:
    """As a rank does that waits for a tool which never ends."""
    ranks = start(LOCK + ASK + "subprocess.run(['sleep', '600'])\n")
    verdict = verdict_on(ranks)
    assert (verdict["outcome"], verdict["diagnosis"]["culprits"]) == ("hung", [1])
    assert verdict["diagnosis"]["where"]["source"] == "subprocess.run(['sleep', '600'])"


def test_a_holder_that_reads_what_others_may_write_is_not_said_to_hang(start: Start) -> None:
    """Its standard input is a pipe of the process that has started it."""
    ranks = start(LOCK + ASK + "sys.stdin.read()\n")
    verdict = verdict_on(ranks)
    assert (verdict["outcome"], verdict["diagnosis"]["culprits"]) == ("passed", [1])


def test_a_holder_that_serves_whoever_connects_is_not_said_to_hang(start: Start) -> None:
    """A client need not be a rank."""
    serve = "import socket\nif rank == 1: socket.create_server(('127.0.0.1', 0)).accept()\n"
    ranks = start(LOCK + ASK + serve + "time.sleep(600)\n")
    verdict = verdict_on(ranks)
    assert (verdict["outcome"], verdict["reason"]) == ("passed", None)


def test_a_stopped_holder_is_named(start: Start) -> None:
    """Where it sleeps does not matter."""
    ranks = start(LOCK + ASK + "time.sleep(20)\n")
    ranks[1].send_signal(signal.SIGSTOP)
    found = verdict_on(ranks)["diagnosis"]
    assert (found["kind"], found["culprits"]) == ("stopped", [1])


def test_ranks_that_wait_for_nobody_are_not_accused(start: Start) -> None:
    """All sleep, each by itself."""
    ranks = start(LOCK + "time.sleep(600)\n")
    verdict = verdict_on(ranks)
    assert (verdict["outcome"], verdict["diagnosis"]) == ("passed", None)


TORCH = """
import os, sys, time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
print("up", flush=True)
sys.stdin.readline()
print("on", flush=True)
"""


@pytest.fixture
def torch_start(start: Start) -> Start:
    """The same for programs that use torch."""
    require("torch", reason="the job's collectives are torch's")
    return start


def test_a_receive_waits_for_its_sender_alone(torch_start: Start) -> None:
    """Rank 1 sleeps as well, and nobody waits for it."""
    ranks = torch_start(
        TORCH + "dist.recv(torch.zeros(1), src=2) if rank == 0 else time.sleep(600)\n"
    )
    found = verdict_on(ranks)["diagnosis"]
    assert (found["culprits"], found["waiting"]) == ([2], [0])


def test_the_rank_that_is_missing_from_a_barrier_is_named(torch_start: Start) -> None:
    """The others wait in C++; one of them for work that it has launched before."""
    body = """
if rank == 0:
    dist.barrier()
elif rank == 1:
    time.sleep(600)
else:
    dist.all_reduce(torch.ones(1), async_op=True).wait()
"""
    found = verdict_on(torch_start(TORCH + body))["diagnosis"]
    assert (found["culprits"], found["waiting"]) == ([1], [0, 2])


def test_native_frames_are_shown_where_they_are_asked_for(
    torch_start: Start, tmp_path: Path
) -> None:
    """Equal ones once; the page for a browser has them, too."""
    require("pystack", reason="it reads native frames")
    body = "time.sleep(600) if rank == 1 else dist.all_reduce(torch.ones(1))\n"
    ranks, page = torch_start(TORCH + body), tmp_path / "page.html"
    printed = attach("--native", "--html", page, ranks[0].pid, code=0)
    _, _, native = printed.partition("--- native frames of ranks 0,2, main thread, innermost first")
    assert "c10d::Work::wait" in native
    assert "native frames of thread" in page.read_text()
    assert "native frames" not in attach(ranks[0].pid, code=0)


def test_steps_that_go_on_are_not_said_to_hang(torch_start: Start) -> None:
    """Whenever one looks, ranks are in a collective."""
    body = "while True:\n    dist.all_reduce(torch.ones(1)); time.sleep(0.05 * rank)\n"
    ranks = torch_start(TORCH + body)
    assert [verdict_on(ranks)["outcome"] for _ in range(3)] == ["passed"] * 3


OF_A_GROUP = """
group = dist.new_group([0, 1], timeout=datetime.timedelta(seconds=50))
if rank == 0:
    dist.all_reduce(torch.ones(1), group=group)
else:
    dist.recv(torch.ones(1), src=0, group=group if rank == 1 else None)
"""
AGAIN_AND_AGAIN = """
store = dist.distributed_c10d._get_default_store()
while True:
    try:
        store.wait(["never"], datetime.timedelta(seconds=0.3))
    except RuntimeError:
        pass
"""


@pytest.mark.parametrize("body", [OF_A_GROUP, AGAIN_AND_AGAIN])
def test_ranks_that_give_up_by_a_limit_of_theirs_are_not_said_to_hang(
    body: str, torch_start: Start
) -> None:
    """Nobody is to blame, and they go on when it strikes."""
    ranks = torch_start("import datetime\n" + TORCH + body)
    assert [verdict_on(ranks)["outcome"] for _ in range(2)] == ["passed"] * 2


# What is written, and when


def test_verdict_and_page_are_written_where_they_are_asked_for(
    start: Start, tmp_path: Path
) -> None:
    """The page for the terminal is printed as well."""
    ranks = start(LOCK + ASK + "time.sleep(600)\n")
    files = [tmp_path / "verdict.json", tmp_path / "page.html"]
    printed = attach("--json", files[0], "--html", files[1], ranks[0].pid, code=0)
    assert printed.startswith("HUNG  ")
    assert json.loads(files[0].read_text())["diagnosis"]["culprits"] == [1]
    assert "time.sleep(600)" in files[1].read_text()


def test_a_job_is_followed_until_it_stops_moving(start: Start, tmp_path: Path) -> None:
    """While rank 1 computes, it is named once, although that is no hang yet."""
    go = tmp_path / "go"
    body = f"while rank == 1 and not os.path.exists({str(go)!r}): pass\ntime.sleep(600)\n"
    ranks = start(LOCK + ASK + body)
    following = subprocess.Popen(
        [*ATTACH, "--follow", str(ranks[0].pid)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert following.stderr is not None
    first = following.stderr.readline()
    assert b"ranks 0,2 wait for a lock that rank 1 holds; not yet a hang" in first
    go.touch()
    printed, _ = following.communicate(timeout=120)
    assert printed.startswith(b"HUNG  ")
    assert re.search(rb"rank 1 .*time.sleep\(600\)|time.sleep\(600\)", printed)


def test_a_rank_that_is_waited_for_too_long_hangs_whatever_it_does(start: Start) -> None:
    """Who spins for ever looks like one that computes."""
    ranks = start(LOCK + ASK + "while True: pass\n")
    printed = attach("--follow", "--patience", "5", ranks[0].pid, code=0)
    assert printed.startswith("HUNG?  ranks 0,2 wait for a lock that rank 1 holds; it has been so")


def test_a_job_that_ends_while_it_is_followed_is_told(
    start: Start, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """There is nothing to judge. It ends after the first snapshot, however long that takes."""
    ranks, snapshots = start(LOCK + "time.sleep(600)\n"), list[KernelSnapshot]()
    take = LocalReader.shallow_snapshot

    def snapshot(reader: LocalReader) -> KernelSnapshot:
        snapshots.append(take(reader))
        for each in ranks:
            os.killpg(each.pid, signal.SIGKILL)
        return snapshots[-1]

    monkeypatch.setattr(LocalReader, "shallow_snapshot", snapshot)
    monkeypatch.setattr("sys.argv", ["multihost", "attach", "--follow", str(ranks[0].pid)])
    assert main() == 1
    assert not any(each.is_dead for each in snapshots[0].processes)
    assert "the job has ended" in capsys.readouterr().err
