"""Start a server: by forking this process, or by running a new interpreter."""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from pytest_multihost.launch.interface import RunRank
from pytest_multihost.launch.server.connection import ANSWER_S, ServerConnection
from pytest_multihost.launch.server.fork_soundness import fork_problems
from pytest_multihost.launch.server.serve import serve
from pytest_multihost.launch.wire.packets import send_packet
from pytest_multihost.model.errors import UnsoundForkError
from pytest_multihost.model.messages import Failed, Unsound

ORDER = "PYTEST_MULTIHOST_ORDER"
"""Environment variable that names the descriptor from which a new interpreter reads its order."""


def fork_server(run_rank: RunRank, prepare: Callable[[], None]) -> ServerConnection:
    """Fork this process into a server.

    Args:
        run_rank: What a rank does.
        prepare: Runs once in the server before its first fork.

    Raises:
        UnsoundForkError: This process has threads or runtimes that a fork would break.
    """
    if problems := fork_problems():
        raise UnsoundForkError(
            "pytest's own process cannot be forked into ranks: a rank would hang, not fail",
            seen="; ".join(problems),
        )
    ours, theirs = _control_pair()
    controller = os.getpid()
    pid = os.fork()
    if pid == 0:
        ours.close()
        prepare_and_serve(theirs, run_rank, prepare, controller=controller)
    theirs.close()
    return ServerConnection(ours, pid)


def prepare_and_serve(
    control: socket.socket, run_rank: RunRank, prepare: Callable[[], None], *, controller: int
) -> NoReturn:
    """Prepare, then serve; never returns. What goes wrong is told to the controller."""
    try:
        prepare()
        problems = fork_problems()
        if problems:
            send_packet(control, Unsound("; ".join(problems)))
            os._exit(0)
    except BaseException as error:  # noqa: BLE001 - must not climb into pytest's stack
        happened = f"the server could not prepare itself: {type(error).__name__}: {error}"
        send_packet(control, Failed(happened))
        os._exit(0)
    serve(control, run_rank, controller=controller)


@dataclass(frozen=True, slots=True)
class Program:
    """A new interpreter that is to serve.

    Attributes:
        code: What it runs, as for ``python -c``.
        order: What it is for; it finds it in the environment, with the descriptor of its control
            connection added as `control`.
        environment: Its whole environment.
        log: Where its output goes.
    """

    code: str
    order: Mapping[str, Any]
    environment: Mapping[str, str]
    log: Path


def exec_server(program: Program) -> ServerConnection:
    """Run a new interpreter as server.

    posix_spawn, because the controller may have threads: nothing of it runs in the child.
    """
    ours, theirs = _control_pair()
    theirs.set_inheritable(True)
    order = {**program.order, "control": theirs.fileno(), "controller": os.getpid()}
    letter = write_job_spec(order)
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    pid = os.posix_spawn(
        sys.executable,
        [sys.executable, "-c", program.code],
        {**program.environment, ORDER: str(letter)},
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(program.log), flags, 0o644),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
    )
    theirs.close()
    os.close(letter)
    return ServerConnection(ours, pid, program.log)


def write_job_spec(order: Mapping[str, Any]) -> int:
    """Return an inheritable descriptor of a memory file that holds `order`.

    A variable of the environment holds at most 128 KiB; many files have longer names together.
    """
    descriptor = os.memfd_create("multihost-order", 0)
    with open(descriptor, "w", encoding="utf-8", closefd=False) as file:
        json.dump(order, file)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def take_job_spec() -> dict[str, Any]:
    """Return what this interpreter was started for."""
    with open(int(os.environ.pop(ORDER)), encoding="utf-8") as file:  # noqa: PTH123
        order: dict[str, Any] = json.load(file)
    return order


def control_of(order: Mapping[str, Any]) -> socket.socket:
    """Return a server's end of the control connection that its order names."""
    control = socket.socket(fileno=order["control"])
    control.set_inheritable(False)
    return control


def _control_pair() -> tuple[socket.socket, socket.socket]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.settimeout(ANSWER_S)
    return ours, theirs
