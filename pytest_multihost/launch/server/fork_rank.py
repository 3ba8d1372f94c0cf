"""Fork one rank, and hold the ports of its world."""

from __future__ import annotations

import os
import socket
import sys
import traceback
from collections.abc import Callable, Iterable

# By name: a test may replace it in its module, and the rank must end all the same.
from os import _exit as leave

from pytest_multihost.launch.interface import RunRank
from pytest_multihost.launch.libc import die_with_parent
from pytest_multihost.launch.reaper import SERVER_VARIABLE
from pytest_multihost.launch.wire.channel import Channel
from pytest_multihost.model.event import BROKEN
from pytest_multihost.model.spec import RankSpec


def reserve_port(address: str = "127.0.0.1") -> socket.socket:
    """Return a bound, unconnected socket whose port at `address` nobody else is given.

    Finding a free port and closing it again is a race that every harness has lost. This socket
    stays open for the world's lifetime: the kernel hands its port out to nobody, yet a rank that
    binds the same port with SO_REUSEADDR, as libuv (torch) and gRPC (jax) do, succeeds, because
    ours never listens.
    """
    holder = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.bind((address, 0))
    return holder


def fork_rank(
    spec: RankSpec,
    stream: socket.socket,
    *,
    close: Iterable[int],
    run_rank: RunRank,
    enter: Callable[[], None] | None = None,
) -> int:
    """Fork a rank and return its process id.

    Args:
        spec: Its place in the world.
        stream: Its end of the connection to the controller.
        close: Descriptors of the server, and of other ranks, that it must not keep.
        run_rank: What it does. Must not return; if it does or raises, the rank still never runs
            on into the server's code.
        enter: Moves the rank onto its host, where that is not the server's.
    """
    server = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setsid()  # so that one signal to its process group reaches what it forks in turn
        if enter is not None:
            enter()
        die_with_parent(server)  # after what changes credentials: that would undo it
        os.environ[SERVER_VARIABLE] = str(server)
        for descriptor in close:
            os.close(descriptor)
        run_rank(spec, Channel(stream))
    except BaseException:  # noqa: BLE001 - nothing may climb into the server's stack
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        # Not sys.exit: that would unwind into the server's loop, and run the exit handlers and
        # flush the buffers that were inherited from the server a second time.
        leave(BROKEN)
