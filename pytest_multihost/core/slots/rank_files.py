"""What a rank writes beside its slot page: its log, its stacks, the flight recorder."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import shutil
import signal
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, TypeVar

from pytest_multihost.core.model.json_values import Json, JsonError, from_json, parse_json, to_json
from pytest_multihost.core.model.messages import DumpKind
from pytest_multihost.core.model.operation import History, Operations

# A rank's mailbox for questions to torch's flight recorder: a FIFO in, a JSON file out.
#
# DDP's reducer and the functional collectives issue operations in C++. Python wrappers cannot see
# these, but torch's flight recorder does. Only the rank itself can read its recorder, so a thread
# of the rank blocks in a read of the FIFO and writes an answer for each request. The answer file is
# replaced atomically: a reader sees the old answer or the new one, never a partial one.


T = TypeVar("T")

_FOR_HISTORIES = b"h"


@dataclass(frozen=True, slots=True)
class _Answer:
    """The content of the flight recorder, and when it was read."""

    at_s: float
    operations: Operations


@dataclass(frozen=True, slots=True)
class _Histories:
    """What the flight recorder knows of the past, and when it was read."""

    at_s: float
    histories: tuple[History, ...]


@dataclass(frozen=True, slots=True)
class FlightMailbox:
    """The mailbox of one rank.

    Attributes:
        scratch: The world's directory.
        rank: Index of the rank.
    """

    scratch: Path
    rank: int

    @property
    def fifo(self) -> Path:
        """The FIFO for requests to the rank; the rank creates it."""
        return self.scratch / f"rank-{self.rank}.ask"

    @property
    def answer_file(self) -> Path:
        """The file with the rank's last answer."""
        return self.scratch / f"rank-{self.rank}.flight.json"

    @property
    def history_file(self) -> Path:
        """The file with the histories that came with the last answer, and after it."""
        return self.scratch / f"rank-{self.rank}.flights.json"

    def ask(self, *, for_histories: bool = False) -> bool:
        """Ask the rank without blocking; return whether a thread is reading the FIFO.

        The rank answers within milliseconds, or not at all if it has no torch, is stopped, or
        native code holds the GIL.

        Args:
            for_histories: Whether to ask for histories, too. To make them, torch looks into modules
                that the rank may just be importing, so only a world that is over may be asked.
        """
        with contextlib.suppress(OSError):  # ENXIO: no reader; EAGAIN: the FIFO is full
            descriptor = os.open(self.fifo, os.O_WRONLY | os.O_NONBLOCK)
            try:
                return os.write(descriptor, _FOR_HISTORIES if for_histories else b"?") == 1
            finally:
                os.close(descriptor)
        return False

    @staticmethod
    def asks_for_histories(requests: bytes) -> bool:
        """Return whether requests that were read from the FIFO are for histories, too."""
        return _FOR_HISTORIES in requests

    def write(self, at_s: float, operations: Operations) -> None:
        """Write the flight recorder's content as of `at_s` on the monotonic clock."""
        _replace(self.answer_file, to_json(_Answer(at_s, operations)))

    def write_histories(self, at_s: float, histories: tuple[History, ...]) -> None:
        """Write the histories as of `at_s` on the monotonic clock."""
        _replace(self.history_file, to_json(_Histories(at_s, histories)))

    def read_histories(self, *, since_s: float) -> tuple[History, ...] | None:
        """Return the histories of the rank's groups; None if there are none as new as that."""
        answer = _read(_Histories, self.history_file)
        return answer.histories if answer is not None and answer.at_s >= since_s else None

    def read(self, *, since_s: float = 0.0) -> Operations | None:
        """Return the rank's open collectives that are missing from its slot page.

        `entered` counts, in a separate scope, all collectives known to the flight recorder.

        Args:
            since_s: Ignore an answer older than this.

        Returns:
            None without an answer. An answer may also be empty.
        """
        answer = _read(_Answer, self.answer_file)
        return answer.operations if answer is not None and answer.at_s >= since_s else None


def _read(kind: type[T], path: Path) -> T | None:
    try:
        return from_json(kind, parse_json(path.read_bytes()))
    except (OSError, JsonError):
        return None


def _replace(path: Path, data: Mapping[str, Json]) -> None:
    draft = path.with_suffix(".draft")
    draft.write_text(json.dumps(data), encoding="utf-8")
    draft.replace(path)


# The bound on a rank's log: of one that grows too long, the first and the last part are kept.
#
# A rank writes to its log itself, by a descriptor that appends, and so do the processes that it
# starts: they need no reader that keeps up with them. The server of the rank looks at the size a
# few times a second and gives the blocks in the middle back to the file system. When the ranks have
# ended, it cuts the hole out of the file.


MAX_LOG_BYTES = 50_000_000
"""A log that is longer is cut."""

_KEPT = 20_000_000
"""How much is kept of the beginning, and of the end."""

_INTERVAL_S = 0.1
_NOTE = "\n... {} bytes of this log were cut here: it had more than {} ...\n"
_FOUND = re.compile(rb"\n\.\.\. (\d+) bytes of this log were cut here: ")

_TERM_NOTICE = re.compile(
    rb"^W\d{4} .* preemption_notifier\.cc:\d+\] SIGTERM caught at .*\n", re.MULTILINE
)
"""What jax's runtime writes in each rank that the harness ends by SIGTERM."""

_MAX_LAST_BYTES = 100_000
_KEEP_SIZE, _PUNCH_HOLE = 1, 2
_fallocate = ctypes.CDLL(None, use_errno=True).fallocate
_fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)


def cut_bytes(file: BinaryIO) -> int:
    """Return how many bytes have been cut from a log."""
    found = _FOUND.match(os.pread(file.fileno(), 200, _KEPT))
    return int(found[1]) if found is not None else 0


@dataclass(slots=True)
class RankLogs:
    """The logs of the running world's ranks, which its server keeps bounded."""

    paths: tuple[Path, ...] = ()
    _next_s: float = 0.0
    _sizes: dict[Path, int] = field(default_factory=dict)

    def watch(self, paths: Iterable[Path]) -> None:
        """Bound the logs of a world that begins."""
        self.paths, self._next_s = tuple(paths), 0.0

    def begin_end(self) -> None:
        """Note what was written before the ranks are ended."""
        self._sizes = {path: path.stat().st_size for path in self.paths if path.exists()}

    def close(self) -> None:
        """Cut what is too long, and the runtime's notice of the end: the world has ended."""
        for path in self.paths:
            _remove_notice(path, self._sizes.get(path, 0))
            _bound(path, _cut)
        self.paths, self._sizes = (), {}

    def wait_s(self, now_s: float) -> float | None:
        """Return the seconds until the sizes are due to be looked at, None if never."""
        return max(0.0, self._next_s - now_s) if self.paths else None

    def act(self, now_s: float) -> None:
        """Free the middle of what is too long, if it is time to look."""
        if now_s >= self._next_s:
            self._next_s = now_s + _INTERVAL_S
            for path in self.paths:
                _bound(path, _free)


def _remove_notice(path: Path, size: int) -> None:
    """Remove the runtime's notice of SIGTERM from what was written beyond `size`."""
    with contextlib.suppress(OSError), path.open("r+b") as file:
        file.seek(size)
        last = file.read(_MAX_LAST_BYTES)
        kept = _TERM_NOTICE.sub(b"", last)
        if kept != last and len(last) < _MAX_LAST_BYTES:
            file.seek(size)
            file.write(kept)
            file.truncate()


def _bound(path: Path, shorten: Callable[[BinaryIO, int], None]) -> None:
    try:
        if path.stat().st_size > MAX_LOG_BYTES:
            with path.open("a+b", buffering=0) as file:
                shorten(file, os.fstat(file.fileno()).st_size)
    except OSError:  # not there yet, or a full disk
        return


def _free(file: BinaryIO, size: int) -> None:
    """Free the blocks in the middle of a log; its size and its writers' positions stay."""
    mode, length = _PUNCH_HOLE | _KEEP_SIZE, size - 2 * _KEPT
    if _fallocate(file.fileno(), mode, _KEPT, length):  # the file system has no holes
        _replace_end(file, b"", size)


def _cut(file: BinaryIO, size: int) -> None:
    """Cut the middle out of a log to which nothing is written any more, and say so there."""
    kept = os.pread(file.fileno(), _KEPT, size - _KEPT)
    _replace_end(file, kept[kept.find(b"\n") + 1 :], size)


def _replace_end(file: BinaryIO, kept: bytes, size: int) -> None:
    """Leave of a log its beginning, a note of what was cut, and `kept`."""
    note = _NOTE.format(size - _KEPT - len(kept) + cut_bytes(file), MAX_LOG_BYTES)
    file.truncate(_KEPT)
    file.write(note.encode() + kept)


# How the stacks of a rank are taken: by a signal that it handles itself, else by py-spy.
#
# Code in a rank can take its handlers away: Lightning's `fit()` ends with `signal.signal(number,
# signal.getsignal(number))` for all signals, and `getsignal` does not see faulthandler's. So a
# signal is sent only where /proc shows a handler for it and a thread that does not block it.


_OTHERS = ("main", "tasks")


def dump_signal(kind: DumpKind) -> int:
    """Return the signal on which a rank writes this kind of dump.

    SIGURG for stacks, which every rank is asked for: nobody sends it unasked, and should a rank
    lose its handler at this very moment, the signal is ignored. SIGUSR1 and SIGUSR2 announce
    termination in torchelastic and Slurm; real-time signals end a process that does not handle
    them.
    """
    return signal.SIGRTMIN + 9 + _OTHERS.index(kind) if kind in _OTHERS else signal.SIGURG


def can_handle(pid: int, number: int) -> bool:
    """Return whether a process has a handler for a signal, and a thread that does not block it."""
    bit = 1 << number - 1
    for path in Path(f"/proc/{pid}/task").glob("*/status"):
        with suppress(OSError):  # the thread has ended
            lines = path.read_text(errors="replace").splitlines()
            masks = {name: value for name, _, value in (line.partition(":") for line in lines)}
            if int(masks["SigCgt"], 16) & bit and not int(masks["SigBlk"], 16) & bit:
                return True
    return False


def py_spy_command() -> tuple[str, ...]:
    """Return how py-spy is told to print a process's stacks as JSON without stopping it.

    The process's id follows. Empty where py-spy is neither beside this Python nor on the PATH.
    """
    beside = shutil.which("py-spy", path=str(Path(sys.executable).parent))
    program = beside or shutil.which("py-spy")
    return (program, "dump", "--nonblocking", "--json", "--pid") if program else ()
