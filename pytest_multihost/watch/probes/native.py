"""Read the native frames of all threads of ranks: what they wait for beneath Python.

One thread after the other is stopped for well under a millisecond, and goes on unharmed: what was
running ends with the right result. Where only pystack's own way works, a rank stands still for one
to two seconds. So this is for a world that is suspected, not for every second. Ranks that are
stopped or in uninterruptible sleep are not read: for the first, that they are stopped says enough,
and ptrace(2) on the second would block until the sleep ends.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from pytest_multihost.blame.inferred import plain_name
from pytest_multihost.model.stack import NativeThread
from pytest_multihost.watch.kernel.proc_files import read_stat
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
    states = {rank: _lasting_state(pid) for rank, pid in pids.items()}
    unobserved = [
        f"no native frames of rank {rank}: {_WHY_NOT[state]}"
        for rank, state in states.items()
        if state in _WHY_NOT
    ]
    readable = {rank: pid for rank, pid in pids.items() if states[rank] not in _WHY_NOT}
    if not readable:
        return NativeStacks(unobserved=tuple(unobserved))
    answers, note = _ask(list(readable.values()), budget_s)
    stacks = _stacks(readable, answers)
    return NativeStacks(stacks.threads, (*unobserved, *stacks.unobserved, *note))


def _ask(pids: list[int], budget_s: float) -> tuple[dict[int, _Answer], tuple[str, ...]]:
    """Return what the best reader that works here says of each process, and what would be better.

    What one has refused is asked of the next. What takes too long is given up.
    """
    answers: dict[int, _Answer] = {}
    spy, has_pystack = find_py_spy(), importlib.util.find_spec("pystack") is not None
    if has_pystack:
        # -P: modules beside the reader must not stand in for those of the library
        pystack = _Reader((sys.executable, "-P", str(_READER)), 1, _answers_of_reader)
        answers = _read(pystack, pids, budget_s)
        pids = [pid for pid in pids if pid in answers and answers[pid].error]
    if spy is None or not pids:
        return answers, () if has_pystack else (_INSTALL,)
    reader = _Reader((spy, *NATIVE_DUMP), len(pids), _spied)
    second = _read(reader, pids, budget_s)
    is_partial = any(not answer.error for answer in second.values())
    return answers | second, (_ONLY_PYTHON,) if is_partial else ()


def _stacks(pids: Mapping[int, int], answers: Mapping[int, _Answer]) -> NativeStacks:
    found = {rank: answers.get(pid, _Answer(error=_TOO_LONG)) for rank, pid in pids.items()}
    unobserved = tuple(
        f"no native frames of rank {rank}: {_explained(answer.error)}"
        for rank, answer in found.items()
        if answer.error
    )
    threads = {rank: answer.threads for rank, answer in found.items() if not answer.error}
    return NativeStacks(threads, unobserved)


def _thread(thread: int, symbols: Sequence[str]) -> NativeThread:
    return NativeThread(thread, tuple(plain_name(symbol) for symbol in symbols))


def _explained(error: str) -> str:
    line = " ".join(error.split())[:200]
    is_refused = "not permitted" in line.lower() or "permission" in line.lower()
    return f"{line}; {_ALLOW}" if is_refused else line


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


@dataclass(frozen=True, slots=True)
class _Reader:
    """A program that reads processes.

    Attributes:
        argv: The program and its arguments; process ids follow.
        count: How many of it may run at once. Each reads its share, one after the other.
        parse: Returns what its output says of each process, given the ids.
    """

    argv: tuple[str, ...]
    count: int
    parse: Callable[[str, Sequence[int]], Iterable[tuple[int, _Answer]]]


def _read(reader: _Reader, pids: Sequence[int], budget_s: float) -> dict[int, _Answer]:
    """Return what the reader says of each process; nothing of those that took too long."""
    count = min(len(pids), reader.count)
    deadline = time.monotonic() + budget_s * len(pids)
    answers: dict[int, _Answer] = {}
    with ExitStack() as stack:
        runs = []
        for start in range(count):
            out = stack.enter_context(tempfile.TemporaryFile())
            runs.append(_Run.start(reader, pids[start::count], out))
            stack.callback(runs[-1].end)
        for run in runs:
            answers.update(run.finish(deadline))
    return answers


@dataclass(frozen=True, slots=True)
class _Run:
    """A reader at work on its share of the processes."""

    reader: _Reader
    pids: Sequence[int]
    process: subprocess.Popen[bytes]
    out: IO[bytes]

    @classmethod
    def start(cls, reader: _Reader, pids: Sequence[int], out: IO[bytes]) -> _Run:
        """Start it, with its output going to `out`."""
        process = subprocess.Popen(
            [*reader.argv, *map(str, pids)],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
        return cls(reader, pids, process, out)

    def finish(self, deadline: float) -> Iterator[tuple[int, _Answer]]:
        """Wait for it until `deadline`, and return what it says of each process."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(max(0, deadline - time.monotonic()))
        self.end()
        self.out.seek(0)
        text = self.out.read().decode("utf-8", "replace")
        yield from self.reader.parse(text, self.pids)

    def end(self) -> None:
        """End it if it is still at work, and let go of what it has stopped."""
        if self.process.poll() is not None:
            return
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for pid in self.pids:  # ended between stopping a process and waiting for that
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGCONT)


def _answers_of_reader(text: str, _: Sequence[int]) -> Iterator[tuple[int, _Answer]]:
    """Read what our reader has written: a line of JSON for each process."""
    for line in text.splitlines():
        with suppress(ValueError, TypeError, KeyError):  # a warning; or it was ended while it wrote
            answer = json.loads(line)
            threads = tuple(_thread(*each) for each in answer.get("threads", ()))
            yield answer["pid"], _Answer(threads, answer.get("error", ""))


def _spied(text: str, pids: Sequence[int]) -> Iterator[tuple[int, _Answer]]:
    """Read py-spy's answer: Python's threads alone, with Python's frames among the native ones."""
    (pid,) = pids
    try:
        found = parse_dump(text)
    except ValueError:
        yield pid, _Answer(error=text or _TOO_LONG)
    else:
        yield pid, _Answer(tuple(_thread(t.tid, [f.function for f in t.frames]) for t in found))
