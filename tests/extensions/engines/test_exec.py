"""Ranks on nodes that a command reaches: pytest's own process has none."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from cluster import (
    GLOO_WORLDS,
    LAPTOP,
    LIMIT_S,
    WORLDS,
    command,
    drive,
    entering,
    environment,
    project,
    result_lines,
    script,
    started,
)
from machines import two_machines
from runs import await_program, await_that, living
from runtimes import require
from secrets_seen import TELLS, forms_of, seen_in_processes

pytestmark = pytest.mark.clusters

HERE = "exec:env NODE={i}"
"""Nodes that are all this machine."""

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make machines")


def verdicts(path: Path) -> dict[str, Any]:
    """Return the verdicts of a project's last run by the test's name."""
    file = path / ".pytest_multihost" / "verdicts.jsonl"
    found = [json.loads(line) for line in file.read_text().splitlines()]
    return {each["nodeid"].rpartition("::")[2].partition("[")[0]: each for each in found}


Done = tuple[Path, subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Done:
    """A run without an engine."""
    path = project(tmp_path_factory.mktemp("here"), WORLDS + GLOO_WORLDS)
    return path, drive(path)


@pytest.fixture(scope="module")
def apart(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Done]:
    """The same run on two machines to which pytest's process has no route."""
    path = project(tmp_path_factory.mktemp("apart"), WORLDS + GLOO_WORLDS)
    with two_machines() as entries:
        enter = entering(path / "enter", entries)
        yield path, drive(path, "--multihost-on", f"exec:{enter} {{i}}")


@needs_root
@pytest.mark.namespaces
def test_the_summary_is_the_same_as_on_one_machine(here: Done, apart: Done) -> None:
    """Word by word."""
    assert result_lines(apart[1].stdout) == result_lines(here[1].stdout)
    assert len(result_lines(here[1].stdout)) == 4, here[1].stdout
    assert apart[1].returncode == here[1].returncode == 1


@needs_root
@pytest.mark.namespaces
def test_ranks_are_spread_over_the_machines(apart: Done) -> None:
    """In order, and the verdict names them."""
    ranks = verdicts(apart[0])["test_meets"]["rank_results"]
    assert [each["host"] for each in ranks] == ["alpha", "alpha", "beta", "beta"]
    assert "multihost: exec: 2 nodes: 0, 1" in apart[1].stdout


@needs_root
@pytest.mark.namespaces
def test_hangs_on_other_machines_are_proven(apart: Done) -> None:
    """And the line of the culprit is read in the driver's files."""
    found = verdicts(apart[0])
    for name in ("test_waits", "test_gloo_waits"):
        diagnosis = found[name]["diagnosis"]
        assert diagnosis["detected_by"] == "proof"
        assert diagnosis["where"]["file"] == "test_worlds.py"
        assert diagnosis["where"]["source"] == "time.sleep(600)"


@needs_root
@pytest.mark.namespaces
def test_logs_of_other_machines_are_fetched(apart: Done) -> None:
    """They lie among the artifacts as any rank's."""
    verdict = verdicts(apart[0])["test_meets"]
    folder = apart[0] / ".pytest_multihost" / verdict["run_id"] / verdict["dir"]
    assert (folder / "rank-3.log").read_text() == "rank 3 was here\n"


ROOM_FOR_TWO = """
import os
from pytest_multihost.core.backends import Backend

def pytest_multihost_backends():
    def lacking(size):
        return None if "NODE" in os.environ and size <= 2 else f"two fit here, not {size}"

    return [Backend(name="paired", start=lambda spec: None, lacking=lacking)]
"""

SIZES = """
@pytest.mark.multihost(ranks=2)
def test_small(world):
    pass

@pytest.mark.multihost(ranks=6, backend="paired")
def test_6(world):
    pass

@pytest.mark.multihost(ranks=7, backend="paired")
def test_7(world):
    pass
"""


@pytest.fixture(scope="module")
def on_three(tmp_path_factory: pytest.TempPathFactory) -> Done:
    """A run on three nodes that are all this machine, with room for two ranks each."""
    path = project(tmp_path_factory.mktemp("three"), WORLDS + SIZES)
    (path / "conftest.py").write_text(ROOM_FOR_TWO)
    return path, drive(path, "--multihost-on", HERE, "--multihost-nodes=3", "-rsfE", "--pdb")


def test_nodes_can_be_this_machine(on_three: Done) -> None:
    """As many as are wanted; a world that is smaller uses the first.

    Hangs are proven there, and logs are fetched, as on one machine.
    """
    path, done = on_three
    assert "3 failed, 3 passed, 1 skipped" in done.stdout
    assert "exec: 3 nodes: 0, 1, 2" in done.stdout
    found = verdicts(path)
    assert found["test_waits"]["diagnosis"]["detected_by"] == "proof"
    assert found["test_waits"]["diagnosis"]["where"]["source"] == "time.sleep(600)"
    assert len(result_lines(done.stdout)) == 3, done.stdout
    folder = path / ".pytest_multihost" / found["test_meets"]["run_id"] / found["test_meets"]["dir"]
    assert (folder / "rank-3.log").read_text() == "rank 3 was here\n"
    assert not [each for each in psutil.process_iter() if _works_in(each, path)]


def test_the_nodes_are_asked_for_what_they_lack(on_three: Done) -> None:
    """Not the driver: it may be a laptop without a GPU. Each node counts its own ranks."""
    path, done = on_three
    assert verdicts(path)["test_6"]["outcome"] == "passed"
    assert "node 0: two fit here, not 3" in done.stdout


def test_the_debugger_is_refused_with_the_reason(on_three: Done) -> None:
    """Ranks on other machines have no terminal; the run goes on."""
    assert "--pdb and --trace do not stop in ranks" in on_three[1].stdout


def _works_in(process: psutil.Process, path: Path) -> bool:
    try:
        return process.cwd() == str(path) and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


@pytest.mark.worlds
def test_the_first_failure_ends_the_run_and_only_failures_run_again(tmp_path: Path) -> None:
    """The driver selects the tests; the peers have collected all of them."""
    path = project(tmp_path / "it", WORLDS)
    first = drive(path, "--multihost-on", HERE, "-x", "-p", "cacheprovider", "-k", "meets or fails")
    assert "1 failed, 1 passed" in first.stdout
    again = drive(path, "--multihost-on", HERE, "--lf")
    assert "1 failed" in again.stdout
    assert "test_meets" not in again.stdout


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("exec:sh -c 'echo no such pod {i} >&2; exit 3'",), "no such pod 0"),
        (("exec:no-such-program {i}",), "no-such-program, which is to reach node 0"),
        *(
            pytest.param(args, words, marks=pytest.mark.worlds)
            for args, words in (
                (("exec:false {i}",), "the peer on node 0 has ended at its start: exit code 1"),
                (("exec:env",), "the command is the same for all 2 nodes"),
                (("exec:",), "a command is missing"),
                (("ssh:a,,b",), "is not a list of hosts"),
                ((HERE, "--multihost-python=/nowhere/python"), "No such file or directory"),
            )
        ),
        (("slum",), "Did you mean slurm?"),
        ((HERE, "--multihost-attach"), "exclude each other"),
        ((HERE, "--multihost-join"), "exclude each other"),
    ],
)
def test_what_cannot_start_ends_the_run_at_once(
    tmp_path: Path, args: tuple[str, ...], words: str
) -> None:
    """With the node, the exit code and the last words, before any test has run."""
    path = project(tmp_path / "it", WORLDS)
    done = drive(path, "--multihost-on", *args, "--multihost-startup-timeout=100")
    assert words in done.stdout
    assert done.returncode == 4, done.stdout


def test_workers_of_xdist_are_refused(tmp_path: Path) -> None:
    """As in attached runs."""
    path = project(tmp_path / "it", WORLDS)
    done = drive(path, "-p", "xdist", "-n2", "--multihost-on", HERE)
    assert "--multihost-on and pytest-xdist's -n both make processes" in done.stdout


@pytest.mark.parametrize(
    "package", [pytest.param("torch", marks=pytest.mark.worlds), "pytest_multihost_hangs"]
)
def test_other_versions_are_refused_with_both(tmp_path: Path, package: str) -> None:
    """Of this package as well as of the runtimes."""
    require("torch")
    about = tmp_path / "other" / f"{package}-0.0.9.dist-info"
    about.mkdir(parents=True)
    name = package.replace("_", "-")
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.0.9\n")
    path = project(tmp_path / "it", WORLDS)
    on = ("--multihost-on", f"exec:env PYTHONPATH={about.parent} NODE={{i}}")
    done = drive(path, *on, "--multihost-nodes=1")
    assert "0.0.9" in done.stdout
    assert "version" in done.stdout
    assert done.returncode == 4, done.stdout


@pytest.mark.worlds
def test_a_file_that_differs_is_named(tmp_path: Path) -> None:
    """The peer has collected other tests than the driver."""
    path = project(tmp_path / "it", WORLDS)
    (path / "conftest.py").write_text(
        "import os\n"
        "def pytest_collection_modifyitems(items):\n"
        "    if os.environ.get('NODE') == '1':\n"
        "        items[:] = [each for each in items if 'meets' not in each.name]\n"
    )
    done = drive(path, "--multihost-on", HERE)
    assert "node 1's process" in done.stdout
    assert "test_meets" in done.stdout
    assert done.returncode == 4


# Runs that are disturbed

LOST = """
import os, signal, time
import psutil, pytest

@pytest.mark.multihost
def test_passes(world):
    world.barrier()

@pytest.mark.multihost(timeout=900)
def test_loses_a_node(world):
    peer = psutil.Process(os.getppid()).ppid()
    if world.rank == 3 and "VICTIM" in os.environ:
        os.kill(peer, signal.SIGKILL)
    open(f"up-{world.rank}", "w").close()
    time.sleep(600)

@pytest.mark.multihost
def test_comes_later(world):
    world.barrier()
"""


def test_a_lost_node_is_an_error_of_its_test(tmp_path: Path) -> None:
    """Not a failure: the code under test has done nothing. The engine's words are shown."""
    path = project(tmp_path / "it", LOST)
    told = script(path / "told", "NODE=$1; shift", '"$@"', "echo evicted >&2; exit 7")
    done = drive(path, "--multihost-on", f"exec:{told} {{i}}", PYTEST_VICTIM="1", VICTIM="1")
    assert "ERROR test_worlds.py::test_loses_a_node" in done.stdout
    assert "node 1's process" in done.stdout
    assert "exit code 7" in done.stdout
    assert "evicted" in done.stdout
    assert "no world can be started any more" in done.stdout
    assert done.returncode == 1
    await_that(lambda: not [each for each in psutil.process_iter() if _works_in(each, path)])


@dataclass(frozen=True)
class Interrupted:
    """A run that was ended by a signal.

    Attributes:
        secret: Its secret.
        seen: The processes that showed the secret before.
        output: What it printed.
        code: Its exit code.
    """

    path: Path
    secret: bytes
    seen: list[str]
    output: str
    code: int


@pytest.fixture(scope="module")
def interrupted(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Interrupted:
    """A run that tells its secret, until a signal ends it."""
    path = project(tmp_path_factory.mktemp("interrupted"), LOST)
    (path / "conftest.py").write_text(TELLS)
    with started(path, "--multihost-on", HERE) as process:
        secret = (path / "told").read_bytes()
        seen = seen_in_processes(secret)
        process.send_signal(request.param)
        output, _ = process.communicate(timeout=LIMIT_S)
    return Interrupted(path, secret, seen, output, process.returncode)


@pytest.mark.parametrize(
    "interrupted",
    [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.processes)],
    indirect=True,
)
def test_an_interrupted_run_shows_where_the_ranks_were(interrupted: Interrupted) -> None:
    """Ctrl-C and SIGTERM act as on one machine, and nothing is left."""
    path = interrupted.path
    assert "where the ranks were:" in interrupted.output
    assert interrupted.output.count("time.sleep(600)") == 1  # all four ranks are there
    assert interrupted.code == 2
    await_that(lambda: not [each for each in psutil.process_iter() if _works_in(each, path)])


@pytest.mark.parametrize("interrupted", [signal.SIGINT], indirect=True)
def test_the_secret_is_in_no_command_and_no_environment(interrupted: Interrupted) -> None:
    """Of any process on the machine; it is part of the order on the peer's standard input."""
    assert len(interrupted.secret) == 32
    assert interrupted.seen == []


def test_a_signal_that_is_repeated_at_once_counts_as_one(tmp_path: Path) -> None:
    """Slurm repeats the one of a time limit; the peer must be there to show its stacks."""
    path = project(tmp_path / "it", LOST)
    with started(path, "--multihost-on", HERE) as process:
        peer = psutil.Process(process.pid).children()[0]
        for _ in range(2):
            peer.terminate()
            time.sleep(0.05)  # two signals, of which the kernel does not make one
        output, _ = process.communicate(timeout=LIMIT_S)
    assert "where the ranks were:" in output
    assert output.count("time.sleep(600)") == 1, output  # all four ranks are there
    assert "interrupted by SIGTERM to node 0's process" in output


def test_nothing_outlives_a_driver_that_is_killed(tmp_path: Path) -> None:
    """The peers see the end of their input."""
    path = project(tmp_path / "it", LOST)
    with started(path, "--multihost-on", HERE) as process:
        process.kill()
    await_that(lambda: not [each for each in psutil.process_iter() if _works_in(each, path)], 30)


IMPATIENT = """
from pytest_multihost.extensions.engines.driver import heartbeats

heartbeats.BEAT_S = 0.2
heartbeats.SILENT_S = 3.0
"""
"""For a conftest.py: peers wait less long for a driver whose machine is out of reach."""

IDLE = """
import os, time, pytest

def test_has_no_ranks():
    for rank in range(4):
        open(f"up-{rank}", "w").close()
    while not os.path.exists("go-on"):
        time.sleep(0.05)

@pytest.mark.multihost
def test_comes_later(world):
    world.barrier()
"""


def carrier_of(process: subprocess.Popen[str]) -> psutil.Process:
    """Return the process that carries the bytes between a driver and its nodes."""
    (found,) = (
        each for each in psutil.Process(process.pid).children() if "carrier" in str(each.cmdline())
    )
    return found


@needs_root
@pytest.mark.namespaces
def test_ranks_end_when_pytests_machine_is_out_of_reach(tmp_path: Path) -> None:
    """A cable that is cut ends no connection at the peer, but no heartbeat comes through."""
    path = project(tmp_path / "it", LOST)
    (path / "conftest.py").write_text(IMPATIENT)
    with two_machines() as entries:
        enter = entering(path / "enter", entries)
        with started(path, "--multihost-on", f"exec:{enter} {{i}}") as process:
            carrier = carrier_of(process)
            carrier.suspend()
            await_that(lambda: {each.pid for each in living(path)} <= {process.pid, carrier.pid})
            carrier.resume()
            output, _ = process.communicate(timeout=LIMIT_S)
    assert "ERROR test_worlds.py::test_loses_a_node" in output
    assert "pytest's machine has been silent for too long" in output


@pytest.mark.processes
def test_an_idle_peer_ends_when_pytests_machine_is_out_of_reach(tmp_path: Path) -> None:
    """It has no ranks, and pytest is in a test without any."""
    path = project(tmp_path / "it", IDLE)
    (path / "conftest.py").write_text(IMPATIENT)
    with started(path, "--multihost-on", HERE) as process:
        carrier = carrier_of(process)
        carrier.suspend()
        await_that(lambda: {each.pid for each in living(path)} <= {process.pid, carrier.pid})
        carrier.resume()
        (path / "go-on").touch()
        output, _ = process.communicate(timeout=LIMIT_S)
    assert "is gone: it closed the connection; no world can be started any more" in output
    assert "pytest's machine has been silent for too long" in output
    assert process.returncode == 1


@pytest.mark.processes
@pytest.mark.parametrize("is_stopped", [False, True], ids=["busy", "stopped"])
def test_a_peer_waits_for_a_pytest_that_is_busy_or_stopped(
    tmp_path: Path, is_stopped: bool
) -> None:
    """For longer than a machine may be out of reach: its heartbeats go on."""
    path = project(tmp_path / "it", IDLE)
    (path / "conftest.py").write_text(IMPATIENT)
    with started(path, "--multihost-on", HERE) as process:
        if is_stopped:
            process.send_signal(signal.SIGSTOP)
        time.sleep(6.0)  # twice as long
        process.send_signal(signal.SIGCONT)
        (path / "go-on").touch()
        output, _ = process.communicate(timeout=LIMIT_S)
    assert "2 passed" in output, output


@pytest.mark.parametrize("number", range(4))
def test_a_secret_in_an_environment_is_seen(number: int) -> None:
    """In each form, so the test above can fail."""
    secret = b"\1" + os.urandom(31).replace(b"\0", b"\1")  # variables have no NUL
    with subprocess.Popen(
        ["sleep", "100"], env={b"IT": b"x" + forms_of(secret)[number]}
    ) as process:
        await_program(process.pid)
        seen = seen_in_processes(secret)
        process.kill()
    assert seen == [f"/proc/{process.pid}/environ"]


# Drivers that are no nodes


@needs_root
@pytest.mark.namespaces
def test_the_driver_needs_neither_linux_nor_a_runtime(tmp_path: Path) -> None:
    """Only the nodes do: what macOS has not is missing in the driver, and torch, jax and numpy."""
    require("torch")
    path = project(tmp_path / "it", WORLDS + LAZY_GLOO)
    (tmp_path / "laptop.py").write_text(LAPTOP)
    with two_machines() as entries:
        enter = entering(path / "enter", entries)
        on = ("--multihost-on", f"exec:{enter} {{i}}")
        done = subprocess.run(
            [sys.executable, str(tmp_path / "laptop.py"), *command(*on)[3:]],
            cwd=path,
            env=environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=LIMIT_S,
        )
    assert "3 failed, 2 passed" in done.stdout, done.stdout + done.stderr
    assert "HUNG test_worlds.py::test_waits - rank 2 never reached" in done.stdout, done.stdout
    assert "test_worlds.py:6  » time.sleep(600)" in done.stdout


LAZY_GLOO = """
@pytest.mark.multihost(backend="gloo")
def test_gloo(world):
    import torch
    import torch.distributed as dist
    ones = torch.ones(1)
    dist.all_reduce(ones)
    assert ones.item() == 4
"""


def test_a_test_with_roles_is_refused_with_the_reason(tmp_path: Path) -> None:
    """Its roles find each other on one machine."""
    marker = "@pytest.mark.multihost(roles={'a': 1, 'b': 1})"
    path = project(tmp_path / "it", f"import pytest\n{marker}\ndef test_it(world):\n    pass\n")
    done = drive(path, "--multihost-on", HERE, "--multihost-nodes=1")
    assert "test_it cannot be part of a run with --multihost-on: its roles share" in done.stdout
    assert done.returncode == 4


# Copies of the project in other places


@pytest.fixture(scope="module")
def on_copies(tmp_path_factory: pytest.TempPathFactory) -> Done:
    """A run on nodes that have the project below other directories, in a workflow of GitHub."""
    path, enter = copied(tmp_path_factory.mktemp("copies"), WORLDS)
    on = ("--multihost-on", f"exec:{enter} {{i}}", "-k", "waits or fails")
    return path, drive(path, *on, GITHUB_ACTIONS="true", GITHUB_WORKSPACE=str(path))


@needs_root
def test_stacks_of_copies_are_one_stack_in_the_drivers_tree(on_copies: Done) -> None:
    """Each node has the project below another directory."""
    path, done = on_copies
    diagnosis = verdicts(path)["test_waits"]["diagnosis"]
    assert diagnosis["where"]["file"] == "test_worlds.py"
    assert [each["ranks"] for each in diagnosis["groups"]] == [[2], [0, 1, 3]]
    assert "node-0" not in done.stdout


@needs_root
def test_annotations_of_copies_name_files_of_the_drivers_tree(on_copies: Done) -> None:
    """GitHub shows them beside the lines of the repository."""
    path, done = on_copies
    found = re.findall(r"^::error file=([^,]*),line=(\d+)", done.stdout, re.MULTILINE)
    lines = (path / "test_worlds.py").read_text().splitlines()
    assert {file for file, _ in found} == {"test_worlds.py"}, done.stdout
    assert {lines[int(line) - 1].strip() for _, line in found} >= {"assert world.rank != 3"}
    assert "node-1" not in done.stdout, done.stdout


def copied(folder: Path, source: str) -> tuple[Path, Path]:
    """Write a project and a copy for each of two nodes, from which it is hidden.

    Returns:
        The project, and a script that runs a command in the copy of the node whose index is first.
    """
    path = project(folder / "driver", source)
    for node in (0, 1):
        project(folder / f"node-{node}", source)
    hidden = f"mount -t tmpfs none {path}"
    enter = script(
        folder / "enter",
        f"cd {folder}/node-$1; shift",
        f'exec unshare --mount sh -c \'{hidden} && exec "$@"\' sh "$@"',
    )
    return path, enter


@needs_root
def test_a_node_without_the_project_says_so(tmp_path: Path) -> None:
    """It names the places where it has looked, and what is missing there."""
    path = project(tmp_path / "driver", WORLDS)
    hidden = f"mount -t tmpfs none {path}"
    enter = script(
        tmp_path / "enter",
        f'shift; cd /; exec unshare --mount sh -c \'{hidden} && exec "$@"\' sh "$@"',
    )
    done = drive(path, "--multihost-on", f"exec:{enter} {{i}}", "test_worlds.py")
    assert f"this node does not have the project of {path}" in done.stdout
    assert f"{path}: it has no pytest.ini, test_worlds.py" in done.stdout
    assert done.returncode == 4


OVER_TCP = """
import os, select, socket, subprocess, sys

with socket.create_server(("127.0.0.1", 0)) as listener:
    far = socket.create_connection(listener.getsockname())
    near, _ = listener.accept()
with far:
    process = subprocess.Popen(sys.argv[2:], stdin=far, stdout=far)
before = near.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
while True:
    ready, _, _ = select.select([0, near], [], [])
    if near in ready:
        if not (data := near.recv(1024)):
            break
        os.write(1, data)
    if 0 in ready:
        if not (data := os.read(0, 1024)):
            break
        near.sendall(data)
after = near.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
near.close()
process.wait()
open(f"delays-{sys.argv[1]}", "w").write(f"{before} {after}")
"""
"""A program that carries a peer's bytes as srun does."""


@pytest.mark.worlds
def test_a_command_that_carries_bytes_over_tcp_does_not_hold_them_back(tmp_path: Path) -> None:
    """The driver sets that for the command's connection, and acknowledges what arrives there."""
    path = project(tmp_path / "it", WORLDS)
    (path / "over_tcp.py").write_text(OVER_TCP)
    on = f"exec:{sys.executable} {path}/over_tcp.py {{i}}"
    done = drive(path, "--multihost-on", on, "-k", "meets")
    assert "1 passed" in done.stdout, done.stdout
    await_that(lambda: [each.read_text() for each in path.glob("delays-*")] == ["0 1"] * 2)


def test_time_of_a_run_is_not_spent_waiting_for_dead_peers(tmp_path: Path) -> None:
    """A peer that ends while others collect ends the wait, long before its timeout."""
    path = project(tmp_path / "it", WORLDS)
    started_s = time.monotonic()
    done = drive(path, "--multihost-on", "exec:sh -c 'test {i} = 0 && sleep 100; exit 5'")
    assert time.monotonic() - started_s < 60
    assert "node 1 has ended at its start: exit code 5" in done.stdout


def test_the_command_of_ssh_survives_the_shell_of_the_other_side(tmp_path: Path) -> None:
    """The program in ssh's place runs its last argument in a shell, as sshd does."""
    path = project(tmp_path / "it", WORLDS)
    (tmp_path / "bin").mkdir()
    lines = ('for last in "$@"; do :; done', f'echo "$@" >> {tmp_path}/said', 'exec sh -c "$last"')
    script(tmp_path / "bin" / "ssh", *lines)
    variables = {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}"}
    done = drive(path, "--multihost-on", "ssh:n1,n2", "-k", "meets", **variables)
    assert "1 passed" in done.stdout, done.stdout
    assert "ssh: 2 nodes: n1, n2" in done.stdout
    said = (tmp_path / "said").read_text().splitlines()
    assert sorted(each.partition("python")[0].split()[-2] for each in said) == ["n1", "n2"]
