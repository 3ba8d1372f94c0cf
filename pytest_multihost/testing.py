"""Fakes for those who extend us: worlds without processes, time without waiting.

Imports neither pytest nor any runtime, and nothing of ours imports it. A scripted world does what
its script says, so many seconds after it was started or after the controller said something:

    >>> clock = ManualClock()
    >>> script = [*well_behaved(0), *well_behaved(1, stays_in="call")]
    >>> launcher = ScriptedLauncher(clock, script)
    >>> world = launcher.start(make_spec(size=2), directory=Path("logs"), scratch=Path("tmp"))
    >>> [event.kind for event in world.wait(1.0) if event.rank == 1]
    ['forked', 'hello', 'ready']
    >>> world.wait(1.0), clock.now()
    ([], 1.0)
    >>> world.send(1, Frame({"kind": "release", "gate": "go"}))
    >>> [event.detail.get("phase") for event in world.wait(1.0)]
    ['setup', None, 'call']

`engine.run_world` takes launcher and clock as its surroundings; afterwards `launcher.world` knows
what the ranks were sent.
"""

from __future__ import annotations

import math
import signal
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Any, Literal

from pytest_multihost.launch.protocol import Ending
from pytest_multihost.launch.wire import Frame
from pytest_multihost.model.event import Event, EventKind
from pytest_multihost.model.spec import WorldSpec
from pytest_multihost.model.stack import Dump, ThreadStack
from pytest_multihost.model.stack import Frame as StackFrame
from pytest_multihost.model.verdict import Phase

Trigger = Literal["start", "go", "teardown", "exit", "complete", "broken"]
"""The start of the world, a gate that opens for the rank, or the answer to an exchange."""


class ManualClock:
    """A clock that only goes when told to."""

    def __init__(self, seconds: float = 0.0) -> None:
        self._seconds = seconds

    def now(self) -> float:
        """Return the time in seconds."""
        return self._seconds

    def advance(self, seconds: float) -> None:
        """Let time pass.

        Raises:
            ValueError: Backwards.
        """
        if seconds < 0:
            message = f"time cannot go back by {-seconds} s"
            raise ValueError(message)
        self._seconds += seconds


@dataclass(frozen=True, slots=True)
class Step:
    """What a rank does, `after_s` seconds after the first `on`."""

    rank: int
    kind: EventKind
    detail: Mapping[str, Any] = field(default_factory=dict)
    after_s: float = 0.0
    on: Trigger = "start"


@dataclass(frozen=True, slots=True)
class Break:
    """What breaks the harness, `after_s` seconds after the start: waiting for events raises it."""

    error: BaseException
    after_s: float = 0.0


def exited(*, code: int | None = 0, signal: int | None = None) -> dict[str, Any]:
    """Return the detail of an `exited` event; a signal takes the place of the code."""
    code = None if signal else code
    return {"code": code, "signal": signal, "cpu_s": 0.1, "peak_rss_bytes": 1 << 20}


def raised(text: str, *, file: str | None = None, line: int | None = None) -> dict[str, Any]:
    """Return what a rank tells of an exception, from text such as "ValueError: no such step"."""
    kind, _, message = text.partition(": ")
    error = {"type": kind, "message": message, "file": file, "line": line, "text": f"E   {text}"}
    return {**error, "is_harness_symptom": kind.endswith("WorldBrokenError")}


def report(when: str, outcome: str = "passed", **changes: object) -> dict[str, Any]:
    """Return the detail of a `report` event; `changes` replace or add keys.

    Args:
        when: setup, call or teardown.
        outcome: passed, failed or skipped, as in pytest's own report.
        **changes: Say `error`, `wasxfail`, `is_strict_xpass`, `xfail` or `report`.
    """
    detail: dict[str, Any] = {"when": when, "outcome": outcome, "duration_s": 0.01, "error": None}
    judged_by_xfail = {"wasxfail": None, "is_strict_xpass": False, "xfail": None}
    return detail | judged_by_xfail | {"report": {"longrepr": None, "sections": []}} | changes


def well_behaved(rank: int, *, stays_in: Phase | None = None) -> list[Step]:
    """Return the script of a rank that passes, or that enters a phase and never leaves it."""
    steps = [
        Step(rank, "forked", {"pid": 1000 + rank}),
        Step(rank, "hello"),
        Step(rank, "ready"),
        Step(rank, "phase", {"phase": "setup"}, on="go"),
        Step(rank, "report", report("setup"), on="go"),
        Step(rank, "phase", {"phase": "call"}, on="go"),
        Step(rank, "report", report("call"), on="go"),
        Step(rank, "parked", on="go"),
        Step(rank, "phase", {"phase": "teardown"}, on="teardown"),
        Step(rank, "report", report("teardown"), on="teardown"),
        Step(rank, "done", on="teardown"),
        Step(rank, "exited", exited(), on="exit"),
    ]
    ends = {"startup": "ready", "setup": "report", "call": "report", "teardown": "report"}
    if stays_in is None:
        return steps
    entered = (
        [step.detail.get("phase") for step in steps].index(stays_in)
        if stays_in in ("setup", "call", "teardown")
        else 0
    )
    return steps
