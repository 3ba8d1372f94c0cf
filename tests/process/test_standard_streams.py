"""Standard streams that are closed, or that nobody reads: no traceback, and nothing is left."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from runs import await_that, living

MULTIHOST = (sys.executable, "-m", "pytest_multihost.core.command.main")
PYTEST = (sys.executable, "-m", "pytest", "-p", "multihost_hangs", "-q")

WORLD = """
import pytest

@pytest.mark.multihost(ranks=2)
def test_passes(world):
    print("shown by nobody")

@pytest.mark.multihost(ranks=2)
def test_fails(world):
    assert world.rank == 0
"""
SCRIPT = """
import time
for _ in range(200):
    print("x" * 1000, flush=True)
    time.sleep(0.02)
"""

Shell = Callable[[str], "subprocess.CompletedProcess[str]"]


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    """Run a command line of a shell in a directory of its own; nothing may be alive afterwards."""
    (tmp_path / "test_worlds.py").write_text(WORLD)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "script.py").write_text(SCRIPT)

    def run(line: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "-o", "pipefail", "-c", line],
            cwd=tmp_path,
            env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )

    yield run
    await_that(lambda: living(tmp_path) == [])


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_pytest_with_closed_streams_ends_as_its_tests_do(shell: Shell, closed: str) -> None:
    """A socket of ours never gets the descriptor of a stream."""
    passes = shell(f"{' '.join(PYTEST)} -k passes {closed}")
    assert (passes.returncode, passes.stderr) == (0, "")
    fails = shell(f"{' '.join(PYTEST)} {closed}")
    assert (fails.returncode, fails.stderr) == (1, "")


def test_commands_with_closed_streams_do_their_work(shell: Shell) -> None:
    """Their exit code is what it is with streams."""
    shell(" ".join(PYTEST))
    for command, code in (("explain", 0), ("run -n 2 script.py", 0), ("attach 0=1", 1)):
        for closed in (">&-", "2>&-", "<&- >&- 2>&-"):
            done = shell(f"{' '.join(MULTIHOST)} {command} {closed}")
            assert "Traceback" not in done.stdout + done.stderr, (command, closed)
            if command != "attach 0=1":
                assert done.returncode == code, (command, closed, done)


@pytest.mark.parametrize("command", ["explain", "run -n 2 script.py", "attach 0=$$"])
def test_a_command_whose_reader_has_gone_ends_as_by_sigpipe(shell: Shell, command: str) -> None:
    """As any program before `| head -1`; ranks of a script are ended."""
    shell(" ".join(PYTEST))
    line = f"(sleep 0.5; exec {' '.join(MULTIHOST)} {command}) | true"
    done = shell(line)
    assert done.stderr == ""
    assert done.returncode == 141


def test_output_that_cannot_be_written_is_an_error(shell: Shell) -> None:
    """A full disk, in one sentence."""
    shell(" ".join(PYTEST))
    done = shell(f"{' '.join(MULTIHOST)} explain > /dev/full")
    assert done.returncode == 1
    assert done.stderr.count("No space left on device") == 1
    assert "Traceback" not in done.stderr
