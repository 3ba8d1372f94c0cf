"""Runs of pytest whose ranks an engine's nodes start, and the worlds that they run."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from runs import await_that

LIMIT_S = 180.0

WORLDS = """
import os, signal, time
import pytest

def read_shard():
    time.sleep(600)

@pytest.mark.multihost
def test_meets(world):
    print("rank", world.rank, "was here")
    assert world.gather(world.rank) == [0, 1, 2, 3]

@pytest.mark.multihost
def test_waits(world):
    if world.rank == 2:
        read_shard()
    world.barrier("step")

@pytest.mark.multihost
def test_dies(world):
    if world.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    world.barrier("step")

@pytest.mark.multihost
def test_fails(world):
    assert world.rank != 3
"""
"""Four worlds without a runtime."""

SLEEPS = """
import time, pytest

@pytest.mark.multihost(timeout=900)
def test_sleeps(world):
    open(f"up-{world.rank}", "w").close()
    time.sleep(600)
"""
"""A world that leaves time to disturb what runs it."""

SLEEPS_THEN_MEETS = f"""
{SLEEPS}
@pytest.mark.multihost
def test_comes_later(world):
    world.barrier()
"""
"""The same, and a world that comes after it."""

GLOO_WORLDS = """
import torch
import torch.distributed as dist

@pytest.mark.multihost(backend="gloo")
def test_gloo(world):
    ones = torch.ones(1)
    dist.all_reduce(ones)
    assert ones.item() == 4

@pytest.mark.multihost(backend="gloo")
def test_gloo_waits(world):
    if world.rank == 3:
        read_shard()
    dist.all_reduce(torch.ones(1))
"""

JAX_WORLDS = """
@pytest.mark.multihost(backend="jax")
def test_jax(world):
    from jax.experimental import multihost_utils
    multihost_utils.sync_global_devices("step")

@pytest.mark.multihost(backend="jax")
def test_jax_waits(world):
    from jax.experimental import multihost_utils
    if world.rank == 3:
        read_shard()
    multihost_utils.sync_global_devices("step")
"""

_RESULT = re.compile(r"^(?:HUNG|FAILED|ERROR) test_.*$", re.MULTILINE)


def command(*args: str) -> list[str]:
    """Return a command that runs pytest with four ranks for each test."""
    own = ["-p", "multihost_hangs", "-p", "no:randomly", "--color=no", "--ranks=4"]
    return [sys.executable, "-m", "pytest", *own, *args]


def environment() -> dict[str, str]:
    """Return the environment of such a run."""
    skipped = ("PYTEST", "CI", "SLURM", "RAY")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(skipped)}
    return {**kept, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "COLUMNS": "200"}


def project(path: Path, source: str) -> Path:
    """Write a project with one file of tests; return its directory."""
    path.mkdir(exist_ok=True)
    (path / "pytest.ini").write_text("[pytest]\n")
    (path / "test_worlds.py").write_text(source)
    return path


def drive(
    path: Path, *args: str, before: Sequence[str] = (), **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run pytest in a project, and wait for its end.

    Args:
        before: What starts pytest.
    """
    return subprocess.run(
        [*before, *command(*args)],
        cwd=path,
        env={**environment(), **variables},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=LIMIT_S,
    )


def started(
    path: Path, *args: str, before: Sequence[str] = (), **variables: str
) -> subprocess.Popen[str]:
    """Start pytest in a project, and wait until four ranks have made their files `up-*`.

    Args:
        before: What starts pytest.
    """
    process = subprocess.Popen(
        [*before, *command(*args)],
        cwd=path,
        env={**environment(), **variables},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    await_that(lambda: process.poll() is not None or len(list(path.glob("up-*"))) == 4)
    return process


def result_lines(output: str) -> list[str]:
    """Return the lines of pytest's summary that say what each failed test has shown."""
    return _RESULT.findall(output)


def script(file: Path, *lines: str) -> Path:
    """Write a shell script that can be run."""
    file.write_text("\n".join(["#!/bin/sh", *lines, ""]))
    file.chmod(file.stat().st_mode | stat.S_IXUSR)
    return file


def entering(file: Path, entries: Sequence[Sequence[str]]) -> Path:
    """Write a script that runs a command on the machine whose index comes first.

    Args:
        entries: What enters each machine.
    """
    cases = [f'{index}) exec {" ".join(each)} "$@";;' for index, each in enumerate(entries)]
    return script(file, "index=$1; shift", 'case "$index" in', *cases, "esac")


LAPTOP = """
import asyncio, ctypes.util, importlib.machinery, multiprocessing, os, select, signal, socket
import subprocess, sys, sysconfig, time

import psutil, pytest

sysconfig.get_config_vars()  # of this platform's own files

class Installed(importlib.machinery.PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name.partition(".")[0] not in ("torch", "jax", "jaxlib", "numpy", "ray"):
            return super().find_spec(name, path, target)

sys.meta_path[:] = [Installed if "PathFinder" in repr(each) else each for each in sys.meta_path]
assert not [each for each in sys.modules if each.startswith(("torch", "jax", "pytest_multihost"))]
OF_LINUX = {
    os: "memfd_create pidfd_open sched_getaffinity eventfd splice getxattr setxattr O_PATH",
    signal: "SIGRTMIN SIGRTMAX sigtimedwait pidfd_send_signal",
    select: "epoll",
    socket: "AF_NETLINK SO_PEERCRED SOCK_CLOEXEC",
    time: "CLOCK_BOOTTIME",
}
for module, names in OF_LINUX.items():
    for name in names.split():
        if hasattr(module, name):
            delattr(module, name)
sys.platform = "darwin"
sys.exit(pytest.main(sys.argv[1:]))
"""
"""A program that runs pytest as on another system than Linux, without torch, jax or numpy."""
