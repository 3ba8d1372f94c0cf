"""A rank's mailbox for questions to torch's flight recorder: a FIFO in, a JSON file out.

DDP's reducer and the functional collectives call each other in C++, where no wrapper in Python sees
them; torch's flight recorder does. Only the rank itself can read it, so a thread of the rank
sleeps in a read of the FIFO and writes an answer whenever it is asked. An answer is a file that is
replaced as a whole: a reader sees the old one or the new one, never half of one.
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import dataclass
from pathlib import Path

from pytest_multihost.model.json_values import JsonError, from_json, parse_json, to_json
from pytest_multihost.model.operation import Operations


@dataclass(frozen=True, slots=True)
class _Answer:
    """What the flight recorder had, and when."""

    at_s: float
    operations: Operations


@dataclass(frozen=True, slots=True)
class FlightMailbox:
    """The mailbox of one rank.

    Attributes:
        scratch: The world's directory.
        rank: Whose it is.
    """

    scratch: Path
    rank: int

    @property
    def fifo(self) -> Path:
        """The FIFO through which the rank is asked; the rank makes it."""
        return self.scratch / f"rank-{self.rank}.ask"

    @property
    def answer_file(self) -> Path:
        """The file with the rank's last answer."""
        return self.scratch / f"rank-{self.rank}.flight.json"

    def ask(self) -> bool:
        """Ask the rank without waiting; return whether a thread is there that reads.

        It answers within milliseconds or not at all: not without torch, not while the rank is
        stopped, and not while native code holds the GIL.
        """
        with contextlib.suppress(OSError):  # ENXIO: nobody reads; EAGAIN: the FIFO is full
            descriptor = os.open(self.fifo, os.O_WRONLY | os.O_NONBLOCK)
            try:
                return os.write(descriptor, b"?") == 1
            finally:
                os.close(descriptor)
        return False

    def write(self, at_s: float, operations: Operations) -> None:
        """Write what the flight recorder had at `at_s` on the monotonic clock."""
        data = to_json(_Answer(at_s, operations))
        draft = self.answer_file.with_suffix(".draft")
        draft.write_text(json.dumps(data), encoding="utf-8")
        draft.replace(self.answer_file)

    def read(self, *, since_s: float = 0.0) -> Operations | None:
        """Return the open collectives of the rank that its own records do not have.

        `entered` counts, in a scope of its own, all collectives that the flight recorder knows.

        Args:
            since_s: An answer that is older is none.

        Returns:
            None without an answer; an answer may say that nothing is known.
        """
        try:
            answer = from_json(_Answer, parse_json(self.answer_file.read_bytes()))
        except (OSError, JsonError):
            return None
        return answer.operations if answer.at_s >= since_s else None
