"""Start a new interpreter of the harness with a job, in a new process or in place of this one."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from pytest_multihost.core import files
from pytest_multihost.core.launch.job_spec import JOB_VARIABLE, write_job

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


_LOG_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW


def spawn_interpreter(
    code: str,
    job: DataclassInstance,
    *,
    environment: Mapping[str, str],
    log: Path,
    keeps_input: bool = False,
) -> int:
    """Start another process that runs a new interpreter; return its process id.

    It uses posix_spawn because this process may have threads: none of its code runs in the child.

    Args:
        code: The code to run, as for ``python -c``.
        job: The job that it reads with `take_job`. Descriptors that the job names must be
            inheritable.
        log: The file to which its output is appended.
        keeps_input: Whether it has this process's standard input; else it reads nothing.

    Raises:
        OSError: It could not be started.
    """
    descriptor = write_job(job)
    nothing = (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)
    try:
        return os.posix_spawn(
            sys.executable,
            [sys.executable, "-P", "-c", code],
            {**environment, JOB_VARIABLE: str(descriptor)},
            file_actions=[
                *(() if keeps_input else (nothing,)),
                (os.POSIX_SPAWN_OPEN, 1, str(log), _LOG_FLAGS, files.mode_in(log.parent)),
                (os.POSIX_SPAWN_DUP2, 1, 2),
            ],
        )
    finally:
        os.close(descriptor)


def become_interpreter(
    code: str, job: DataclassInstance, environment: Mapping[str, str]
) -> NoReturn:
    """Replace this process by a new interpreter, with the same process id and open descriptors.

    The arguments are those of `spawn_interpreter`.

    Raises:
        OSError: It could not be started.
    """
    descriptor = write_job(job)
    command = [sys.executable, "-P", "-c", code]
    os.execve(sys.executable, command, {**environment, JOB_VARIABLE: str(descriptor)})
