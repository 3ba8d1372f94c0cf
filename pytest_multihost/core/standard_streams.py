"""The standard streams of a program: closed by its starter, without a reader, or on a full disk."""

from __future__ import annotations

import errno
import io
import os
import select
import sys
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_LAST = 2
"""The descriptor of standard error, the last of the three."""

ENDED_BY_PIPE = 141
"""The exit code of a program whose reader has gone, as a shell shows it: 128 and SIGPIPE."""


def open_closed_streams() -> None:
    """Open the null device in place of each standard stream that the starter has closed.

    Otherwise Python has None for it, and the next file or socket that is opened gets its
    descriptor, into which children of this process would print.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            # The lowest free descriptor: its own, unless another file has it already.
            stream = open(os.devnull, mode, encoding="utf-8")  # noqa: SIM115, PTH123
            if stream.fileno() <= _LAST:
                os.set_inheritable(stream.fileno(), True)  # noqa: FBT003
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)


def has_lost_its_reader(stream: TextIO) -> bool:
    """Return whether a stream is a pipe or a socket without a reader."""
    poll = select.poll()
    try:
        poll.register(stream.fileno(), 0)
    except (OSError, ValueError):
        return False
    return any(event & select.POLLERR for _, event in poll.poll(0))


class _Fitting(io.FileIO):
    """A file that drops the data that does not fit onto its disk."""

    def write(self, data: ReadableBuffer, /) -> int:
        """Write as much as fits; return how much was written or dropped."""
        try:
            return super().write(data) or 0
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            return memoryview(data).nbytes


def drop_what_does_not_fit() -> None:
    """Let this process write into a log on a full disk as if there were room: it has other work."""
    for name, number in (("stdout", 1), ("stderr", 2)):
        getattr(sys, name).flush()
        file = io.BufferedWriter(_Fitting(number, "w", closefd=False))
        stream = io.TextIOWrapper(file, "utf-8", "backslashreplace", line_buffering=True)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def drop_output(stream: TextIO) -> None:
    """Drop the buffered output of a stream, so that the interpreter does not write it at exit."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, stream.fileno())
    os.close(null)
