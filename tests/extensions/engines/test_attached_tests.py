"""One run over processes that something else has started: torchrun, mpirun, or a line of shell."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest
from machines import OWN_CLOCK, two_networks
from runtimes import needs_clock_library, require

from pytest_multihost.extensions.engines.attach import Rendezvous

pytestmark = pytest.mark.launchers

SECRET = "correct horse battery staple"  # noqa: S105 - guards nothing
PYTEST = (
    *("-m", "pytest", "--color=no", "-p", "multihost_hangs", "-p", "no:cacheprovider"),
    "--multihost-join",
)
LIMIT_S = 90.0

WORLDS = """
import os, time
import pytest, torch
import torch.distributed as dist

def test_ordinary():
    print("ran in", os.getpid())

@pytest.mark.multihost
def test_passes(world, shared_tmp_path):
    print("rank", world.rank, "was here")
    parents = world.gather(os.getppid())
    assert len(set(parents)) == world.size == 4
    assert not [name for name in os.environ if name.startswith(("SLURM", "OMPI", "PMI"))]
    (shared_tmp_path / f"{world.rank}").touch()
    world.barrier()
    assert len(list(shared_tmp_path.iterdir())) == 4

@pytest.mark.multihost(backend="gloo")
def test_fails(world):
    dist.all_reduce(torch.ones(1))
    assert world.rank != 2

@pytest.mark.multihost(backend="gloo", timeout=60)
def test_hangs(world):
    if world.rank == 3:
        time.sleep(600)
    dist.all_reduce(torch.ones(1))

@pytest.mark.multihost(ranks=2)
def test_is_smaller(world):
    world.barrier()

@pytest.mark.multihost(ranks=6)
def test_is_larger(world):
    assert len(set(world.gather(os.getppid()))) == 4
"""

SHORT = """
import os, signal, time
import psutil, pytest

def starter():
    '''The attached process that has started the server of this rank.'''
    return psutil.Process(os.getppid()).ppid()

@pytest.mark.multihost
def test_passes(world):
    world.barrier()

@pytest.mark.multihost
def test_loses_a_process(world):
    victim = int(os.environ.get("VICTIM", "1"))
    pids = world.gather(starter())
    if world.is_primary and "VICTIM" in os.environ:
        os.kill(pids[victim], int(os.environ["SIGNAL"]))
    if "VICTIM" in os.environ:
        time.sleep(600)

@pytest.mark.multihost
def test_comes_later(world):
    world.barrier()
"""


@dataclass
class Processes:
    """Processes of one attached run, and what they have said once they have ended."""

    path: Path
    started: list[subprocess.Popen[str]] = field(default_factory=list)
    output: list[str] = field(default_factory=list)

    def start(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start one more."""
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PYTEST", "CI", "RANK", "WORLD_SIZE", "MASTER_"))
        }
        self.started.append(
            subprocess.Popen(
                [*command],
                cwd=self.path,
                env={**inherited, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **environment},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )

    def finish(self) -> None:
        """Wait until all have ended."""
        self.output = [process.communicate(timeout=LIMIT_S)[0] for process in self.started]

    @property
    def codes(self) -> list[int]:
        """Their exit codes, in the order in which they were started."""
        return [process.returncode for process in self.started]

    @property
    def verdicts(self) -> dict[str, Any]:
        """The verdicts of the run by test name."""
        file = self.path / ".pytest_multihost" / "verdicts.jsonl"
        found = [json.loads(line) for line in file.read_text().splitlines()]
        return {verdict["nodeid"].rpartition("::")[2]: verdict for verdict in found}

    def log(self, test: str, rank: int) -> str:
        """Return what a rank of a test printed."""
        verdict = self.verdicts[test]
        base = self.path / ".pytest_multihost" / verdict["run_id"] / verdict["dir"]
        return (base / f"rank-{rank}.log").read_text()


def free_port() -> int:
    """Return a port that was free a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


def run_in(path: Path, source: str) -> Iterator[Processes]:
    """Yield what starts processes in a directory; afterwards none of them may be left."""
    (path / "pytest.ini").write_text("[pytest]\n")
    (path / "test_worlds.py").write_text(source)
    processes = Processes(path)
    yield processes
    for process in processes.started:
        process.kill()
        process.communicate()
    deadline_s = time.monotonic() + 10
    while (left := survivors(path)) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    assert left == []


def survivors(path: Path) -> list[str]:
    """Return the command lines of processes that work in a directory."""
    found = []
    for process in psutil.process_iter():
        try:
            if Path(process.cwd()) == path and process.status() != psutil.STATUS_ZOMBIE:
                found.append(" ".join(process.cmdline()))
        except psutil.Error:  # gone meanwhile
            continue
    return found


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    """What starts processes that run the short tests."""
    yield from run_in(tmp_path, SHORT)


def attach(
    processes: Processes,
    size: int,
    *args: str,
    ranks: Sequence[int] = (),
    before: Sequence[str] = (),
    **environment: str,
) -> None:
    """Start processes of one run with variables of their own, rank 0 first.

    Args:
        processes: What starts them.
        size: How many there are to be.
        *args: For pytest.
        ranks: Which to start; all if not given.
        before: What runs their command.
        **environment: More variables.
    """
    environment.setdefault("PYTEST_MULTIHOST_ADDRESS", f"127.0.0.1:{free_port()}")
    for rank in ranks or range(size):
        place = {"PYTEST_MULTIHOST_RANK": str(rank), "PYTEST_MULTIHOST_SIZE": str(size)}
        command = [*before, sys.executable, *PYTEST, *args]
        processes.start(command, {**place, **environment})


# What a launcher starts


@pytest.fixture(scope="module")
def torchrun(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    """Four processes under torchrun that have run all worlds."""
    require("torch")
    for processes in run_in(tmp_path_factory.mktemp("torchrun"), WORLDS):
        command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "4"]
        processes.start([*command, *PYTEST, "-v"], {})
        processes.finish()
        yield processes


@pytest.mark.claim("run under torchrun, mpirun, Slurm or in containers")
def test_under_torchrun_every_test_is_told_once(torchrun: Processes) -> None:
    """By rank 0's process; the others say nothing, and all end as the run did."""
    (output,) = torchrun.output
    assert output.count("test session starts") == 1
    assert output.count("2 failed, 4 passed in") == 1
    assert "attached to 4 processes on one machine, as torchrun has started them" in output
    assert torchrun.codes == [1]
    assert output.count("ran in") == 0  # the ordinary test passed, in one process


def test_under_torchrun_the_ranks_of_a_world_are_started_by_all(torchrun: Processes) -> None:
    """One each, in a row each where there are more; a smaller world by the first of them."""
    passed = {name for name, each in torchrun.verdicts.items() if each["outcome"] == "passed"}
    assert passed == {"test_passes", "test_is_smaller", "test_is_larger"}
    assert {each["launch"] for each in torchrun.verdicts.values()} == {"attach"}
    assert torchrun.log("test_passes", 3) == "rank 3 was here\n"


def test_under_torchrun_a_failing_rank_is_named(torchrun: Processes) -> None:
    """As in any world."""
    ranks = torchrun.verdicts["test_fails"]["rank_results"]
    assert [each["outcome"] for each in ranks] == ["passed", "passed", "failed", "passed"]


def test_under_torchrun_a_hang_is_proven_and_its_culprit_named(torchrun: Processes) -> None:
    """On one machine rank 0's process sees all ranks."""
    diagnosis = torchrun.verdicts["test_hangs"]["diagnosis"]
    assert (diagnosis["kind"], diagnosis["culprits"]) == ("straggler", [3])
    assert diagnosis["waiting"] == [0, 1, 2]
    assert diagnosis["detected_by"] == "proof"


def test_torchrun_names_rank_0_as_the_root_cause(torchrun: Processes) -> None:
    """Its process says which rank of which test failed; it ends by itself, before the others."""
    _, _, cause = torchrun.output[0].partition("Root Cause (first observed failure):")
    assert "rank      : 0 (local_rank: 0)" in cause
    assert "exitcode  : 1 " in cause


def test_under_mpirun_the_same_command_works(tmp_path: Path) -> None:
    """Open MPI tells nobody where rank 0 is: its letter does."""
    mpirun = shutil.which("mpirun")
    if mpirun is None:
        pytest.skip("there is no mpirun here; Debian has it in openmpi-bin")
    for processes in run_in(tmp_path, WORLDS):
        started = [mpirun, "--allow-run-as-root", "--oversubscribe", "-n", "4", sys.executable]
        processes.start([*started, *PYTEST, "-k", "passes or fails or ordinary"], {})
        processes.finish()
        (output,) = processes.output
        assert output.count("1 failed, 2 passed, 3 deselected in") == 1
        assert "as Open MPI has started them" in output
        assert processes.codes == [1]
        assert list((tmp_path / ".pytest_multihost").glob("attach-*")) == []  # no secret is left


# Processes without a launcher


@pytest.mark.smoke
def test_a_run_of_plain_processes_ends_alike_in_all(processes: Processes) -> None:
    """The quiet ones say nothing at all."""
    attach(processes, 3)
    processes.finish()
    assert "3 passed in" in processes.output[0]
    assert processes.output[1:] == ["", ""]
    assert processes.codes == [0, 0, 0]


def test_the_others_end_after_a_controller_that_takes_long_to_end(processes: Processes) -> None:
    """A launcher blames the first process that fails; exit handlers of others come after ours."""
    (processes.path / "conftest.py").write_text(
        """
import atexit, os, time
if os.environ["PYTEST_MULTIHOST_RANK"] == "0":
    atexit.register(time.sleep, 3)
"""
    )
    attach(processes, 3, "-k", "nothing", "--multihost-startup-timeout=60")
    controller, *others = processes.started
    for each in others:
        each.wait(LIMIT_S)
        assert controller.poll() is not None
    processes.finish()
    assert processes.codes == [5, 5, 5]


def test_a_process_that_does_not_come_is_named(processes: Processes) -> None:
    """And those that have come end with the run."""
    attach(processes, 3, "--multihost-startup-timeout=4", ranks=(0, 2))
    processes.finish()
    assert "ERROR: rank 1 of 3 has not connected within 4 s" in processes.output[0]
    assert "ranks 0,2 are here, listening at 127.0.0.1:" in processes.output[0]
    assert processes.codes == [4, 4]


def test_a_process_that_finds_no_controller_says_so(processes: Processes) -> None:
    """With where it has looked."""
    attach(processes, 2, "--multihost-startup-timeout=2", ranks=(1,))
    processes.finish()
    assert "rank 1 has not found rank 0 within 2 s" in processes.output[0]
    assert "attach-" in processes.output[0]
    assert processes.codes == [1]


def test_a_listener_that_is_not_rank_0_is_given_up_at_the_start_up_limit(
    processes: Processes,
) -> None:
    """It accepts, and never answers; the message has its address and what was seen."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        attach(
            processes,
            2,
            "--multihost-startup-timeout=2",
            ranks=(1,),
            PYTEST_MULTIHOST_ADDRESS=address,
            PYTEST_MULTIHOST_SECRET="0123456789abcdef" * 2,
        )
        processes.finish()
    assert "rank 1 has not found rank 0" in processes.output[0]
    assert f"{address}: it accepted the connection and sent nothing" in processes.output[0]
    assert processes.codes == [1]


def test_a_controller_that_collects_for_long_is_waited_for(processes: Processes) -> None:
    """Longer than one that is not there: it listens from its start."""
    (processes.path / "conftest.py").write_text(
        """
import os, time
def pytest_collection():
    time.sleep(float(os.environ["NAP"]))
"""
    )
    port = f"127.0.0.1:{free_port()}"
    limit = "--multihost-startup-timeout=3"
    for rank, nap in ((0, "5"), (1, "0")):
        attach(processes, 2, limit, ranks=(rank,), NAP=nap, PYTEST_MULTIHOST_ADDRESS=port)
    processes.finish()
    assert "3 passed" in processes.output[0]
    assert processes.codes == [0, 0]


def test_a_process_that_has_collected_other_tests_is_named(processes: Processes) -> None:
    """With the first test that differs."""
    (processes.path / "conftest.py").write_text(
        """
import os
def pytest_generate_tests(metafunc):
    if metafunc.function.__name__ == "test_passes":
        metafunc.fixturenames.append("where")
        metafunc.parametrize("where", [os.environ["WHERE"]])
"""
    )
    port = f"127.0.0.1:{free_port()}"
    for rank in range(2):
        where = {"WHERE": f"rank-{rank}", "PYTEST_MULTIHOST_ADDRESS": port}
        attach(processes, 2, ranks=(rank,), **where)
    processes.finish()
    assert "rank 1's process" in processes.output[0]
    assert "has collected other tests than this process" in processes.output[0]
    assert (
        "test_passes[rank-0]: here ranks=2, backend='none' and there it was not collected"
        in processes.output[0]
    )
    assert processes.codes == [4, 4]


def test_a_process_that_cannot_collect_is_named(processes: Processes) -> None:
    """With its own words."""
    (processes.path / "conftest.py").write_text(
        "import os\nif os.environ['WHERE'] == 'b':\n    collect_ignore_glob = ['*']\n"
    )
    (processes.path / "test_more.py").write_text(
        "import os\nassert os.environ['WHERE'] != 'c', 'no such GPU'\n"
    )
    port = f"127.0.0.1:{free_port()}"
    for rank, where in ((0, "a"), (1, "c")):
        attach(processes, 2, ranks=(rank,), WHERE=where, PYTEST_MULTIHOST_ADDRESS=port)
    processes.finish()
    assert "cannot take part" in processes.output[0]
    assert "no such GPU" in processes.output[0]


def test_a_process_that_nobody_has_told_its_rank_is_a_usage_error(processes: Processes) -> None:
    """Also where two have told it different ones."""
    processes.start([sys.executable, *PYTEST], {})
    both = {"RANK": "0", "WORLD_SIZE": "2", "JAX_PROCESS_ID": "1", "JAX_NUM_PROCESSES": "2"}
    processes.start([sys.executable, *PYTEST], both)
    processes.finish()
    assert "ERROR: no launcher has given this process a rank" in processes.output[0]
    assert "RANK=0 of WORLD_SIZE=2; JAX_PROCESS_ID=1 of JAX_NUM_PROCESSES=2" in processes.output[1]
    assert processes.codes == [4, 4]


@needs_clock_library()
def test_the_ranks_of_all_processes_share_a_clock(processes: Processes) -> None:
    """On one machine they see the same page."""
    source = """
import os, pytest

@pytest.mark.multihost(clock="jump")
def test_it(world):
    assert len(set(world.gather(os.stat(os.environ["PYTEST_MULTIHOST_CLOCK_PAGE"]).st_ino))) == 1
"""
    (processes.path / "test_worlds.py").write_text(source)
    attach(processes, 2)
    processes.finish()
    assert processes.codes == [0, 0]
    assert "1 passed" in processes.output[0]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('@pytest.mark.multihost(hosts="netns")\ndef test_it(world):', "hosts are made on one"),
        (
            "@pytest.mark.multihost\ndef test_it(object_store):",
            "the object store runs on one machine",
        ),
    ],
    ids=["hosts", "object_store"],
)
def test_what_only_one_machine_can_give_is_refused(
    processes: Processes, line: str, words: str
) -> None:
    """Before any test runs."""
    (processes.path / "test_more.py").write_text(f"import pytest\n{line}\n    pass\n")
    attach(processes, 2)
    processes.finish()
    assert "test_more.py::test_it cannot be part of an attached run: " in processes.output[0]
    assert words in processes.output[0]
    assert processes.codes == [4, 4]


# Processes that go


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(signal.SIGKILL, id="killed"),
        pytest.param(signal.SIGSTOP, id="stopped"),
    ],
)
def test_a_process_that_is_lost_in_the_middle_is_named_and_ends_the_run(
    processes: Processes, number: signal.Signals
) -> None:
    """A stopped one is told by its silence, when the world is to be ended."""
    timeout = "--multihost-timeout=3"
    attach(processes, 3, timeout, VICTIM="1", SIGNAL=str(int(number)))
    output, _ = processes.started[0].communicate(timeout=LIMIT_S)
    processes.started[1].kill()
    processes.started[2].communicate(timeout=LIMIT_S)
    pid = processes.started[1].pid
    assert f"rank 1's process (pid {pid} on {socket.gethostname()}) is gone" in output
    assert "no world can be started any more" in output
    assert "test_comes_later" not in output
    assert processes.started[0].returncode == 1
    assert processes.started[2].returncode == 1


def test_when_the_controller_is_killed_nothing_is_left(processes: Processes) -> None:
    """The others say why they end."""
    attach(processes, 3, VICTIM="0", SIGNAL=str(int(signal.SIGKILL)))
    processes.finish()
    assert processes.codes == [-signal.SIGKILL, 1, 1]
    for output in processes.output[1:]:
        assert "rank 0's process has ended without a result of the run" in output


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("victim", [0, 1], ids=["controller", "peer"])
def test_a_launcher_that_ends_the_run_is_told_where_it_was(
    processes: Processes, number: signal.Signals, victim: int
) -> None:
    """Slurm's time limit and torchrun's ends begin with SIGTERM: the ranks' stacks are shown."""
    attach(processes, 2, VICTIM=str(victim), SIGNAL=str(int(number)))
    processes.finish()
    peer = f" to rank 1's process (pid {processes.started[1].pid} on " if victim else ""
    assert f"KeyboardInterrupt: interrupted by {number.name}{peer}" in processes.output[0]
    assert "where the ranks were:" in processes.output[0]
    assert "time.sleep(600)" in processes.output[0]
    assert "interrupted by" in processes.verdicts["test_loses_a_process"]["reason"]
    assert processes.codes == [2, 2]


# Whom we let in


def knock(port: int, data: bytes) -> bytes:
    """Say something to whoever listens at a port, and return all that is answered."""
    deadline_s = time.monotonic() + LIMIT_S
    while True:
        try:
            stream = socket.create_connection(("127.0.0.1", port), timeout=LIMIT_S)
        except OSError:
            assert time.monotonic() < deadline_s
            time.sleep(0.05)
            continue
        with stream:
            stream.sendall(data)
            answer = b""
            try:
                while more := stream.recv(4096):
                    answer += more
            except ConnectionResetError:
                pass
            return answer


def test_strangers_are_sent_away_and_counted(processes: Processes) -> None:
    """A browser, one who knows another secret, and one that says nothing; the run goes on."""
    port = free_port()
    address = {"PYTEST_MULTIHOST_ADDRESS": f"127.0.0.1:{port}"}
    limit = "--multihost-startup-timeout=6"
    attach(processes, 3, limit, ranks=(0, 1), PYTEST_MULTIHOST_SECRET=SECRET, **address)
    attach(processes, 3, limit, ranks=(2,), PYTEST_MULTIHOST_SECRET=SECRET[::-1], **address)
    with socket.create_server(("127.0.0.1", 0)):
        answer = knock(port, b"GET / HTTP/1.1\r\n\r\n")
    processes.finish()
    assert answer.startswith(b"pytest-multihost-hangs/")
    assert SECRET.encode() not in answer
    assert "rank 2 of 3 has not connected within 6 s" in processes.output[0]
    assert "it does not speak the protocol of pytest-multihost-hangs" in processes.output[0]
    assert "it does not know the secret" in processes.output[0]
    assert SECRET not in "".join(processes.output)


def test_a_rank_that_comes_twice_is_sent_away(processes: Processes) -> None:
    """The first one stays."""
    port = f"127.0.0.1:{free_port()}"
    attach(processes, 3, ranks=(0, 1), PYTEST_MULTIHOST_ADDRESS=port)
    time.sleep(1.5)
    attach(processes, 3, ranks=(1,), PYTEST_MULTIHOST_ADDRESS=port)
    twice, _ = processes.started[2].communicate(timeout=LIMIT_S)
    attach(processes, 3, ranks=(2,), PYTEST_MULTIHOST_ADDRESS=port)
    output, _ = processes.started[0].communicate(timeout=LIMIT_S)
    assert "another process is rank 1 already" in twice
    assert "3 passed" in output


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file away")
def test_a_rendezvous_file_of_another_user_ends_both_sides_at_once(processes: Processes) -> None:
    """Neither waits for the other until the startup timeout."""
    folder = processes.path / ".pytest_multihost"
    folder.mkdir()
    variables = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "TORCHELASTIC_RUN_ID": "x"}
    membership = Rendezvous.read({"RANK": "0", **variables}, folder)
    membership.file.write_text("{}")
    os.chown(membership.file, 12345, -1)
    started_s = time.monotonic()
    for rank in range(2):
        command = [sys.executable, *PYTEST, "--multihost-startup-timeout=80"]
        processes.start(command, {"RANK": str(rank), **variables})
    processes.finish()
    assert all("it belongs to another user, 12345" in output for output in processes.output)
    assert processes.codes == [4, 1]
    assert time.monotonic() - started_s < 80


SPYING = """
import os, subprocess, time
import pytest

@pytest.mark.multihost
def test_looks_around(world):
    child = subprocess.Popen(["sleep", "30"])
    while not open(f"/proc/{child.pid}/environ", "rb").read():
        time.sleep(0.01)  # the kernel shows it a moment after exec
    world.barrier()
    if world.is_primary:
        open(os.environ["HERE"] + "/running", "w").close()
    while not os.path.exists(os.environ["HERE"] + "/seen"):
        time.sleep(0.05)
    child.kill()
    child.wait()
"""


def test_the_secret_is_in_no_process_of_the_world(tmp_path: Path) -> None:
    """Neither in its environment, as the kernel shows it to others of its user, nor its command."""
    about = {"HERE": str(tmp_path), "PYTEST_MULTIHOST_SECRET": SECRET}
    for processes in run_in(tmp_path, SPYING):
        attach(processes, 2, **about)
        deadline_s = time.monotonic() + LIMIT_S
        while not (tmp_path / "running").exists() and time.monotonic() < deadline_s:
            time.sleep(0.05)
        seen = {
            process.pid: Path(f"/proc/{process.pid}/environ").read_bytes()
            + Path(f"/proc/{process.pid}/cmdline").read_bytes()
            for started in processes.started
            for process in (
                psutil.Process(started.pid),
                *psutil.Process(started.pid).children(recursive=True),
            )
        }
        (tmp_path / "seen").touch()
        processes.finish()
        assert processes.codes == [0, 0]
    assert len(seen) >= 8  # on each side pytest, its server, a rank and the rank's child
    assert [pid for pid, text in seen.items() if SECRET.encode() in text] == []
    assert all(b"HERE=" in text for text in seen.values())  # so the environments were read


def relay(listener: socket.socket, port: int, spoil: Callable[[bytes], bytes]) -> None:
    """Pass on what goes through a connection; the second message of the caller is spoilt."""
    theirs, _ = listener.accept()
    ours = socket.create_connection(("127.0.0.1", port))

    def answers() -> None:
        while data := ours.recv(1 << 16):
            theirs.sendall(data)
        theirs.shutdown(socket.SHUT_WR)

    back = threading.Thread(target=answers, daemon=True)
    back.start()
    messages = 0
    while data := theirs.recv(1 << 16):
        messages += 1
        ours.sendall(data if messages != 2 else spoil(data))
    ours.close()
    back.join(5)
    theirs.close()


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda data: data + data, "a message failed its check"),
        (lambda data: data[:-1] + bytes([data[-1] ^ 1]), "a message failed its check"),
    ],
    ids=["replayed", "changed"],
)
def test_what_somebody_between_repeats_or_changes_is_refused(
    processes: Processes, spoil: Callable[[bytes], bytes], words: str
) -> None:
    """And ends the run: nothing that comes after it can be believed."""
    port = free_port()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        between = f"127.0.0.1:{listener.getsockname()[1]}"
        secret = {"PYTEST_MULTIHOST_SECRET": SECRET}
        attach(processes, 2, ranks=(0,), PYTEST_MULTIHOST_ADDRESS=f"127.0.0.1:{port}", **secret)
        knock_until_open(port)
        attach(processes, 2, ranks=(1,), PYTEST_MULTIHOST_ADDRESS=between, **secret)
        thread = threading.Thread(target=relay, args=(listener, port, spoil), daemon=True)
        thread.start()
        processes.finish()
        thread.join(10)
    assert "rank 1's process" in processes.output[0]
    assert words in processes.output[0]
    assert processes.codes[0] != 0


def knock_until_open(port: int) -> None:
    """Wait until somebody listens."""
    deadline_s = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline_s:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)


# Other machines

ALONE = ("unshare", "--pid", "--fork", "--mount-proc", *OWN_CLOCK)
NAMED = ("sh", "-c", 'hostname beta && exec "$@"', "sh")


@pytest.fixture
def machines() -> Iterator[tuple[str, str]]:
    """Two networks with a cable between them: 10.98.0.1 and 10.98.0.2."""
    with two_networks() as names:
        yield names


@needs_clock_library()
def test_a_clock_that_jumps_is_refused_on_several_machines(
    tmp_path: Path, machines: tuple[str, str]
) -> None:
    """Its page is memory of one machine; the process that cannot see it is named."""
    source = "import pytest\n@pytest.mark.multihost(clock='jump')\ndef test_it(world):\n    pass\n"
    for processes in run_in(tmp_path, source):
        about = {"PYTEST_MULTIHOST_SECRET": SECRET, "PYTEST_MULTIHOST_ADDRESS": "10.98.0.1:7001"}
        for rank in range(2):
            alone = [*ALONE, *NAMED] if rank else []
            before = ("ip", "netns", "exec", machines[rank], *alone)
            attach(processes, 2, ranks=(rank,), before=before, **about)
        processes.finish()
        assert (
            "test_it cannot have clock='jump' in a run on several machines" in processes.output[0]
        )
        assert "rank 1's process" in processes.output[0]
        assert processes.codes == [4, 4]


ROOM_FOR_TWO = """
from pytest_multihost.core.backends import Backend

def pytest_multihost_backends():
    def lacking(size):
        return None if size <= 2 else f"two fit on a machine, not {size}"

    return [Backend(name="paired", start=lambda spec: None, lacking=lacking)]
"""
PAIRS = """
import pytest

@pytest.mark.multihost(backend="paired")
def test_fits(world):
    world.barrier()

@pytest.mark.multihost(ranks=8, backend="paired")
def test_does_not_fit(world):
    world.barrier()
"""


def test_a_machine_needs_room_for_its_own_ranks_only(
    tmp_path: Path, machines: tuple[str, str]
) -> None:
    """As many GPUs, say, as ranks live on it, and not as many as the world has."""
    (tmp_path / "conftest.py").write_text(ROOM_FOR_TWO)
    for processes in run_in(tmp_path, PAIRS):
        about = {"PYTEST_MULTIHOST_SECRET": SECRET, "PYTEST_MULTIHOST_ADDRESS": "10.98.0.1:7001"}
        for rank in range(4):
            enter = ["ip", "netns", "exec", machines[rank // 2]]
            alone = [*ALONE, *NAMED] if rank // 2 else []
            attach(processes, 4, "-rs", ranks=(rank,), before=(*enter, *alone), **about)
        processes.finish()
        assert "1 passed, 1 skipped" in processes.output[0]
        assert "two fit on a machine, not 4" in processes.output[0]


def test_ranks_of_another_machine_are_seen_by_the_process_there(
    tmp_path: Path, machines: tuple[str, str]
) -> None:
    """It has its own network, processes, clock and name; what it sees comes over the connection."""
    require("torch")
    source = WORLDS.replace("test_passes(world, shared_tmp_path)", "test_passes(world)")
    cut = source.index("    assert len(set(parents))"), source.index("@pytest.mark.multihost(back")
    for processes in run_in(tmp_path, source[: cut[0]] + "\n" + source[cut[1] :]):
        about = {"PYTEST_MULTIHOST_SECRET": SECRET, "PYTEST_MULTIHOST_ADDRESS": "10.98.0.1:7001"}
        for rank in range(4):
            enter = ["ip", "netns", "exec", machines[rank // 2]]
            alone = [*ALONE, *NAMED] if rank // 2 else []
            selected = ("-k", "passes or fails or hangs")
            attach(processes, 4, *selected, ranks=(rank,), before=(*enter, *alone), **about)
        processes.finish()
        output = processes.output[0]
        assert "attached to 4 processes on 2 machines" in output
        assert "2 failed, 1 passed, 3 deselected in" in output
        assert processes.log("test_passes", 3) == "rank 3 was here\n"
        ranks = processes.verdicts["test_fails"]["rank_results"]
        assert [each["outcome"] for each in ranks] == ["passed", "passed", "failed", "passed"]
        assert [each["host"] for each in ranks] == [*[socket.gethostname()] * 2, "beta", "beta"]
        diagnosis = processes.verdicts["test_hangs"]["diagnosis"]
        assert (diagnosis["kind"], diagnosis["culprits"]) == ("straggler", [3])
        assert diagnosis["detected_by"] == "proof"
        assert "time.sleep(600)" in output  # its stacks
        assert "ranks 2,3 on beta: watched by the process there, times are exact to" in output
        assert processes.output[1:] == ["", "", ""]


def test_torchrun_without_the_option_is_hinted_at(processes: Processes) -> None:
    """Each process would start as many ranks as there are processes."""
    require("torch")
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    without = [each for each in PYTEST if each != "--multihost-join"]
    processes.start([*command, *without, "--ranks=2", "-k", "test_passes"], {})
    processes.finish()
    (output,) = processes.output
    assert "each of the 2 processes of torchrun runs all tests" in output
