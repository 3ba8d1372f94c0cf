"""Run py-spy, which reads Python's stacks and the holder of the GIL from a process's memory.

With ``--nonblocking`` it reads while the process goes on. Its data may then be inconsistent, which
shows as an answer that cannot be parsed or as no answer. It costs a few tenths of a second of
processor time, so it runs seldom, in the background, and only for information that is shown.
"""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import IO, Any
from typing import cast as typed

from pytest_multihost.core.model.foreign_bytes import MAX_READ, read_at
from pytest_multihost.core.model.json_values import parse_foreign
from pytest_multihost.core.model.stack import Dump, Frame, ThreadStack, innermost_user_frame
from pytest_multihost.core.slots.stacks import py_spy_command
from pytest_multihost.core.watch.probes.lent_memory import LentMemory, needs_lender
from pytest_multihost.core.watch.probes.thread_ids import ids_by_handle, ids_by_own_id

SAMPLE_INTERVAL_S = 5.0
"""Time between two samples."""

_TIMEOUT_S = 5.0
_AT_ONCE = 4
_VERBOSITY = 4
"""How long values are shown: some 500 characters, or the arguments of an all_gather are cut off."""
_MAIN_THREAD = "MainThread"
_WITHOUT_MAIN = "py-spy does not show its main thread"
_MAX_TEXT = 4096
"""Maximum length of a name or value that a process may have given: no path is longer."""


@dataclass(frozen=True, slots=True)
class SpiedThread:
    """One thread as py-spy reports it.

    Attributes:
        tid: Its native id; 0 if it is not known.
        handle: The address of libc's descriptor of it (pthread_self(3)); 0 if it is not known.
        name: Empty if py-spy does not know it.
        values: For each frame the values of its local variables by name, as text; empty if they
            were not requested.
    """

    tid: int
    name: str
    is_main: bool
    holds_gil: bool
    frames: tuple[Frame, ...]
    values: tuple[Mapping[str, str], ...] = ()
    handle: int = 0


def parse_dump(text: str | bytes) -> tuple[SpiedThread, ...]:
    """Return the threads in the output of ``py-spy dump --json``, with the ids that it prints.

    Raises:
        ValueError: It is an error message, or cut off.
    """
    try:
        return tuple(
            SpiedThread(
                each["os_thread_id"] or 0,
                _text(each.get("thread_name") or ""),
                each["os_thread_id"] == each["pid"],
                bool(each.get("owns_gil")),
                tuple(
                    Frame(_text(f["filename"]), int(f["line"]), _text(f["name"]))
                    for f in each["frames"]
                ),
                tuple(_values(f.get("locals")) for f in each["frames"]),
                each.get("thread_id") or 0,
            )
            for each in typed(
                "Any", parse_foreign(text if isinstance(text, bytes) else text.encode())
            )
        )
    except (LookupError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise ValueError("not the JSON that py-spy prints") from error


def _values(found: Iterable[Mapping[str, str]] | None) -> Mapping[str, str]:
    return {_text(each["name"]): _text(each.get("repr") or "") for each in found or ()}


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value[:_MAX_TEXT]


def threads_of(pid: int, text: str | bytes) -> tuple[SpiedThread, ...]:
    """Return the same with the ids of this machine, as far as they are known.

    py-spy prints the ids that the process itself sees, and none of Python 3.10 and older. If there
    is no other sign of the main thread, it is the one with the name that Python gives to it.

    Raises:
        ValueError: `text` is an error message, or cut off.
    """
    threads, by_own_id = parse_dump(text), ids_by_own_id(pid)
    tids = {each.handle: by_own_id.get(each.tid, 0) for each in threads}
    if 0 in tids.values():
        tids |= ids_by_handle(pid, tids, by_own_id)
    named = [each.handle for each in threads if each.name == _MAIN_THREAD]
    if pid not in tids.values() and len(named) == 1 and not tids[named[0]]:
        tids[named[0]] = pid
    return tuple(
        replace(each, tid=tids[each.handle], is_main=tids[each.handle] == pid) for each in threads
    )


Spied = Mapping[int, tuple[SpiedThread, ...]]
"""The threads of each rank."""


def spied_threads(pids: Mapping[int, int]) -> tuple[Spied, Mapping[int, str]]:
    """Return the threads of processes with their variables, and why some could not be read.

    If reading variables fails, as it may while a thread runs, only the stacks are read.
    """
    command = py_spy_command()
    if not command:
        return {}, dict.fromkeys(pids, "py-spy is not installed: pip install py-spy")

    def spied(pid: int) -> tuple[SpiedThread, ...] | str:
        why = ""
        for options in (("--locals",) * _VERBOSITY, ()):
            found = _spied([*command[:-1], *options, command[-1]], pid)
            if not isinstance(found, str):
                return found
            why = why or found
        return why

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        answers = dict(zip(pids, pool.map(spied, pids.values()), strict=True))
    threads = {rank: each for rank, each in answers.items() if not isinstance(each, str)}
    return threads, {rank: each for rank, each in answers.items() if isinstance(each, str)}


def _spied(command: Sequence[str], pid: int) -> tuple[SpiedThread, ...] | str:
    """Return the threads that py-spy prints, or its error message."""
    try:
        printed, errors = _run(command, pid)
        found = threads_of(pid, printed)
        return found if any(each.is_main for each in found) else _WITHOUT_MAIN
    except ValueError:
        said = errors.decode(errors="replace").strip().splitlines()
        return said[0] if said else "py-spy printed no error"
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)


def _run(command: Sequence[str], pid: int) -> tuple[bytes, bytes]:
    """Return the output of py-spy about a process, and its errors.

    It goes into files: of the output, whose size the process chooses that is read, only a part is
    held in memory.

    Raises:
        OSError, subprocess.SubprocessError: It cannot be run, or takes too long.
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        words = (*command, str(pid))
        if needs_lender(pid):
            LentMemory(pid).run(words, out, errors, _TIMEOUT_S)
        else:
            subprocess.run(words, stdout=out, stderr=errors, check=False, timeout=_TIMEOUT_S)
        return read_at(out.fileno(), MAX_READ, 0), read_at(errors.fileno(), MAX_READ, 0)


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
            printed, _ = _run(command, pid)
            return any(each.holds_gil and each.is_main for each in threads_of(pid, printed))
        return False

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        answers = pool.map(main_holds_gil, pids.values())
        return [rank for rank, holds in zip(pids, answers, strict=True) if holds]


@dataclass(slots=True)
class PySpySampler:
    """Samples the user's line in a process's main thread, in the background. Must be closed."""

    clock: Callable[[], float] = time.monotonic
    _command: tuple[str, ...] = field(default_factory=py_spy_command)
    _asked_s: float = float("-inf")
    _running: tuple[int, subprocess.Popen[bytes], IO[bytes]] | None = None
    _sample: tuple[int, Frame | None] | None = None

    def user_frame(self, pid: int) -> Frame | None:
        """Return the last sample of `pid`, if any, and begin a new one if it is old."""
        if self._running is not None and self._running[1].poll() is not None:
            asked, _, answer = self._running
            answer.seek(0)
            self._sample = asked, None
            with contextlib.suppress(ValueError, StopIteration):
                main = next(
                    each for each in threads_of(asked, answer.read(MAX_READ)) if each.is_main
                )
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
            # A pipe could fill up, because no process reads it while py-spy writes.
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
