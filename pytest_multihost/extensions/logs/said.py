"""The facts in lines of logs: one class for each kind of fact, with the line that says it."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_multihost.core.model.stack import Frame


@dataclass(frozen=True, slots=True)
class Waited:
    """A rank waits in a collective, or waited until its timeout.

    Attributes:
        rank: The rank in the world; None if the line does not name it.
        inner: The rank in the group, as the runtime counts it; None if unknown.
        group: The key of the group; None if the line does not name it.
        sequence: The number of the collective in its group; 0 if unknown.
        sent: Elements that the rank passes; None if unknown.
        received: Elements that it gets; None if unknown.
        shape: The shape of the tensor, where the line has one.
        at: The file and the line of the log, as in "job.log:17".
        order: Its place among all lines that were read.
    """

    at: str
    rank: int | None
    name: str
    inner: int | None = None
    group: str | None = None
    sequence: int = 0
    sent: int | None = None
    received: int | None = None
    shape: str = ""
    order: int = 0


@dataclass(frozen=True, slots=True)
class Counted:
    """How far a rank has come in a group.

    Attributes:
        enqueued: The number of the last collective that it has launched there.
        completed: The number of the last ended collective.
        working: The number of the collective that timed out; None if none did.
        asked_by: The rank whose timeout made it say so; None: its own, or unknown.
        is_asked: Whether it says so only because another rank has timed out.
    """

    at: str
    rank: int
    group: str
    enqueued: int | None = None
    completed: int | None = None
    working: int | None = None
    asked_by: int | None = None
    is_asked: bool = False


@dataclass(frozen=True, slots=True)
class Absent:
    """A runtime says which ranks have not come to a barrier.

    Attributes:
        waiting: Ranks that are known to wait there.
        size: How many ranks it is for; None if unknown.
    """

    at: str
    barrier: str
    missing: tuple[int, ...]
    waiting: tuple[int, ...] = ()
    size: int | None = None


@dataclass(frozen=True, slots=True)
class Behind:
    """A runtime counts how many ranks of a communicator have launched how many operations.

    Attributes:
        counts: Pairs of a number of ranks and the last operation that they have launched.
        listed: The ranks that it lists: those of the smallest number of ranks.
    """

    at: str
    name: str
    counts: tuple[tuple[int, int], ...]
    listed: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Raised:
    """A rank has printed the traceback of an exception.

    Attributes:
        stream: A name that distinguishes the writer of the line, where no rank is known.
        order: Its place among all lines that were read.
        went_on: Whether the same rank printed more afterwards than a process does that ends.
        causes: The exceptions that it was raised from or while handling, one line each.
        is_thread: Whether a thread that is not the main one has raised it.
    """

    at: str
    rank: int | None
    stream: str
    type: str
    message: str
    text: str
    order: int
    frames: tuple[Frame, ...] = ()
    went_on: bool = False
    causes: tuple[str, ...] = ()
    is_thread: bool = False


@dataclass(frozen=True, slots=True)
class Ended:
    """A launcher or the kernel says how a process has ended.

    Attributes:
        by: The source: "torchrun", "Slurm", "the kernel".
        code: Its exit code; None if a signal ended it, or if it is unknown.
        signal: The number of the signal that ended it.
        why: More about it, as in "out of memory".
        is_first: Whether the launcher says that it was the first to fail.
    """

    at: str
    rank: int | None
    by: str
    code: int | None = None
    signal: int | None = None
    why: str = ""
    is_first: bool = False
    order: int = 0


@dataclass(frozen=True, slots=True)
class ReadStack:
    """A thread of a process, as a tool has read its stack.

    Attributes:
        process: The id of the process, or the tool's name for it; None if the tool names none.
        tool: The tool: "py-spy", "faulthandler", "gdb", "pystack".
    """

    at: str
    rank: int | None
    process: str | None
    tool: str
    thread: str
    is_main: bool
    frames: tuple[Frame, ...]


@dataclass(frozen=True, slots=True)
class Remark:
    """Something that a reader of the page should know, and that no verdict is drawn from."""

    at: str
    text: str


@dataclass(frozen=True, slots=True)
class Restarted:
    """A launcher starts all ranks again: earlier lines are of ended ranks.

    Attributes:
        failed: The line that says how the last start has ended; None: all lines before this one.
    """

    at: str
    failed: str | None = None


Said = Restarted | Waited | Counted | Absent | Behind | Raised | Ended | ReadStack | Remark
