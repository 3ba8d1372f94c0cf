"""The bound on a rank's log: a log that grows too long keeps only its first and last parts.

A rank writes to its log itself, by a descriptor that appends, and so do the processes that it
starts: they need no reader that keeps up with them. The server of the rank checks the size a few
times a second and gives the blocks in the middle back to the file system. When the ranks have
ended, it cuts the hole out of the file.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

MAX_LOG_BYTES = 50_000_000
"""A log that is longer is cut."""

_KEPT = 20_000_000
"""How many bytes are kept of the beginning, and of the end."""

_INTERVAL_S, _FEW = 0.1, 64
"""Time between two checks of so many logs; with more, it is in proportion to their number."""

_NOTE = "\n... {} bytes of this log were cut here: it had more than {} ...\n"
_FOUND = re.compile(rb"\n\.\.\. (\d+) bytes of this log were cut here: ")

_TERM_NOTICE = re.compile(
    rb"^W\d{4} .* preemption_notifier\.cc:\d+\] SIGTERM caught at .*\n", re.MULTILINE
)
"""The notice of jax's runtime in each rank that the harness ends by SIGTERM."""

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
        """Note the sizes of the logs before the ranks are ended."""
        self._sizes = {path: path.stat().st_size for path in self.paths if path.exists()}

    def close(self) -> None:
        """Cut logs that are too long, and the runtime's notice of the end, after the end."""
        for path in self.paths:
            _remove_notice(path, self._sizes.get(path, 0))
            _bound(path, _cut)
        self.paths, self._sizes = (), {}

    def wait_s(self, now_s: float) -> float | None:
        """Return the seconds until the next check of the sizes; None if there is none."""
        return max(0.0, self._next_s - now_s) if self.paths else None

    def act(self, now_s: float) -> None:
        """Free the middle of logs that are too long, if the check is due."""
        if now_s >= self._next_s:
            self._next_s = now_s + _INTERVAL_S * max(1.0, len(self.paths) / _FEW)
            for path in self.paths:
                _bound(path, _free)


def _remove_notice(path: Path, size: int) -> None:
    """Remove the runtime's notice of SIGTERM from the text written beyond `size`."""
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
    """Cut the middle out of a log that is complete, and leave a note there."""
    kept = os.pread(file.fileno(), _KEPT, size - _KEPT)
    _replace_end(file, kept[kept.find(b"\n") + 1 :], size)


def _replace_end(file: BinaryIO, kept: bytes, size: int) -> None:
    """Reduce a log to its beginning, a note about the cut, and `kept`."""
    note = _NOTE.format(size - _KEPT - len(kept) + cut_bytes(file), MAX_LOG_BYTES)
    file.truncate(_KEPT)
    file.write(note.encode() + kept)
