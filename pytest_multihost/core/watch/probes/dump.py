"""Have ranks write their stacks with faulthandler, or py-spy for them, and read them."""

from __future__ import annotations

import contextlib
import json
import subprocess
import tempfile
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO

from pytest_multihost.core.cpython_private import FAULTHANDLER, parse_faulthandler
from pytest_multihost.core.launch import RunningWorld
from pytest_multihost.core.model.messages import DumpKind
from pytest_multihost.core.model.stack import Dump, Frame, ThreadStack, innermost_user_frame
from pytest_multihost.core.slots.rank_files import py_spy_command

# py-spy: Python's stacks and the holder of the GIL, read from another process's memory.
#
# With ``--nonblocking`` it reads while the process goes on; what it finds may then be torn, which
# shows as an answer that cannot be parsed or as no answer. It costs a few tenths of a second of
# processor time, so it is run seldom, beside other work, and only for what is shown.


SAMPLE_INTERVAL_S = 5.0
"""How far two samples are apart."""

_TIMEOUT_S = 5.0
_AT_ONCE = 4


@dataclass(frozen=True, slots=True)
class SpiedThread:
    """One thread as py-spy sees it.

    Attributes:
        tid: Its native id; 0 where py-spy does not know it.
        name: Its name, empty where py-spy does not know it.
        is_main: Whether it is the main thread.
        holds_gil: Whether it holds the GIL.
        frames: Its frames, innermost first.
        values: For each frame the values of its local variables by name, as text; empty if they
            were not asked for.
    """

    tid: int
    name: str
    is_main: bool
    holds_gil: bool
    frames: tuple[Frame, ...]
    values: tuple[Mapping[str, str], ...] = ()


def parse_dump(text: str | bytes) -> tuple[SpiedThread, ...]:
    """Return the threads in what ``py-spy dump --json`` has printed.

    Raises:
        ValueError: It is an error message, or cut short.
    """
    try:
        return tuple(
            SpiedThread(
                each["os_thread_id"] or 0,
                each.get("thread_name") or "",
                each["os_thread_id"] == each["pid"],
                bool(each.get("owns_gil")),
                tuple(Frame(f["filename"], f["line"], f["name"]) for f in each["frames"]),
                tuple(_values(f.get("locals")) for f in each["frames"]),
            )
            for each in json.loads(text)
        )
    except (LookupError, TypeError, AttributeError) as error:
        raise ValueError("not the JSON that py-spy prints") from error


def _values(found: Iterable[Mapping[str, str]] | None) -> Mapping[str, str]:
    return {each["name"]: each.get("repr") or "" for each in found or ()}


Spied = Mapping[int, tuple[SpiedThread, ...]]
"""The threads of each rank."""


def spied_threads(pids: Mapping[int, int]) -> tuple[Spied, Mapping[int, str]]:
    """Return the threads of processes with their variables, and why some could not be read.

    Variables are read where that is possible: a thread that runs meanwhile may make it fail.

    Args:
        pids: Process id of each rank.
    """
    command = py_spy_command()
    if not command:
        return {}, dict.fromkeys(pids, "py-spy is not installed: pip install py-spy")

    def spied(pid: int) -> tuple[SpiedThread, ...] | str:
        why = ""
        for options in (("--locals",), ()):
            found = _spied([*command[:-1], *options, command[-1], str(pid)])
            if not isinstance(found, str):
                return found
            why = why or found
        return why

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        answers = dict(zip(pids, pool.map(spied, pids.values()), strict=True))
    threads = {rank: each for rank, each in answers.items() if not isinstance(each, str)}
    return threads, {rank: each for rank, each in answers.items() if isinstance(each, str)}


def _spied(command: Sequence[str]) -> tuple[SpiedThread, ...] | str:
    """Return what py-spy prints, or why there is nothing."""
    try:
        done = subprocess.run(command, capture_output=True, check=False, timeout=_TIMEOUT_S)
        return parse_dump(done.stdout)
    except ValueError:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        return said[0] if said else "py-spy told nothing"
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)


def dump_of(rank: int, threads: Iterable[SpiedThread]) -> Dump:
    """Return the stacks of a rank's threads, the main thread last."""
    found = sorted(threads, key=lambda each: each.is_main)
    stacks = (
        ThreadStack(each.name or str(each.tid), each.frames, each.holds_gil) for each in found
    )
    return Dump(rank, "py-spy", tuple(stacks))


def gil_holders(pids: Mapping[int, int]) -> Collection[int]:
    """Return the ranks whose main thread holds the GIL; none without py-spy.

    Args:
        pids: Process id of each rank to ask.
    """
    command = py_spy_command()
    if not command or not pids:
        return ()

    def main_holds_gil(pid: int) -> bool:
        with contextlib.suppress(OSError, ValueError, subprocess.SubprocessError):
            done = subprocess.run(
                [*command, str(pid)], capture_output=True, check=True, timeout=_TIMEOUT_S
            )
            return any(each.holds_gil and each.tid == pid for each in parse_dump(done.stdout))
        return False

    with ThreadPoolExecutor(4) as pool:
        answers = pool.map(main_holds_gil, pids.values())
        return [rank for rank, holds in zip(pids, answers, strict=True) if holds]


@dataclass(slots=True)
class PySpySampler:
    """Samples the user's line in a process's main thread, in the background. Close it in the end.

    Attributes:
        clock: Returns the time in seconds.
    """

    clock: Callable[[], float] = time.monotonic
    _command: tuple[str, ...] = field(default_factory=py_spy_command)
    _asked_s: float = float("-inf")
    _running: tuple[int, subprocess.Popen[bytes], IO[bytes]] | None = None
    _sample: tuple[int, Frame | None] | None = None

    def user_frame(self, pid: int) -> Frame | None:
        """Return the last sample of `pid`, if there is one, and begin another if it is old."""
        if self._running is not None and self._running[1].poll() is not None:
            asked, _, answer = self._running
            answer.seek(0)
            self._sample = asked, None
            with contextlib.suppress(ValueError, StopIteration):
                main = next(each for each in parse_dump(answer.read()) if each.tid == asked)
                self._sample = asked, innermost_user_frame(main.frames)
            self.close()
        if self._running is None and self.clock() >= self._asked_s + SAMPLE_INTERVAL_S:
            self._asked_s = self.clock()
            self._ask(pid)
        return self._sample[1] if self._sample is not None and self._sample[0] == pid else None

    def _ask(self, pid: int) -> None:
        if not self._command:
            return
        with contextlib.suppress(OSError):
            # a file: a pipe could fill up, as it is not read while py-spy writes
            answer = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close
            process = subprocess.Popen(
                [*self._command, str(pid)],
                stdin=subprocess.DEVNULL,
                stdout=answer,
                stderr=subprocess.DEVNULL,
            )
            self._running = pid, process, answer

    def close(self) -> None:
        """Stop sampling."""
        if self._running is not None:
            _, process, answer = self._running
            process.kill()
            process.wait()
            answer.close()
            self._running = None


BUDGET_S = 2.0
"""How long to wait for the answers. Four idle ranks take 3 ms; a busy machine takes longer."""

OUTSIDE_S = 5.0
"""The same for py-spy, which takes a few tenths of a second of processor time for each rank."""

TASKS_S = 0.5
"""The same for tasks of asyncio: only a rank that runs an event loop can answer."""

DEAF_S = 1.0
"""The same for one that computes: Python runs a signal's handler between two bytecodes."""

_BUDGETS_S = {"outside": OUTSIDE_S, "tasks": TASKS_S}
_POLL_S = 0.003
_STABLE = 3
"""How many sizes in a row must be equal for an answer to be complete: faulthandler writes line by
line, and marks no end."""

_LOOP = "asyncio/base_events.py"


def dump_stacks(
    world: RunningWorld, ranks: Sequence[int], directory: Path, computing: Collection[int] = ()
) -> tuple[Dump, ...]:
    """Return the stacks of `ranks`, with no threads for those that did not answer in time.

    faulthandler works in a signal handler: it answers while another thread holds the GIL and in any
    blocking call, but not in uninterruptible sleep, nor where the rank has another handler. Then
    py-spy reads the stacks, if it is installed. Asking is for ranks that are to be ended: a
    running rank with several busy threads can crash of it (python/cpython issue 116008).

    All are asked twice, to see which of them move. The first answer counts: being asked
    lets a stopped rank go on, and some native code takes a signal for an end. A rank with more
    than 100 threads is asked for its main one alone, which faulthandler leaves out as the oldest.

    Args:
        world: The ranks' world.
        ranks: Those to ask.
        directory: Where they answer.
        computing: Ranks whose main thread computes while it holds the GIL. One that runs Python
            comes to run a handler of Python's, too; one in native code does not: it is deaf.
    """

    def ask(asked: Sequence[int], kind: DumpKind) -> dict[int, Dump]:
        files = request_dump(world, asked, directory, kind)
        return {rank: _parse(_read(file), rank=rank) for rank, file in files.items()}

    dumps = ask(ranks, "threads")
    dumps |= ask([rank for rank in ranks if not dumps[rank].threads], "outside")
    answered = [rank for rank in ranks if dumps[rank].threads]
    spied = [rank for rank in answered if dumps[rank].source != FAULTHANDLER]
    own = [rank for rank in answered if rank not in spied]
    for rank, second in (ask(own, "threads") | ask(spied, "outside")).items():
        first = dumps[rank]
        one, two = (dump.main.frames if dump.main else () for dump in (first, second))
        common = min(len(one), len(two))  # an answer that took long lacks its outermost frames
        dumps[rank] = replace(first, has_moved=one[:common] != two[:common])
    lacking = [rank for rank in answered if dumps[rank].lacks_main]
    for rank, main in ask(lacking, "main").items():
        if main.threads:
            threads = (*dumps[rank].threads, main.threads[-1])
            dumps[rank] = replace(dumps[rank], threads=threads, lacks_main=False)
    running_loop = [
        rank
        for rank, dump in dumps.items()
        if rank in own and dump.main is not None
        if any(f.file.endswith(_LOOP) for f in dump.main.frames)
    ]
    for rank, file in request_dump(world, running_loop, directory, "tasks").items():
        dumps[rank] = replace(dumps[rank], tasks=tuple(_read(file).splitlines()))
    files = _answer_files([rank for rank in own if rank in computing], directory, "tasks")
    before = {rank: _size(file) for rank, file in files.items()}
    _ask(world, files, "tasks", DEAF_S)
    for rank, file in files.items():
        if _size(file) <= before[rank]:
            dumps[rank] = replace(dumps[rank], is_deaf=True)
    return tuple(dumps[rank] for rank in ranks)


def request_dump(
    world: RunningWorld, ranks: Iterable[int], directory: Path, kind: DumpKind
) -> dict[int, Path]:
    """Have ranks write what is asked for; return the files in which they do, when they are done.

    Args:
        world: The ranks' world.
        ranks: Those to ask.
        directory: Where they answer.
        kind: What they are to write.
    """
    files = _answer_files(ranks, directory, kind)
    _ask(world, files, kind, _BUDGETS_S.get(kind, BUDGET_S))
    return files


def _answer_files(ranks: Iterable[int], directory: Path, kind: DumpKind) -> dict[int, Path]:
    name = "stacks" if kind in {"threads", "outside"} else kind
    return {rank: directory / f"rank-{rank}.{name}" for rank in ranks}


def _ask(world: RunningWorld, files: Mapping[int, Path], kind: DumpKind, budget_s: float) -> None:
    """Ask ranks, and wait until every file has grown and none grows any more."""
    if not files:
        return
    before = [_size(file) for file in files.values()]
    world.request_dumps(list(files), kind)
    deadline = time.monotonic() + budget_s
    sizes: deque[list[int]] = deque(maxlen=_STABLE)
    while time.monotonic() < deadline:
        time.sleep(_POLL_S)
        sizes.append([_size(file) for file in files.values()])
        has_grown = all(size > was for size, was in zip(sizes[-1], before, strict=True))
        if has_grown and len(sizes) == _STABLE and all(each == sizes[0] for each in sizes):
            return


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return 0


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="backslashreplace")
    except OSError:
        return ""


# What faulthandler and py-spy write


def _parse(text: str, *, rank: int) -> Dump:
    """Read the last answer in a file, whoever has written it."""
    _, start, last = f"\n{text}".rpartition("\n[\n")
    try:
        return dump_of(rank, parse_dump(start + last))
    except ValueError:
        return parse_faulthandler(text, rank=rank)
