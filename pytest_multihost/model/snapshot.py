"""What was seen of a world's processes from outside at one instant, without touching them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from pytest_multihost.model.operation import GroupKey, Operation
from pytest_multihost.model.stack import NativeThread

Label = Literal[
    "BLOCKED",  # waits for another thread or process
    "SLEEPING",  # waits for time to pass
    "IO",  # reads or writes a file, a pipe, a terminal, or a socket that leaves the world
    "RUNNING",  # uses the processor
    "CHILD",  # waits for a child process
    "STOPPED",  # SIGSTOP, a debugger
    "DISK",  # uninterruptible: the kernel waits for a device
    "EXITED",  # its process has ended
]
"""What a rank's main thread is doing."""

SnapshotReason = Literal["tick", "trouble", "end"]
"""Why the world was looked at: time had passed; a rank had raised or died; it is to be ended."""


@dataclass(frozen=True, slots=True)
class Activity:
    """What a rank's main thread does at one instant, as far as the kernel tells.

    Attributes:
        name: The system call that it waits in, or ``sleep`` for any that waits for time alone; of a
            thread that waits in none ``runs``, ``stopped`` and the like.
        target: What the call is about: a path, a pipe, a socket, a child process.
        ends_in_s: After how many seconds a timeout ends the wait; None where there is none, or
            it is not known.
        has_unknown_timeout: Whether the wait may have a timeout that could not be read.
    """

    name: str
    target: str = ""
    ends_in_s: float | None = None
    has_unknown_timeout: bool = False

    @property
    def call(self) -> str:
        """The call and what it is about: ``read(/data/ckpt)``."""
        return f"{self.name}({self.target})" if self.target else self.name

    @property
    def until(self) -> str:
        """When it ends by itself, to follow the call: `` until +2.5 s``; empty if it does not."""
        if self.has_unknown_timeout:
            return " for some time"
        return "" if self.ends_in_s is None else f" until +{self.ends_in_s:.1f} s"

    def __str__(self) -> str:
        """Return all of it for the reader: ``epoll_wait until +2.5 s``."""
        return f"{self.call}{self.until}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSnapshot:
    """One rank at one instant.

    Attributes:
        rank: Which.
        label: What its main thread is doing, None where nothing could be read.
        activity: The same in detail, None where nothing could be read.
        operations: Its open operations.
        entered: Each of its groups with the sequence of the last collective that it entered there.
        locks: Ranks that hold a file lock which it waits for.
        has_moved: Whether its main thread has run since the last look, if only to wait again.
        moves: At the end: the same at each of the last looks, the oldest first, four a second.
        holds_gil: Whether native code on its main thread is seen to hold the interpreter.
        native: Where native frames were read: those of the main thread, and of the one that tells
            of an operation.
    """

    rank: int
    label: Label | None = None
    activity: Activity | None = None
    operations: tuple[Operation, ...] = ()
    entered: tuple[tuple[GroupKey, int], ...] = ()
    locks: tuple[int, ...] = ()
    has_moved: bool = False
    moves: tuple[bool, ...] = ()
    holds_gil: bool = False
    native: tuple[NativeThread, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldSnapshot:
    """A world at one instant.

    Attributes:
        at_s: When, on the monotonic clock.
        why: What it was looked at for.
        ranks: All of them, in order.
        blockers: What may end a wait before the deadline, as far as can be seen, so that nothing
            is proven: one sentence each. Empty when nothing can.
        lacking: What could not be seen, why, and what would help: one sentence each.
        notes: What must be known of how it was seen, and when: one sentence each.
    """

    at_s: float
    why: SnapshotReason
    ranks: tuple[RankSnapshot, ...]
    blockers: tuple[str, ...] = ()
    lacking: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object that `from_json` turns back into an equal value."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> WorldSnapshot:
        """Rebuild the value that `to_json` wrote."""
        ranks = tuple(_rank(each) for each in data["ranks"])
        texts = {name: tuple(data.get(name, ())) for name in ("blockers", "lacking", "notes")}
        return cls(**{**data, "ranks": ranks, **texts})


def _rank(data: Mapping[str, Any]) -> RankSnapshot:
    entered = tuple(
        ((tuple(group), ordinal, scope), last) for (group, ordinal, scope), last in data["entered"]
    )
    operations = tuple(Operation.from_json(each) for each in data["operations"])
    native = tuple(
        NativeThread(each["thread"], tuple(each["symbols"])) for each in data.get("native", ())
    )
    activity = Activity(**data["activity"]) if data["activity"] else None
    changed = {
        "entered": entered,
        "operations": operations,
        "native": native,
        "activity": activity,
    }
    return RankSnapshot(**{**data, **changed, "locks": tuple(data["locks"])})
