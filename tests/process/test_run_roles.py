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


def run(path: Path, *args: str) -> tuple[int, str]:
    """Run `multihost run` beside the two scripts; return the exit code and what it printed."""
    (path / "train.py").write_text(TRAINER)
    (path / "engine.py").write_text(ENGINE)
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
        (("--ranks", "2"), "there is no script"),
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
