"""Read the native frames of all threads of ranks, which show their waits below Python.

Each thread in turn is stopped for well under a millisecond and then continues, with the same
results. Even so, this is only for a world that is suspected to hang, not for periodic use. Ranks
that are stopped or in uninterruptible sleep are not read: stopped ranks need no further
explanation, and ptrace(2) on a sleeping one would block.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from pytest_multihost.core.blame.inferred import plain_name
from pytest_multihost.core.model.rank_names import PLAIN, Names
from pytest_multihost.core.model.stack import NativeThread
from pytest_multihost.core.watch.kernel import read_stat

BUDGET_S = 5.0
"""Timeout for reading one process, far longer than it takes on an idle machine."""

_READER = Path(__file__).with_name("native_reader.py")
_WHY_NOT = {
    "T": "stopped",
    "t": "traced by a debugger",
    "D": "in uninterruptible sleep",
    "Z": "already ended",
    "X": "already ended",
    "": "already ended",
}
"""Why a process is not read, by its state (proc(5), /proc/PID/stat)."""

_STATE_READS = 20
_STATE_INTERVAL_S = 0.01
_TOO_LONG = "reading it took too long"
_INSTALL = "pystack is not installed (pip install pytest-multihost-hangs[stacks])"
_ALLOW = "allow ptrace (kernel.yama.ptrace_scope=0, or SYS_PTRACE in a container)"


@dataclass(frozen=True, slots=True)
class NativeStacks:
    """The native frames of a world's ranks at one instant.

    Attributes:
        threads: All threads of each rank that could be read.
        unobserved: One sentence for the ranks that could not be read for the same reason, with a
            remedy.
    """

    threads: Mapping[int, tuple[NativeThread, ...]] = field(default_factory=dict)
    unobserved: tuple[str, ...] = ()


@dataclass(slots=True)
class NativeReader:
    """A process that reads native frames once. It takes 0.1 s to start, and must be closed."""

    _process: subprocess.Popen[bytes] | None = None

    def start(self, likely: Iterable[int] = ()) -> None:
        """Start it if it is not running, because it may soon be needed.

        Args:
            likely: Ids of processes that it may have to read.
        """
        if self._process is None and _has_pystack():
            self._process = subprocess.Popen(
                # -P: modules beside the reader must not hide those of the standard library
                [sys.executable, "-P", str(_READER), *map(str, likely)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )

    def read(self, pids: Sequence[int], budget_s: float) -> str:
        """Return its output about processes; only the beginning if it takes too long."""
        self.start()
        process, self._process = self._process, None
        if process is None:
            return ""
        with process:
            try:
                asked = " ".join(map(str, pids)).encode()
                output, _ = process.communicate(asked, timeout=budget_s * len(pids))
            except subprocess.TimeoutExpired:
                process.kill()
                output, _ = process.communicate()
                for pid in pids:  # it may have been killed after it stopped one of them
                    with suppress(ProcessLookupError, PermissionError):
                        os.kill(pid, signal.SIGCONT)
        return output.decode("utf-8", "replace")

    def close(self) -> None:
        """End it if it was started and has not read anything."""
        if self._process is not None:
            with self._process:
                self._process.kill()
            self._process = None


def native_threads(
    pids: Mapping[int, int],
    *,
    names: Names = PLAIN,
    budget_s: float = BUDGET_S,
    reader: NativeReader | None = None,
) -> NativeStacks:
    """Return all threads of ranks with their native frames, within a common time budget.

    Args:
        pids: Process id of each rank to read. Ranks of jax cost 0.15 CPU seconds for the symbols of
            its library, and 0.05 for each rank.
        budget_s: Seconds for each process; the sum is the budget of all.
    """
    states = {rank: _lasting_state(pid) for rank, pid in pids.items()}
    reasons = {rank: _WHY_NOT[state] for rank, state in states.items() if state in _WHY_NOT}
    readable = {rank: pid for rank, pid in pids.items() if rank not in reasons}
    has_pystack = _has_pystack()
    errors = dict.fromkeys(readable.values(), _TOO_LONG if has_pystack else _INSTALL)
    threads: dict[int, tuple[NativeThread, ...]] = {}
    reader = reader or NativeReader()
    output = reader.read(list(errors), budget_s) if has_pystack and readable else ""
    for line in output.splitlines():
        with suppress(ValueError, TypeError, KeyError):  # the line is a warning or cut off
            answer = json.loads(line)
            threads[answer["pid"]] = tuple(
                NativeThread(tid, tuple(map(plain_name, symbols)))
                for tid, symbols in answer.get("threads", ())
            )
            errors[answer["pid"]] = " ".join(answer.get("error", "").split())[:200]
    for rank, pid in readable.items():
        is_refused = "not permitted" in errors[pid].lower() or "permission" in errors[pid].lower()
        if errors[pid]:
            reasons[rank] = f"{errors[pid]}; {_ALLOW}" if is_refused else errors[pid]
    unread: dict[str, list[int]] = {}
    for rank, why in reasons.items():
        unread.setdefault(why, []).append(rank)
    unobserved = [f"no native frames of {names.of(ranks)}: {why}" for why, ranks in unread.items()]
    found = {rank: threads[pid] for rank, pid in readable.items() if rank not in reasons}
    return NativeStacks(found, tuple(unobserved))


def _lasting_state(pid: int) -> str:
    """Return the letter of a process's state; D (uninterruptible sleep) only if it lasts.

    Reading a page from disk takes milliseconds, and a working rank reads many.
    """
    state = ""
    for _ in range(_STATE_READS):
        stat = read_stat(f"/proc/{pid}")
        state = stat.state if stat is not None else ""
        if state != "D":
            break
        time.sleep(_STATE_INTERVAL_S)
    return state


def _has_pystack() -> bool:
    return importlib.util.find_spec("pystack") is not None
