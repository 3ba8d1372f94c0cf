"""Scripts of several roles run with `multihost run --role`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

TRAINER = """
import os, socket, sys, time
from pytest_multihost import current_world
world = current_world()
print(world.role, os.environ["RANK"], os.environ["WORLD_SIZE"], sys.argv[1:], flush=True)
if world.role_rank == 1:
    time.sleep(600)
world.barrier("step")
"""

ENGINE = """
import os
from pytest_multihost import current_world
world = current_world()
print(world.role, os.environ["RANK"], os.environ["WORLD_SIZE"], flush=True)
world.barrier("step")
"""

CLIENT = """
import http.client, sys, time
connection = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]))
connection.request("GET", "/")  # it is refused unless the server listens
print(connection.getresponse().status, sys.argv[2:], flush=True)
time.sleep(float(sys.argv[3]))
"""

FLAKY = """
import os, sys, helper
number = os.environ["TORCHELASTIC_RESTART_COUNT"]
print("run", number, flush=True)
sys.exit(3 if number == "0" else int(sys.argv[1]))
"""

SERVER = "server=1:-m http.server {port} --bind 127.0.0.1"
SERVED = ("--role", SERVER, "--ready", "server=tcp:{port}", "--service", "server")
"""A real program that serves, unmodified."""


def run(path: Path, *args: str) -> tuple[int, str]:
    """Run `multihost run` beside the scripts; return the exit code and what it printed."""
    (path / "train.py").write_text(TRAINER)
    (path / "engine.py").write_text(ENGINE)
    (path / "client.py").write_text(CLIENT)
    (path / "flaky.py").write_text(FLAKY)
    (path / "helper.py").write_text("")
    command = [sys.executable, "-m", "pytest_multihost.core.command.main", "run", *args]
    done = subprocess.run(
        command, cwd=path, capture_output=True, text=True, check=False, timeout=100
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.claim("test several programs at once, as trainers and engines")
def test_each_role_runs_its_own_program(tmp_path: Path) -> None:
    """Lines begin with the role, the verdict names it, and the command repeats the run."""
    roles = ("--role", "trainer=2:train.py --lr 1", "--role", "engine=1:-m engine")
    code, printed = run(tmp_path, *roles, "--hosts", "one")
    assert code == 3
    assert "[trainer 0] trainer 0 2 ['--lr', '1']" in printed
    assert "[ engine 0] engine 0 1" in printed or "[engine  0] engine 0 1" in printed
    assert "HUNG  trainer 1 never reached world.barrier 'step'" in printed
    [found] = (tmp_path / ".pytest_multihost" / "latest").glob("*/verdict.json")
    verdict = json.loads(found.read_text())
    assert [each["role"] for each in verdict["rank_results"]] == ["trainer", "trainer", "engine"]
    assert (
        "--role 'trainer=2:train.py --lr 1' --role 'engine=1:-m engine'"
        in (verdict["replay_command"])
    )


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (("--role", "a=2:none.py"), "there is no script none.py"),
        (("--role", "a=2:"), "--role must be NAME=RANKS:PROGRAM"),
        (("--role", "a=x:train.py"), "--role must be NAME=RANKS:PROGRAM"),
        (("--role", "others=2:train.py"), "must have names of letters"),
        (("--role", "a=1:train.py", "--role", "a=1:engine.py"), "a role is given twice"),
        (("--role", "a=1:train.py", "--ranks", "2"), "the roles say how many ranks there are"),
        (("--role", "a=1:train.py", "engine.py"), "each role names its own program"),
        (("--ranks", "2"), "a script is missing"),
        (("--ready", "a=tcp:1", "--ranks", "1", "engine.py"), "--ready is for roles"),
        (("--role", "a=1:engine.py", "--ready", "b=tcp:1"), "there is no role 'b'; there are: a"),
        (("--role", "a=1:engine.py", "--ready", "a"), "--ready must be NAME=VALUE, such as engine"),
        (("--role", "a=1:engine.py", "--ready", "a=80"), "must be 'tcp:PORT'"),
        (("--role", "a=1:engine.py {prot}"), "there is no {prot}; there are: port, rank, size"),
        (("--role", "a=1:engine.py", "--after", "a=b"), "there is no role 'b'"),
        (("--role", "a=1:engine.py", "--restarts", "a=x"), "--restarts must be a number"),
        (
            ("--role", "a=1:engine.py", "--service", "a"),
            "must have at least one role that is not a service",
        ),
        (
            ("--role", "a=1:engine.py", "--restarts", "a=1", "--backend", "gloo"),
            "Leave out --backend",
        ),
    ],
)
def test_a_wrong_role_is_an_error(tmp_path: Path, args: tuple[str, ...], told: str) -> None:
    """Nothing is run."""
    code, printed = run(tmp_path, *args)
    assert (code, told in printed) == (2, True), printed


def test_a_role_without_a_program_is_torchruns(tmp_path: Path) -> None:
    """Torchrun's option names the role of all ranks, and changes nothing here."""
    code, printed = run(tmp_path, "--role", "default", "--ranks", "1", "engine.py")
    assert code == 0
    assert "--role is ignored: all ranks run one script" in printed


def test_a_role_starts_once_a_real_server_listens(tmp_path: Path) -> None:
    """The server is ended after its client, and the run ends well."""
    client = ("--role", "client=1:client.py {ports[server]} '{\"a\": {}}' 0")
    code, printed = run(tmp_path, *SERVED, *client, "--after", "client=server", "--hosts", "one")
    assert code == 0, printed
    assert """[client 0] 200 ['{"a": {}}', '0']""" in printed


def test_a_client_that_hangs_beside_a_service_is_named(tmp_path: Path) -> None:
    """The server is not; the command that repeats the run has all options."""
    client = ("--role", "client=1:client.py {ports[server]} - 600")
    after = ("--after", "client=server")
    code, printed = run(tmp_path, *SERVED, *client, *after, "--hosts", "one", "--timeout", "5")
    assert code == 3, printed
    assert "HUNG  client 0 sleeps in the script" in printed
    [found] = (tmp_path / ".pytest_multihost" / "latest").glob("*/verdict.json")
    command = json.loads(found.read_text())["replay_command"]
    assert "--ready 'server=tcp:{port}' --service server" in command
    assert "--after client=server" in command


@pytest.mark.parametrize(("ends_with", "code"), [(0, 0), (5, 1)])
def test_a_program_that_fails_is_started_again(tmp_path: Path, ends_with: int, code: int) -> None:
    """The last end counts; modules beside the program are found, as the interpreter finds them."""
    roles = ("--role", f"engine=1:flaky.py {ends_with}", "--restarts", "engine=1")
    found, printed = run(tmp_path, *roles, "--hosts", "one")
    assert found == code, printed
    assert "[engine 0] run 0" in printed
    assert "[engine 0] run 1" in printed
