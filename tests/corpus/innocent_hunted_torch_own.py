"""Stores and groups of torch that somebody outside of the world takes part in, slowly.

Source: a hunt for false verdicts; the truth was written before the first run.
"""

from __future__ import annotations

import socket
import subprocess
import sys
from datetime import timedelta

import torch
import torch.distributed as dist
from expectation import innocent

SLOW_S = 4.0

_HOST = """
import sys, time
time.sleep(float(sys.argv[2]))
import torch.distributed as dist
store = dist.TCPStore("127.0.0.1", int(sys.argv[1]), is_master=True, wait_for_workers=False)
time.sleep(20)
"""


def meet(group: object = None) -> None:
    """Let all members of a group meet."""
    dist.all_reduce(torch.ones(4), group=group)


def free_port() -> int:
    """Return the number of a port that nobody listens at."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def host_in_background(port: int, *, by: str = "") -> None:
    """Start a process that hosts a store after some seconds, and that is no child of this one."""
    script = f'{by} "$0" -c "$1" "$2" "$3" >/dev/null 2>&1 & exit 0'
    command = ["sh", "-c", script, sys.executable, _HOST, str(port), str(SLOW_S)]
    subprocess.run(command, check=True)


@innocent(ranks=2, backend="gloo")
def test_a_store_of_an_orphan_comes_up_late(world) -> None:
    """Rank 1 connects to a store that a background script hosts some seconds later."""
    if world.rank == 1:
        port = free_port()
        host_in_background(port)
        dist.TCPStore("127.0.0.1", port, is_master=False)
    meet()


@innocent(ranks=2, backend="gloo")
def test_a_store_of_a_daemon_comes_up_late(world) -> None:
    """The same with a daemon, which has a session of its own."""
    if world.rank == 1:
        port = free_port()
        host_in_background(port, by="setsid -f")
        dist.TCPStore("127.0.0.1", port, is_master=False)
    meet()


@innocent(ranks=2, backend="gloo")
def test_a_store_of_a_child_of_another_rank_comes_up_late(world) -> None:
    """A child of the primary hosts the store of rank 1, for which the primary waits."""
    port = world.broadcast(free_port() if world.is_primary else 0)
    if world.is_primary:
        command = [sys.executable, "-c", _HOST, str(port), str(SLOW_S)]
        with subprocess.Popen(command) as child:
            meet()
            child.kill()
    else:
        dist.TCPStore("127.0.0.1", port, is_master=False)
        meet()


@innocent(ranks=3, backend="gloo", status="failed")
def test_a_lone_rank_reaches_no_store(world) -> None:
    """The others have returned; rank 1 has no answer of a service, which fails the test."""
    meet()
    if world.rank == 1:
        dist.TCPStore("127.0.0.1", 9, is_master=False, timeout=timedelta(seconds=1))
