"""The standard streams of a program: those that its starter has closed, and those nobody reads."""

from __future__ import annotations

import os
import select
import sys
from typing import TextIO

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
    """Return whether a stream is a pipe or a socket that nobody reads any more."""
    poll = select.poll()
    try:
        poll.register(stream.fileno(), 0)
    except (OSError, ValueError):
        return False
    return any(event & select.POLLERR for _, event in poll.poll(0))


def drop_output(stream: TextIO) -> None:
    """Drop what a stream still holds, so that the end of the interpreter does not write it."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, stream.fileno())
    os.close(null)
