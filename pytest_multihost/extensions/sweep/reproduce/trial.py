"""Runs the script of a weakness for a limited time."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_multihost.core.launch.reaper import kill_strays, mark_descendants
from pytest_multihost.extensions.sweep.reproduce.script import LAUNCHED, SHOW_AFTER_S

LIMIT_S = SHOW_AFTER_S + 10.0
"""How long a script may run; by then each waiting rank has printed where it is."""

_END_S = 5.0
"""How long its processes may take to end after SIGTERM."""


@dataclass(frozen=True, slots=True)
class Trial:
    """A run of a script.

    Attributes:
        code: Its exit code; None if it had to be ended.
    """

    output: str
    code: int | None
    seconds: float


def command_of(backend: str, size: int, script: Path) -> list[str]:
    """Return the command that runs a script."""
    if backend not in LAUNCHED:
        return [sys.executable, str(script)]
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(size)]
    return [sys.executable, "-P", *torchrun, str(script)]


def try_script(command: Sequence[str]) -> Trial:
    """Run a script in the working directory, and end all its processes after a while.

    Raises:
        OSError: It cannot be started.
    """
    began_s = time.monotonic()
    with tempfile.TemporaryFile() as output, tempfile.TemporaryDirectory() as scratch:
        run = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1", "TMPDIR": scratch},
        )
        mark_descendants(run.pid, run.pid)  # torchrun's ranks have sessions of their own
        try:
            code: int | None = run.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            seconds = time.monotonic() - began_s
            _end(run)
        output.seek(0)
        text = output.read().decode("utf-8", "replace")
    return Trial(text, code, seconds)


def _end(run: subprocess.Popen[bytes]) -> None:
    """End the processes of a script: first the launcher's, then all."""
    if run.poll() is None:
        run.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            run.wait(_END_S)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(run.pid, signal.SIGKILL)
    run.wait()
    kill_strays()
