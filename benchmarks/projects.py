"""Run a program in a project of its own, bounded, and tell what it cost.

The files of benchmarks/worlds are the project. It runs in a copy of them, without plugins that
nobody has named, and with what the plugin sets for its ranks, so that peers have it as well.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from figures import FailedError

WORLDS = Path(__file__).resolve().parent / "worlds"
LIMIT_S = 200.0
_TAIL = 1500
_GONE_S = 5.0
"""How long to wait for what has been killed: a busy machine takes its time."""

_EVEN = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
_MPI = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
}
_FOREIGN = {"CI", "GITHUB_ACTIONS", "PYTHONDONTWRITEBYTECODE", "PYTEST_ADDOPTS", "PYTEST_PLUGINS"}


@dataclass(frozen=True, slots=True)
class Ended:
    """A program that has ended, or was ended.

    Attributes:
        code: Its exit code; None if it was ended because it took too long.
        wall_s: Seconds from its start to its end.
        cpu_s: CPU seconds of it and of every process that was waited for on the way up to it.
        output: What it printed.
        place: Its directory.
    """

    code: int | None
    wall_s: float
    cpu_s: float
    output: str
    place: Path

    def read_json(self, name: str) -> Any:  # noqa: ANN401 - JSON
        """Return what a file of the project holds.

        Raises:
            FailedError: There is no such file: the program has failed.
        """
        try:
            return json.loads((self.place / name).read_text(encoding="utf-8"))
        except OSError:
            raise FailedError(f"left no {name}: {self.output[-_TAIL:]}") from None

    def verdicts(self) -> list[dict[str, Any]]:
        """Return the plugin's verdicts, if it has made any."""
        path = self.place / ".pytest_multihost" / "verdicts.jsonl"
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        return [json.loads(line) for line in lines]

    def required(self, *codes: int) -> Ended:
        """Return itself.

        Raises:
            FailedError: Its exit code is none of `codes`.
        """
        if self.code not in codes:
            said = "took too long" if self.code is None else f"exit code {self.code}"
            raise FailedError(f"{said}: {self.output[-_TAIL:]}")
        return self


@contextlib.contextmanager
def ran(
    command: Sequence[str], variables: Mapping[str, str], *, limit_s: float = LIMIT_S
) -> Iterator[Ended]:
    """Run `command` in a new copy of the project; its files can be read within the block."""
    with tempfile.TemporaryDirectory(prefix="multihost-bench-") as name:
        place = Path(name, "project")
        shutil.copytree(WORLDS, place, ignore=shutil.ignore_patterns("__pycache__"))
        try:
            yield _run(command, place, variables, limit_s)
        finally:
            _sweep(place)


def environment(place: Path, variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that programs run with."""
    inherited = {key: value for key, value in os.environ.items() if key not in _FOREIGN}
    own = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PLACE": str(place)}
    return {**inherited, **_EVEN, **_MPI, **own, **variables}


def _run(
    command: Sequence[str], place: Path, variables: Mapping[str, str], limit_s: float
) -> Ended:
    output = place / "output.txt"
    with output.open("wb") as stream:
        began = time.monotonic()
        process = subprocess.Popen(
            command,
            cwd=place,
            env=environment(place, variables),
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        is_over = _wait(process.pid, limit_s)
        if not is_over:
            os.killpg(process.pid, signal.SIGKILL)
        _, status, usage = os.wait4(process.pid, 0)
        wall_s = time.monotonic() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    code = process.returncode if is_over else None
    text = output.read_text(encoding="utf-8", errors="replace")
    return Ended(code, wall_s, usage.ru_utime + usage.ru_stime, text, place)


def _wait(pid: int, limit_s: float) -> bool:
    """Return whether a process ends in time, without reaping it."""
    descriptor = os.pidfd_open(pid)
    try:
        return bool(select.select([descriptor], [], [], limit_s)[0])
    finally:
        os.close(descriptor)


def _sweep(place: Path) -> None:
    """End what a program has left running in its project: some peers leave their ranks behind."""
    ended = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.cwd().startswith(str(place)):
                process.kill()
                ended.append(process)
    psutil.wait_procs(ended, timeout=_GONE_S)
