"""The points that this rank passes, and the faults that are performed there.

The controller is told of a fault before it is performed, because the fault may kill or stop the
rank: where and when it happened is known all the same. In a forked child of the rank no fault is
performed but the slowing down of files.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from pytest_multihost.model.clock import now
from pytest_multihost.model.fault import Fault, Point, PointKind
from pytest_multihost.model.operation import OperationKind
from pytest_multihost.model.spec import RankSpec
from pytest_multihost.nemesis import FaultKind, Strike
from pytest_multihost.nemesis.interpose import FileAccess, FileObserver, matcher, observing_files

Send = Callable[..., None]
"""Sends an event to the controller: its kind, and JSON values by name."""

MAX_POINT_EVENTS = 2_000
"""Points that are sent one by one; those passed later are only counted."""

MAX_FIRED_EVENTS = 20
"""How often the controller is told that one fault has happened."""


@dataclass(slots=True)
class Binding:
    """A fault that waits for its point.

    Attributes:
        index: Its index among the world's faults.
        fault: The fault.
        kind: How it is performed.
        passed: How often its point has been passed.
        fired: How often it has happened.
    """

    index: int
    fault: Fault
    kind: FaultKind
    passed: int = 0
    fired: int = 0


def _at_once(index: int) -> str:  # noqa: ARG001 - as any
    return ""


class _Thread(threading.local):
    """Whether this thread is performing a fault: the points it passes there do not count."""

    is_performing = False


@dataclass(slots=True)
class Points:
    """The points that this rank passes.

    Attributes:
        spec: This rank, and the world that it is part of.
        send: Sends an event to the controller.
        bindings: Its faults.
        sends_all: Whether an event is sent for each point.
        performed: Waits until the fault of this index has been performed from outside, and
            returns what went wrong.
        counts: How often each point has been passed, in the order of the first time.
        healing: Undone when the test's body is over.
    """

    spec: RankSpec
    send: Send
    bindings: list[Binding] = field(default_factory=list)
    sends_all: bool = False
    performed: Callable[[int], str] = _at_once
    counts: dict[tuple[PointKind, str], int] = field(default_factory=dict)
    healing: ExitStack = field(default_factory=ExitStack)
    _sent: int = 0
    _lock: threading.RLock = field(default_factory=threading.RLock)
    _thread: _Thread = field(default_factory=_Thread)
    _owner: int = field(default_factory=os.getpid)
    _is_healed: bool = False

    def pass_point(self, point: PointKind, name: str = "", when: str = "before") -> None:
        """Pass a point: the faults bound to it are performed now, in this thread."""
        __tracebackhide__ = True
        if self._thread.is_performing or os.getpid() != self._owner or self._is_healed:
            return
        with self._lock:
            if when == "before":
                self._count(point, name)
            due = [each for each in self.bindings if _is_due(each, point, name, when)]
        for binding in due:
            self._perform(binding)

    def begin_operation(self, name: str, kind: OperationKind) -> None:
        """Pass the point of an operation that is about to begin."""
        __tracebackhide__ = True
        if kind == "collective" or any(each.fault.at.name == name for each in self.bindings):
            self.pass_point("collective", name)

    def _count(self, point: PointKind, name: str) -> None:
        nth = self.counts.get((point, name), 0) + 1
        self.counts[point, name] = nth
        if self.sends_all and self._sent < MAX_POINT_EVENTS:
            self._sent += 1
            self.send("point", point=point, name=name, nth=nth)

    def _perform(self, binding: Binding) -> None:
        __tracebackhide__ = True
        fault, kind = binding.fault, binding.kind
        detail = kind.announce(fault.params, now())

        def begun() -> None:
            if os.getpid() == self._owner and binding.fired < MAX_FIRED_EVENTS:
                binding.fired += 1
                self._send_fault(binding, "begun", detail)

        def armed(**detail: Any) -> None:  # noqa: ANN401 - JSON values
            self._send_fault(binding, "armed", detail)

        strike = Strike(
            fault=fault,
            place=self.spec,
            detail=detail,
            begun=begun,
            armed=armed,
            healing=self.healing,
            performed=partial(self.performed, binding.index),
        )
        if not kind.tells_itself:
            begun()
        ended = {"resume": True} if "pause" in detail else {}
        if kind.lasts and "network" not in detail:  # the server ends those
            self.healing.callback(self._send_fault, binding, "ended", ended)
        self._thread.is_performing = True
        try:
            kind.perform(strike)
        finally:
            self._thread.is_performing = False
            if not kind.lasts:
                self._send_fault(binding, "ended", ended)

    def _send_fault(self, binding: Binding, phase: str, detail: Mapping[str, Any]) -> None:
        fault = binding.fault
        about = {"index": binding.index, "fault": fault.kind, "at": fault.at.record()}
        self.send("fault", **about, phase=phase, **detail)

    def heal(self) -> None:
        """End every fault, put everything back, and send what was passed."""
        if self._is_healed or os.getpid() != self._owner:
            return
        self._is_healed = True
        self.healing.close()
        if self.bindings or self.sends_all:
            passed = [[*key, count] for key, count in self.counts.items()]
            self.send("points", passed=passed[:MAX_POINT_EVENTS])


def _is_due(binding: Binding, point: PointKind, name: str, when: str) -> bool:
    """Count a passage that concerns a fault; return whether it is the one that is asked for."""
    at = binding.fault.at
    if (at.point, at.when) != (point, when) or not _concerns(at, name):
        return False
    binding.passed += 1
    return binding.passed == at.nth


def _concerns(at: Point, name: str) -> bool:
    if at.point == "io":
        return matcher(at.name)(name)
    return at.name == name or (at.point == "collective" and not at.name)


def observe_files(points: Points, patterns: list[str]) -> None:
    """Make opens, reads and writes of matching files points."""
    matches = [matcher(pattern) for pattern in patterns]

    def before(access: FileAccess) -> None:
        points.pass_point("io", access.path)

    def after(access: FileAccess) -> None:
        """Do nothing: the point is before the access."""

    observer = FileObserver(lambda path: any(each(path) for each in matches), before, after)
    points.healing.enter_context(observing_files(observer))


_current: list[Points] = []


def set_points(points: Points) -> None:
    """Make `points` those of this process."""
    _current[:] = [points]


def pass_point(point: PointKind, name: str = "") -> None:
    """Pass a point of this rank, if it has faults."""
    for points in _current:
        points.pass_point(point, name)


def heal() -> None:
    """End every fault of this rank, and put everything back."""
    for points in _current:
        points.heal()
