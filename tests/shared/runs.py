"""Processes that a test starts, such as runs of pytest that it ends in the middle."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import psutil

HANG = """
import time
from pytest_multihost import current_world

def read_shard():
    time.sleep(600)

world = current_world()
if world.rank == 2:
    read_shard()
world.barrier("step")
"""
"""A script of `multihost run`: rank 2 sleeps, and the others wait for it in a barrier."""


def start_pytest(path: Path, source: str, *args: str, **variables: str) -> subprocess.Popen[str]:
    """Start pytest on one file of tests, in a directory of its own, with more variables."""
    (path / "test_worlds.py").write_text(source)
    (path / "pytest.ini").write_text("[pytest]\n")
    return subprocess.Popen(
        [sys.executable, "-m", "pytest", "-p", "multihost_hangs", *args],
        cwd=path,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def start_together(ranks: Sequence[subprocess.Popen[bytes]]) -> None:
    """Let no rank go on before all ranks are up.

    Each rank prints "up", reads a line, prints "on", and may read another line.
    """
    for word in (b"up\n", b"on\n"):
        for each in ranks:
            assert each.stdout is not None
            assert each.stdout.readline() == word
        for each in ranks:
            assert each.stdin is not None
            each.stdin.write(b"\n")
            each.stdin.flush()


def await_that(condition: Callable[[], object], timeout_s: float = 60) -> None:
    """Wait until `condition` holds; generous, because the machine is shared."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.01)


def await_program(pid: int) -> None:
    """Wait until a process that has called exec has an environment to read.

    `Popen` returns when exec closes its pipe; the kernel fills in the addresses of the environment
    after that. Until then `/proc/PID/environ` is empty: 68 of 2,000 times on an idle machine.
    """
    await_that(Path(f"/proc/{pid}/environ").read_bytes)


def living(path: Path) -> list[psutil.Process]:
    """Return the processes that work in `path`."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.cwd() == str(path) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


def wait_until_idle(pids: Iterable[int], timeout_s: float = 60) -> None:
    """Wait until no process uses the processor: then each is in what it stays in."""
    processes = [psutil.Process(each) for each in pids]
    deadline, before = time.monotonic() + timeout_s, -1.0
    while (used := sum(sum(each.cpu_times()[:2]) for each in processes)) != before:
        assert time.monotonic() < deadline, "they go on"
        before = used
        time.sleep(1.0)


def server_of(run: subprocess.Popen[str]) -> psutil.Process | None:
    """Return the child of pytest that leads a session: the server, once it has ranks."""
    for child in psutil.Process(run.pid).children():
        try:
            if os.getsid(child.pid) == child.pid and child.children():
                return child
        except (ProcessLookupError, psutil.Error):
            continue
    return None
