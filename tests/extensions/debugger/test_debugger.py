"""The debugger in ranks, typed into on a real terminal."""

from __future__ import annotations

import re
import signal
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pexpect
import psutil
import pytest
from runs import living
from runtimes import needs

STEPS = """
import pytest

@pytest.mark.multihost(ranks=3, timeout=4)
def test_it(world):
    mine = world.rank * 10
    {stop}
    world.barrier()
    assert mine < 100
"""

SHARDS = """
import pytest
{imports}

@pytest.mark.multihost(ranks=4, backend="{backend}", timeout=4)
def test_it(world):
    shard = list(range(world.rank, world.rank + 2))
    if world.rank == 2:
        shard.pop()
    assert len(shard) == 2
    {barrier}
"""

Debug = Callable[..., "pexpect.spawn[str]"]


@pytest.fixture
def debug(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Debug]:
    """Run pytest in a terminal on a source text; afterwards nothing of it may be alive."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("TERM", "dumb")
    for name in ("CI", "PYTEST_ADDOPTS", "PYTEST_XDIST_WORKER", "PYTEST_CURRENT_TEST"):
        monkeypatch.delenv(name, raising=False)
    started: list[pexpect.spawn[str]] = []

    def start(source: str, *args: str) -> pexpect.spawn[str]:
        (tmp_path / "test_worlds.py").write_text(source)
        command = ["-m", "pytest", "-p", "multihost_hangs", "-p", "no:cacheprovider", *args]
        child = pexpect.spawn(
            sys.executable, command, cwd=tmp_path, encoding="utf-8", timeout=60, echo=False
        )
        started.append(child)
        return child

    yield start
    for each in started:
        each.close(force=True)
    assert living(tmp_path) == []


def prompt(child: pexpect.spawn[str]) -> int:
    """Wait for a prompt, and return the rank that it names."""
    child.expect(r"\(Pdb rank (\d)\) ")
    assert isinstance(child.match, re.Match)
    return int(child.match[1])


def end(child: pexpect.spawn[str]) -> str:
    """Wait for the end of the run, and return its last output."""
    child.expect(pexpect.EOF)
    return str(child.before)


def wait_until(is_so: Callable[[], bool]) -> None:
    """Wait until something is so, for a minute at most."""
    until_s = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < until_s
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("backend", "imports", "barrier"),
    [
        ("none", "", "world.barrier()"),
        pytest.param(
            "gloo", "import torch.distributed", "torch.distributed.barrier()", marks=needs("torch")
        ),
        pytest.param(
            "jax",
            "from jax.experimental import multihost_utils",
            "multihost_utils.sync_global_devices('all')",
            marks=needs("jax"),
        ),
    ],
)
@pytest.mark.claim("stop a rank in the debugger")
def test_the_rank_that_fails_stops_and_the_others_wait(
    debug: Debug, backend: str, imports: str, barrier: str
) -> None:
    """Longer than the timeout; then the failure is reported as without --pdb."""
    child = debug(SHARDS.format(backend=backend, imports=imports, barrier=barrier), "--pdb")
    assert prompt(child) == 2
    child.sendline("import time; time.sleep(6); print('shard is', shard)")
    child.expect_exact("shard is [2]")
    assert prompt(child) == 2
    child.sendline("c")
    output = end(child)
    assert "rank 2: AssertionError" in output
    assert "1 failed" in output
    assert "HUNG" not in output


def test_each_rank_stops_at_a_breakpoint_in_turn(debug: Debug) -> None:
    """And the test passes if each one is continued."""
    child = debug(STEPS.format(stop="breakpoint()"))
    seen = []
    for _ in range(3):
        rank = prompt(child)
        seen.append(rank)
        child.sendline("p 'mine is %d' % mine")
        child.expect_exact(f"mine is {rank * 10}")
        assert prompt(child) == rank
        child.sendline("c")
    assert sorted(seen) == [0, 1, 2]
    assert "1 passed" in end(child)


@pytest.mark.parametrize(
    ("stop", "args"),
    [("breakpoint()", ["--multihost-pdb-rank=1"]), ("world.breakpoint(rank=1)", [])],
)
def test_a_named_rank_stops_alone(debug: Debug, stop: str, args: list[str]) -> None:
    """Its steps are its own; the others pass the line."""
    child = debug(STEPS.format(stop=stop), *args)
    assert prompt(child) == 1
    child.sendline("n")
    child.expect_exact("-> assert mine < 100")
    assert prompt(child) == 1
    child.sendline("c")
    assert "1 passed" in end(child)


def test_a_step_into_a_barrier_gives_the_terminal_to_the_next_rank(debug: Debug) -> None:
    """Which must come to that barrier as well."""
    child = debug(STEPS.format(stop="breakpoint()"))
    first = prompt(child)
    child.sendline("n")
    assert prompt(child) != first
    child.sendline("c")
    assert prompt(child) != first
    child.sendline("c")
    child.expect_exact("-> assert mine < 100")
    assert prompt(child) == first
    child.sendline("c")
    assert "1 passed" in end(child)


def test_trace_stops_at_the_first_line_of_the_test(debug: Debug) -> None:
    """In the rank that the option names."""
    child = debug(STEPS.format(stop="pass"), "--trace", "--multihost-pdb-rank=2")
    child.expect_exact("-> mine = world.rank * 10")
    assert prompt(child) == 2
    child.sendline("c")
    assert "1 passed" in end(child)


def test_control_c_goes_to_the_debugger(debug: Debug) -> None:
    """The run goes on; without a debugger it would end."""
    child = debug(STEPS.format(stop="world.breakpoint(rank=1)"))
    assert prompt(child) == 1
    child.sendintr()
    child.expect_exact("--KeyboardInterrupt--")
    assert prompt(child) == 1
    child.sendline("c")
    assert "1 passed" in end(child)


@pytest.mark.parametrize("args", [[], ["--pdb"]])
def test_quit_ends_the_run(debug: Debug, args: list[str]) -> None:
    """As it does without ranks."""
    child = debug(STEPS.format(stop="assert 0" if args else "breakpoint()"), *args)
    prompt(child)
    child.sendline("q")
    assert "Quitting debugger" in end(child)
    assert child.wait() == 2


def test_a_rank_that_is_killed_at_its_prompt_returns_the_terminal(debug: Debug) -> None:
    """With its settings: readline had switched off its echo."""
    child = debug(STEPS.format(stop="world.breakpoint(rank=1)"))
    assert prompt(child) == 1
    child.sendline("import os; print('pid is', os.getpid())")
    child.expect(r"pid is (\d+)")
    assert isinstance(child.match, re.Match)
    psutil.Process(int(child.match[1])).send_signal(signal.SIGKILL)
    assert "rank 1: was killed by SIGKILL" in end(child)


def test_the_output_of_a_rank_is_its_own_again_afterwards(debug: Debug) -> None:
    """With a capture of pytest in between."""
    source = """
import pytest

@pytest.mark.multihost(ranks=2)
def test_it(world, capfd):
    world.breakpoint(rank=1)
    print("hello")
    assert capfd.readouterr().out.endswith("hello\\n")
"""
    child = debug(source)
    assert prompt(child) == 1
    child.sendline("c")
    assert "1 passed" in end(child)


def test_a_rank_that_no_world_has_is_an_error(debug: Debug) -> None:
    """At the start, with the ranks that there are."""
    child = debug(STEPS.format(stop="pass"), "--multihost-pdb-rank=3")
    assert "--multihost-pdb-rank=3: the largest test has ranks 0 to 2" in end(child)


def test_a_killed_pytest_leaves_the_terminal_as_it_was(debug: Debug) -> None:
    """Its server restores the settings: a debugger that reads a line has changed them."""
    child = debug(STEPS.format(stop="world.breakpoint(rank=1)"))
    before = termios.tcgetattr(child.child_fd)
    assert prompt(child) == 1
    wait_until(lambda: termios.tcgetattr(child.child_fd) != before)
    child.kill(signal.SIGKILL)
    wait_until(lambda: termios.tcgetattr(child.child_fd) == before)


def test_without_the_plugin_a_breakpoint_is_an_error(debug: Debug) -> None:
    """Nobody could type into the debugger; the error says what lends no terminal."""
    child = debug(STEPS.format(stop="breakpoint()"), "-p", "no:multihost_debugger")
    output = end(child)
    assert "NoTerminalError: the debugger in a rank needs a terminal" in output
    assert "the plugin that lends it is switched off" in output
