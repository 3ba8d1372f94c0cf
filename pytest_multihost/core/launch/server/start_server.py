"""Start a server: by forking this process, or by running a new interpreter.

The ranks of a spawn server import the test's module themselves, because some modules cannot be
imported before a fork, say because of a module-level `jnp.ones(3)`. The server itself imports the
libraries that the tests use, which takes most of the time. If it cannot be forked any more after
that, it starts anew without the libraries. Then each forked rank becomes a fresh interpreter, which
takes seconds per test.
"""

from __future__ import annotations

import contextlib
import os
import socket
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NoReturn

from pytest_multihost.core.launch.interface import ANSWER_S, RunRank
from pytest_multihost.core.launch.interpreter import become_interpreter, spawn_interpreter
from pytest_multihost.core.launch.job_spec import (
    SPAWN_SERVER_CODE,
    RankJob,
    ServerJob,
    open_control,
    take_job,
)
from pytest_multihost.core.launch.libc import die_with_parent
from pytest_multihost.core.launch.packets import send_packet
from pytest_multihost.core.launch.refusals import remedy_against
from pytest_multihost.core.launch.server.fork_safety import (
    clear_stacks,
    fork_problems,
    other_threads,
)
from pytest_multihost.core.launch.server.serve import serve
from pytest_multihost.core.launch.server.world import ServerConnection
from pytest_multihost.core.launch.wire import Channel
from pytest_multihost.core.model.errors import SettingError, UnsoundForkError
from pytest_multihost.core.model.fault import hash_seed_of
from pytest_multihost.core.model.messages import Failed, Unsound
from pytest_multihost.core.model.spec import RankSpec

Prepare = Callable[[], Callable[[], None]]
"""Prepares a server before its first fork; returns a function for the server's end."""


def fork_server(
    run_rank: RunRank,
    prepare: Prepare,
    *,
    find_problems: Callable[[], list[str]] = fork_problems,
) -> ServerConnection:
    """Fork this process into a server.

    This requires that no problems are found: the server begins with one thread and no lock held
    that it may want.

    Args:
        prepare: Runs once in the server before its first fork.
        find_problems: Returns why this process must not be forked.

    Raises:
        UnsoundForkError: This process has threads or runtimes that a fork would break.
    """
    if problems := find_problems():
        raise UnsoundForkError(
            "pytest's own process cannot be forked into ranks: a rank would hang, not fail",
            seen="; ".join(problems),
        )
    controller = os.getpid()
    with _control_pair() as (ours, theirs):
        threads = other_threads()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # 3.12+, of a permitted thread
            pid = os.fork()
        if pid == 0:

            def prepare_fork() -> Callable[[], None]:
                clear_stacks(threads)
                return prepare()

            ours.close()
            die_with_parent(controller)  # until it serves
            prepare_and_serve(theirs, run_rank, prepare_fork, controller=controller)
        return ServerConnection(ours, pid)


def prepare_and_serve(
    control: socket.socket, run_rank: RunRank, prepare: Prepare, *, controller: int
) -> NoReturn:
    """Prepare, then serve; never returns. Errors are reported to the controller."""
    try:
        finish = prepare()
        problems = fork_problems()
        if problems:
            send_packet(control, Unsound("; ".join(problems)))
            os._exit(0)
    except SettingError as error:
        send_packet(control, Failed(f"{error.happened}\n{error.seen}", error.remedy))
        os._exit(0)
    except BaseException as error:  # noqa: BLE001 - must not climb into pytest's stack
        happened = f"the server could not prepare itself: {type(error).__name__}: {error}"
        send_packet(control, Failed(happened, remedy_against(error)))
        os._exit(0)
    serve(control, run_rank, controller=controller, finish=finish)


@dataclass(frozen=True, slots=True)
class ServerProgram:
    """A new interpreter that is to serve.

    Attributes:
        code: The code to run, as for ``python -c``.
        job: Its job, without the descriptor of its control connection.
        keeps_input: Whether it has this process's standard input, for rank 0.
    """

    code: str
    job: ServerJob
    environment: Mapping[str, str]
    log: Path
    keeps_input: bool = False


def exec_server(program: ServerProgram) -> ServerConnection:
    """Run a new interpreter as server."""
    with _control_pair() as (ours, theirs):
        theirs.set_inheritable(True)
        job = replace(program.job, control=theirs.fileno(), controller=os.getpid())
        pid = spawn_interpreter(
            program.code,
            job,
            environment=program.environment,
            log=program.log,
            keeps_input=program.keeps_input,
        )
        return ServerConnection(ours, pid, program.log)


@contextlib.contextmanager
def _control_pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Yield the two ends of a control connection, controller's and server's; close the server's."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.settimeout(ANSWER_S)
    with theirs, contextlib.ExitStack() as on_error:
        on_error.enter_context(ours)
        yield ours, theirs
        on_error.pop_all()


def serve_with_libraries(control: socket.socket, run_rank: RunRank, job: ServerJob) -> NoReturn:
    """Serve if this process may still be forked after importing libraries.

    Otherwise start anew without the libraries.
    """
    if not fork_problems():
        serve(control, run_rank, controller=job.controller)
    control.set_inheritable(True)
    without = replace(job, control=control.fileno(), libraries=())
    become_interpreter(SPAWN_SERVER_CODE, without, os.environ)


def main() -> NoReturn:
    """Serve until the controller ends."""
    job: ServerJob = take_job(ServerJob)
    run: RunRank = partial(exec_rank, job=job)
    serve(open_control(job), run, controller=job.controller, scratch=job.scratch)


def exec_rank(spec: RankSpec, channel: Channel, *, job: ServerJob) -> NoReturn:
    """Become a fresh interpreter that is the rank of `spec`."""
    seed = hash_seed_of(spec.world.faults, spec.rank, spec.world.seed)
    own = {} if seed is None else {"PYTHONHASHSEED": str(seed)}
    channel.stream.set_inheritable(True)
    rank = RankJob(run=job.run, spec=spec, channel=channel.stream.fileno())
    become_interpreter(job.rank_code, rank, {**os.environ, **own})
