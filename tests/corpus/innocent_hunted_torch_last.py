"""Programs of torch that somebody else lets go on: threads, forks, orphans and signals.

Source: a hunt for false verdicts; the truth was written before the first run.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import pytest
import torch
import torch.distributed as dist
from expectation import innocent
from mishaps import FOREVER_S
from torch.distributed.distributed_c10d import _get_default_store

SLOW_S = 4.0


def meet(group: object = None) -> None:
    """Let all members of a group meet."""
    dist.all_reduce(torch.ones(4), group=group)


class Woken(Exception):  # noqa: N818 - it is no error
    """A signal has arrived."""


def wake(*_: object) -> None:
    """Raise an exception in the main thread."""
    raise Woken


@innocent(ranks=3, backend="gloo")
def test_a_long_sleep_is_ended_by_a_thread(world) -> None:
    """Rank 1 sleeps for ten minutes, and a timer of its own wakes it."""
    if world.rank == 1:
        signal.signal(signal.SIGUSR1, wake)
        me = threading.get_ident()
        threading.Timer(SLOW_S, signal.pthread_kill, (me, signal.SIGUSR1)).start()
        with pytest.raises(Woken):
            time.sleep(FOREVER_S)
    meet()


@innocent(ranks=2, backend="gloo")
def test_a_long_wait_is_interrupted_by_a_watchdog(world) -> None:
    """Rank 1 waits for an event that nobody sets, and its watchdog interrupts the main thread."""
    if world.rank == 1:
        signal.signal(signal.SIGINT, wake)
        me = threading.get_ident()
        threading.Timer(SLOW_S, signal.pthread_kill, (me, signal.SIGINT)).start()
        with pytest.raises(Woken):
            threading.Event().wait(FOREVER_S)
    meet()


@innocent(ranks=2, backend="gloo")
def test_a_long_sleep_is_ended_by_an_orphan(world) -> None:
    """A script that rank 1 has left running in the background sends it a signal."""
    if world.rank == 1:
        signal.signal(signal.SIGUSR1, wake)
        script = f"(sleep {SLOW_S}; kill -USR1 {os.getpid()}) & exit 0"
        subprocess.run(["sh", "-c", script], check=True)
        with pytest.raises(Woken):
            time.sleep(FOREVER_S)
    meet()


@innocent(ranks=2, backend="gloo")
def test_messages_of_a_thread_that_outlives_the_test(world) -> None:
    """The main thread of the primary has returned, and its thread still sends."""

    def send() -> None:
        for _ in range(3):
            time.sleep(SLOW_S / 3)
            dist.send(torch.ones(4), dst=1)

    if world.is_primary:
        threading.Thread(target=send).start()
        return
    for _ in range(3):
        dist.recv(torch.zeros(4), src=0)


@innocent(ranks=2, backend="gloo")
def test_a_key_of_a_fork_that_outlives_the_test(world) -> None:
    """The primary returns and leaves a process behind that sets the key of the other."""
    store = _get_default_store()
    if not world.is_primary:
        store.wait(["ready"])
        return
    if os.fork() == 0:
        time.sleep(SLOW_S)
        store.set("ready", "yes")
        os._exit(0)


_CLIENT = """
import sys, torch.distributed as dist
dist.TCPStore("127.0.0.1", int(sys.argv[1]), is_master=False).set("go", "yes")
"""


@innocent(ranks=2, backend="gloo")
def test_a_key_of_an_orphan(world) -> None:
    """The primary waits for a key of its own store that a background script sets."""
    if world.is_primary:
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        script = f'(sleep {SLOW_S}; exec "$0" -c "$1" "$2") >/dev/null 2>&1 & exit 0'
        command = ["sh", "-c", script, sys.executable, _CLIENT, str(store.port)]
        subprocess.run(command, check=True)
        store.wait(["go"])
    meet()


@innocent(ranks=4, backend="gloo", status="failed")
def test_an_error_for_which_nobody_waits_beside_a_sleeper(world) -> None:
    """Rank 1 fails after a second; rank 2 waits for rank 3, which might only be slow.

    An error is all that is told of a world, unless others wait for the rank that has failed.
    """
    pair = dist.new_group([2, 3])
    if world.rank == 1:
        time.sleep(1)
        raise ValueError("bad shard")
    if world.rank == 3:
        time.sleep(FOREVER_S)
    if world.rank == 2:
        meet(pair)
