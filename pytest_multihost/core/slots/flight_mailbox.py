"""A rank's mailbox for questions to torch's flight recorder: a FIFO in, a JSON file out.

DDP's reducer and the functional collectives issue operations in C++. Python wrappers cannot see
these, but torch's flight recorder does. Only the rank itself can read its recorder, so a thread
of the rank blocks in a read of the FIFO and writes an answer for each request. The answer file is
replaced atomically: a reader sees the old answer or the new one, never a partial one.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from pytest_multihost.core import files
from pytest_multihost.core.model.history import History
from pytest_multihost.core.model.json_values import Json, JsonError, from_json, parse_json, to_json
from pytest_multihost.core.model.operation import Operations

T = TypeVar("T")

_FOR_HISTORIES = b"h"


@dataclass(frozen=True, slots=True)
class _FlightAnswer:
    """The content of the flight recorder, and when it was read."""

    at_s: float
    operations: Operations


@dataclass(frozen=True, slots=True)
class _Histories:
    """The flight recorder's histories, and when they were read."""

    at_s: float
    histories: tuple[History, ...]


@dataclass(frozen=True, slots=True)
class FlightMailbox:
    """The mailbox of one rank."""

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
            for_histories: Whether to ask for histories as well. To make them, torch looks into
                modules that the rank may be importing at that moment, so only a world that is over
                may be asked.
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
        """Return whether requests that were read from the FIFO include one for histories."""
        return _FOR_HISTORIES in requests

    def write(self, at_s: float, operations: Operations) -> None:
        """Write the flight recorder's content as of `at_s` on the monotonic clock."""
        _replace(self.answer_file, to_json(_FlightAnswer(at_s, operations)))

    def write_histories(self, at_s: float, histories: tuple[History, ...]) -> None:
        """Write the histories as of `at_s` on the monotonic clock."""
        _replace(self.history_file, to_json(_Histories(at_s, histories)))

    def read_histories(self, *, since_s: float) -> tuple[History, ...] | None:
        """Return the histories of the rank's groups; None if there are none since `since_s`."""
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
        answer = _read(_FlightAnswer, self.answer_file)
        return answer.operations if answer is not None and answer.at_s >= since_s else None


def _read(kind: type[T], path: Path) -> T | None:
    try:
        return from_json(kind, parse_json(path.read_bytes()))
    except (OSError, JsonError):
        return None


def _replace(path: Path, data: Mapping[str, Json]) -> None:
    files.write(path, json.dumps(data))
