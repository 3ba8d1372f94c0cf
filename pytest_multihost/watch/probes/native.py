"""Read the native frames of all threads of ranks: what they wait for below Python.

Each thread in turn is stopped for well under a millisecond and then continues, with the same
results. Yet this is for a world that is suspected to hang, not for periodic use. Ranks that are
stopped or in uninterruptible sleep are not read: the former need no further explanation, and
ptrace(2) on the latter would block until the sleep ends.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from pytest_multihost.blame.inferred import plain_name
from pytest_multihost.model.stack import NativeThread
from pytest_multihost.watch.kernel import read_stat
from pytest_multihost.watch.probes.pyspy import NATIVE_DUMP, find_py_spy, parse_dump

BUDGET_S = 5.0
"""How long one process may take to be read: far more than it takes on an idle machine."""

_READER = Path(__file__).with_name("native_reader.py")
_WHY_NOT = {
    "T": "it is stopped",
    "t": "it is traced by a debugger",
    "D": "it is in uninterruptible sleep",
    "Z": "it has ended",
    "X": "it has ended",
    "": "it has ended",
}
"""By the state of a process (proc(5), /proc/PID/stat): why it is not read."""

_STATE_READS = 20
_STATE_INTERVAL_S = 0.01
_TOO_LONG = "reading it took too long"
_INSTALL = "install pystack (pip install pytest-multihost-hangs[stacks]) to see native frames"
_ONLY_PYTHON = "native frames are py-spy's, which shows the threads of Python alone"
_ALLOW = "allow ptrace (kernel.yama.ptrace_scope=0, or SYS_PTRACE in a container)"


@dataclass(frozen=True, slots=True)
class _Answer:
    """What a reader says of one process: its threads, or why it could not be read."""

    threads: tuple[NativeThread, ...] = ()
    error: str = ""


@dataclass(frozen=True, slots=True)
class NativeStacks:
    """The native frames of a world's ranks at one instant.

    Attributes:
        threads: All threads of each rank that could be read.
        unobserved: What could not be read, why, and what would help: one sentence each.
    """

    threads: Mapping[int, tuple[NativeThread, ...]] = field(default_factory=dict)
    unobserved: tuple[str, ...] = ()


def native_threads(pids: Mapping[int, int], *, budget_s: float = BUDGET_S) -> NativeStacks:
    """Return all threads of ranks with their native frames.

    Returns within the budget of all processes together; twice that where one reader is refused.

    Args:
        pids: Process id of each rank to look at. Ranks of jax cost 0.15 CPU seconds for the symbols
            of its library, and 0.05 for each rank.
        budget_s: Seconds for each process.
    """
    reasons, readable = dict[int, str](), dict[int, int]()
    for rank, pid in pids.items():
        state = _lasting_state(pid)
        if state in _WHY_NOT:
            reasons[rank] = _WHY_NOT[state]
        else:
            readable[rank] = pid
    answers, notes = _ask(list(readable.values()), budget_s)
    threads = {}
    for rank, pid in readable.items():
        answer = answers.get(pid, _Answer(error=_TOO_LONG))
        if answer.error:
            reasons[rank] = error = " ".join(answer.error.split())[:200]
            if "not permitted" in error.lower() or "permission" in error.lower():
                reasons[rank] = f"{error}; {_ALLOW}"
        else:
            threads[rank] = answer.threads
    unobserved = [f"no native frames of rank {rank}: {why}" for rank, why in reasons.items()]
    return NativeStacks(threads, (*unobserved, *notes))


def _ask(pids: list[int], budget_s: float) -> tuple[dict[int, _Answer], tuple[str, ...]]:
    """Return what the best reader that works here says of each process, and what would be better.

    What one has refused is asked of the next. What takes too long is given up.
    """
    answers: dict[int, _Answer] = {}
    spy, has_pystack = find_py_spy(), importlib.util.find_spec("pystack") is not None
    if has_pystack and pids:
        # -P: modules beside the reader must not stand in for those of the library
        output = _run((sys.executable, "-P", str(_READER)), pids, budget_s)
        for line in output.splitlines():
            with suppress(ValueError, TypeError, KeyError):  # a warning; or it was ended meanwhile
                answer = json.loads(line)
                threads = tuple(_thread(*each) for each in answer.get("threads", ()))
                answers[answer["pid"]] = _Answer(threads, answer.get("error", ""))
        pids = [pid for pid in pids if pid in answers and answers[pid].error]
    if spy is None or not pids:
        return answers, (_INSTALL,) if pids and not has_pystack else ()
    with ThreadPoolExecutor(len(pids)) as pool:
        outputs = pool.map(lambda pid: _run((spy, *NATIVE_DUMP), [pid], budget_s), pids)
        second = dict(zip(pids, map(_parse_py_spy, outputs), strict=True))
    is_partial = any(not answer.error for answer in second.values())
    return answers | second, (_ONLY_PYTHON,) if is_partial else ()


def _thread(thread: int, symbols: Sequence[str]) -> NativeThread:
    return NativeThread(thread, tuple(plain_name(symbol) for symbol in symbols))


def _lasting_state(pid: int) -> str:
    """Return the letter of a state, of an uninterruptible sleep only if it lasts.

    A page that is read from a disk takes milliseconds, and a rank at work passes many.
    """
    state = ""
    for _ in range(_STATE_READS):
        stat = read_stat(f"/proc/{pid}")
        state = stat.state if stat is not None else ""
        if state != "D":
            break
        time.sleep(_STATE_INTERVAL_S)
    return state


def _run(argv: Sequence[str], pids: Sequence[int], budget_s: float) -> str:
    """Return what a reader writes about processes; only its begin if it takes too long."""
    try:
        output = subprocess.run(
            [*argv, *map(str, pids)],
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=budget_s * len(pids),
        ).stdout
    except subprocess.TimeoutExpired as late:
        output = late.stdout or b""
        for pid in pids:  # the reader was ended between stopping a process and waiting for that
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGCONT)
    return output.decode("utf-8", "replace")


def _parse_py_spy(text: str) -> _Answer:
    """Read py-spy's answer: Python's threads alone, with Python's frames among the native ones."""
    try:
        found = parse_dump(text)
    except ValueError:
        return _Answer(error=text or _TOO_LONG)
    return _Answer(tuple(_thread(t.tid, [f.function for f in t.frames]) for t in found))
