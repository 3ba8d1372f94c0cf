"""Barriers whose runtime names the ranks that have not come: gloo's monitored one, and jax's.

jax's coordination service also names tasks that send no heartbeats any more.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from pytest_multihost.extensions.logs.lines import Line
from pytest_multihost.extensions.logs.readers.reader import Parse, Reader
from pytest_multihost.extensions.logs.said import Absent, Ended, Raised, Said

MONITORED = "monitored_barrier"
JAX_FATAL = "JAX distributed service"
"""The type of the error that ends a rank of jax because of another rank."""

_FAILED = re.compile(r"Ranks? ([\d, ]{1,2000}?) failed to pass monitoredBarrier")
_OF = re.compile(r"\[Rank (\d{1,7})\]:")
_REACHED = re.compile(r"Rank (\d{1,7}) successfully reached monitoredBarrier")
_JAX = re.compile(
    r"Barrier timed out\. (?:Id|Barrier_id|Barrier id): ([^\s]{1,200})", re.IGNORECASE
)
_TASKS = re.compile(r"# of tasks that reached the barrier: (\d{1,7})/(\d{1,7})")
_AT = re.compile(r"first task at the barrier: (?:\S{0,80}/task:)?(\d{1,7})")
_LATE = re.compile(r"timed out task names:\s{0,4}(.{0,4000})$", re.IGNORECASE)
_TASK = re.compile(r"(?:^|/task:)(\d{1,7})\b")
_HEARTBEAT = re.compile(r"Task (?:\S{0,80}/task:)?(\d{1,7}) heartbeat timeout")
_UNHEALTHY = re.compile(r"tasks are unhealthy \(stopped sending heartbeats\):\s{0,4}(.{0,2000})$")
_FATAL = re.compile(
    r"Terminating process because the ((?:JAX distributed service|coordinator) detected"
    r" [\w ]{1,40})\.?(?:.{0,600}?absl::Status: (.{1,400}))?"
)
"""A rank ends itself, since another one is gone or did not come."""

_NO_HEARTBEATS = "stopped sending heartbeats"
_BEHIND = 40
"""The service names up to twenty tasks, one a line."""

_MOST = 5000


def barrier_name(found: re.Match[str]) -> str:
    """Return the name in a message about a barrier of jax, without the number of its use."""
    return found[1].rstrip(".").split("::")[0]


@dataclass(slots=True)
class _OpenMessage:
    """A message whose lines are being read.

    Attributes:
        barrier: The barrier; empty if it is about heartbeats.
        names: Whether the lines that follow are the names of tasks.
        left: How many more lines it may have.
    """

    at: str
    barrier: str
    waiting: tuple[int, ...] = ()
    size: int | None = None
    names: bool = False
    left: int = _BEHIND


def _begin() -> Parse:
    open_ones: dict[str, _OpenMessage] = {}

    def parse(line: Line, say: Callable[[Said], None]) -> int:
        text = line.text
        if "monitoredBarrier" in text:
            _monitored(line, say)
            return 0
        if dead := _HEARTBEAT.search(text):
            say(Ended(line.at, int(dead[1]), "jax", why=_NO_HEARTBEATS, order=line.order))
        if fatal := _FATAL.search(text):
            why = f"{fatal[1]}: {fatal[2] or ''}".rstrip(": ")
            say(Raised(line.at, line.rank, line.stream, JAX_FATAL, why, why, line.order))
        one = open_ones.get(line.stream)
        if barrier := _JAX.search(text):
            one = open_ones[line.stream] = _OpenMessage(line.at, barrier_name(barrier))
        elif unhealthy := _UNHEALTHY.search(text):
            one = open_ones[line.stream] = _OpenMessage(line.at, "", names=True)
            text = unhealthy[1]
        if one is None or len(open_ones) > _MOST:
            open_ones.clear()
            return 0
        one.left -= 1
        _take(one, text, line.order, say)
        if not one.left:
            del open_ones[line.stream]
        return one.left

    return parse


def _monitored(line: Line, say: Callable[[Said], None]) -> None:
    if failed := _FAILED.search(line.text):
        missing = tuple(int(each) for each in failed[1].replace(" ", "").split(",") if each)
        of = _OF.search(line.text)
        say(Absent(line.at, MONITORED, missing, (int(of[1]),) if of else (0,)))
    elif reached := _REACHED.search(line.text):  # rank 0 knows which rank is missing, or is it
        say(Absent(line.at, MONITORED, (), (int(reached[1]),)))


def _take(one: _OpenMessage, text: str, order: int, say: Callable[[Said], None]) -> None:
    """Take a line of a message; say the tasks that it names."""
    if tasks := _TASKS.search(text):
        one.size = int(tasks[2])
    if first := _AT.search(text):
        one.waiting = (int(first[1]),)
    late = _LATE.search(text)
    one.names = one.names or late is not None
    named = late[1] if late is not None else text
    if not one.names or not (_TASK.search(named) or not named.strip()):
        one.names = False
        return
    for rank in [int(each) for each in _TASK.findall(named)][:_MOST]:
        if one.barrier:
            say(Absent(one.at, one.barrier, (rank,), one.waiting, one.size))
        else:
            say(Ended(one.at, rank, "jax", why=_NO_HEARTBEATS, order=order))


BARRIERS = Reader(
    "barriers",
    (
        b"monitoredBarrier",
        b"Barrier timed out",
        b"heartbeat timeout",
        b"sending heartbeats)",
        b"Terminating process because",
    ),
    _begin,
)
