"""Processes that a watched run has left behind: their parents have ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from pytest_multihost.extensions.live.watch.option import FOLDER
from pytest_multihost.extensions.live.watch.strays import strays_of

pytestmark = pytest.mark.processes

BELOW = """
import os, subprocess, sys, time
read, write = os.pipe()
if not os.fork():
    kind = sys.argv[1]
    if kind != "session":
        os.setsid()
    if not os.fork():
        if kind == "program":
            os.execvpe("sleep", ["sleep", "600"], {**os.environ, FOLDER: "/watched"})
        if kind == "another":
            os.execvpe("sleep", ["sleep", "600"], {"PATH": os.environ["PATH"]})
        time.sleep(600)
    os._exit(0)
os.wait()
print("up", flush=True)
time.sleep(600)
""".replace("FOLDER", repr(FOLDER))

Start = Callable[[str], int]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start a process with a child that leaves a process behind, and return it."""
    started: list[subprocess.Popen[str]] = []

    def begin(kind: str) -> int:
        command = [sys.executable, "-c", BELOW, kind, f"of {os.getpid()}"]
        run = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
        started.append(run)
        assert run.stdout is not None
        assert run.stdout.readline() == "up\n"
        return run.pid

    yield begin
    for each in started:
        for pid in (*strays_of(each.pid, "/watched"), each.pid):
            os.kill(pid, signal.SIGKILL)
        each.communicate()


@pytest.mark.parametrize("kind", ["session", "copy", "program"])
def test_a_process_whose_parent_has_ended_is_found(start: Start, kind: str) -> None:
    """By its session, by its command line, or by the variable of the watcher."""
    assert len(strays_of(start(kind), "/watched")) == 1


def test_a_process_of_somebody_else_is_not_found(start: Start) -> None:
    """The same kinds of processes run on the machine for other reasons."""
    other = start("program")
    assert len(strays_of(other, "/watched")) == 1
    mine = start("session")
    assert not set(strays_of(mine, "/elsewhere")) & {*strays_of(other, "/watched")}
