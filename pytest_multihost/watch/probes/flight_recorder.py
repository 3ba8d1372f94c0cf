"""Ask a rank for what torch's flight recorder has of it, and read the answer.

DDP's reducer and the functional collectives call each other in C++; nothing in Python sees them.
torch's flight recorder does. A thread of the rank reads it when it is asked, and at no other time:
it sleeps in the read of a FIFO. Its answer is a file, written as a whole.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Sequence
from pathlib import Path

from pytest_multihost.model.operation import GroupKey, Operation, Operations


def ask_path(scratch: str | Path, rank: int) -> Path:
    """Return the FIFO that a rank is asked through."""
    return Path(scratch, f"rank-{rank}.ask")


def flight_path(scratch: str | Path, rank: int) -> Path:
    """Return where a rank's answer lies."""
    return Path(scratch, f"rank-{rank}.flight.json")


def ask(scratch: str | Path, rank: int) -> bool:
    """Ask a rank, and return whether anybody is there to answer; never waits for it.

    It answers within milliseconds, or not at all.

    Nobody answers in a rank without torch, in one that is stopped or dead, and while native code
    holds the interpreter.
    """
    with contextlib.suppress(OSError):  # nobody reads, or enough has been asked
        descriptor = os.open(ask_path(scratch, rank), os.O_WRONLY | os.O_NONBLOCK)
        try:
            return os.write(descriptor, b"?") == 1
        finally:
            os.close(descriptor)
    return False


def write_flight(path: Path, at_s: float, operations: Operations) -> None:
    """Write an answer, in one piece.

    Args:
        path: Where.
        at_s: When it was so, on the monotonic clock.
        operations: What is to be said.
    """
    data = {
        "at_s": at_s,
        "recent": [each.to_json() for each in operations.recent],
        "entered": list(operations.entered.items()),
    }
    draft = path.with_suffix(".draft")
    draft.write_text(json.dumps(data), encoding="utf-8")
    draft.replace(path)


def read_flight(path: Path, *, rank: int, since_s: float = 0.0) -> Operations:
    """Return what `answer_of` does, and nothing of a rank that has not answered."""
    return answer_of(path, rank=rank, since_s=since_s) or Operations(rank)


def answer_of(path: Path, *, rank: int, since_s: float) -> Operations | None:
    """Return the open collectives of a rank that its own records do not have.

    `entered` counts, in a scope of its own, all collectives that the flight recorder knows of.

    Args:
        path: Where the answer lies.
        rank: Whose it is.
        since_s: An answer from before that is none.

    Returns:
        None without an answer; one may say that nothing is known.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data["at_s"] < since_s:
            return None
        recent = tuple(Operation.from_json(each) for each in data["recent"])
        return Operations(rank, recent, {_group_key(key): last for key, last in data["entered"]})
    except (OSError, ValueError, LookupError, TypeError):
        return None


def _group_key(key: Sequence[object]) -> GroupKey:
    ranks, ordinal, scope = key
    return tuple(ranks), ordinal, scope  # type: ignore[arg-type, return-value] # from JSON
