"""The points that this rank passes, and the faults that strike it there.

A fault is told to the controller before it is performed: whatever it does to the rank, it is known
where and when. In a forked child of the rank nothing strikes but what slows down files.
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

Tell = Callable[..., None]

MAX_TOLD = 2_000
"""Points that are told one by one; what is passed later is only counted."""

MAX_FIRED = 20
"""How often it is told that one fault has struck."""


@dataclass(slots=True)
class Binding:
    """A fault that waits for its point.

    Attributes:
        index: Its place among the world's faults.
        fault: Which.
        kind: What it does.
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
    """Whether this thread is performing a fault: what it passes there does not count."""

    is_striking = False


@dataclass(slots=True)
class Points:
    """What this rank passes.

    Attributes:
        place: This rank's place in its world.
        tell: Tells the controller.
        bindings: Its faults.
        tells_all: Whether each point is told.
        performed: Waits until a fault that is performed from outside has been, by its place, and
            returns what went wrong.
        counts: How often each has been passed, in the order of the first time.
        healing: Undone when the test's body is over.
    """

    place: RankSpec
    tell: Tell
    bindings: list[Binding] = field(default_factory=list)
    tells_all: bool = False
    performed: Callable[[int], str] = _at_once
    counts: dict[tuple[PointKind, str], int] = field(default_factory=dict)
    healing: ExitStack = field(default_factory=ExitStack)
    _told: int = 0
    _lock: threading.RLock = field(default_factory=threading.RLock)
    _thread: _Thread = field(default_factory=_Thread)
    _owner: int = field(default_factory=os.getpid)
    _is_healed: bool = False

    def pass_point(self, point: PointKind, name: str = "", when: str = "before") -> None:
        """Pass a point: whatever is bound to it happens now, in this thread."""
        __tracebackhide__ = True
        if self._thread.is_striking or os.getpid() != self._owner or self._is_healed:
            return
        with self._lock:
            if when == "before":
                self._count(point, name)
            due = [each for each in self.bindings if _is_due(each, point, name, when)]
        for binding in due:
            self._strike(binding)

    def begin_operation(self, name: str, kind: OperationKind) -> None:
        """Pass the point of an operation that is about to begin."""
        __tracebackhide__ = True
        if kind == "collective" or any(each.fault.at.name == name for each in self.bindings):
            self.pass_point("collective", name)

    def _count(self, point: PointKind, name: str) -> None:
        nth = self.counts.get((point, name), 0) + 1
        self.counts[point, name] = nth
        if self.tells_all and self._told < MAX_TOLD:
            self._told += 1
            self.tell("point", point=point, name=name, nth=nth)

    def _strike(self, binding: Binding) -> None:
        __tracebackhide__ = True
        fault, kind = binding.fault, binding.kind
        detail = kind.announce(fault.params, now())

        def begun() -> None:
            if os.getpid() == self._owner and binding.fired < MAX_FIRED:
                binding.fired += 1
                self._tell_fault(binding, "begun", detail)

        def armed(**told: Any) -> None:  # noqa: ANN401 - JSON values
            self._tell_fault(binding, "armed", told)

        strike = Strike(
            fault=fault,
            place=self.place,
            detail=detail,
            begun=begun,
            armed=armed,
            healing=self.healing,
            performed=partial(self.performed, binding.index),
        )
        if not kind.tells_itself:
            begun()
        ended = {"resume": True} if "pause" in detail else {}
        if kind.lasts and "network" not in detail:  # that ends when all have left the test
            self.healing.callback(self._tell_fault, binding, "ended", ended)
        self._thread.is_striking = True
        try:
            kind.perform(strike)
        finally:
            self._thread.is_striking = False
            if not kind.lasts:
                self._tell_fault(binding, "ended", ended)

    def _tell_fault(self, binding: Binding, phase: str, detail: Mapping[str, Any]) -> None:
        fault = binding.fault
        about = {"index": binding.index, "fault": fault.kind, "at": fault.at.record()}
        self.tell("fault", **about, phase=phase, **detail)

    def heal(self) -> None:
        """End every fault, put everything back, and say what was passed."""
        if self._is_healed or os.getpid() != self._owner:
            return
        self._is_healed = True
        self.healing.close()
        if self.bindings or self.tells_all:
            passed = [[*key, count] for key, count in self.counts.items()]
            self.tell("points", passed=passed[:MAX_TOLD])


def _is_due(binding: Binding, point: PointKind, name: str, when: str) -> bool:
    """Count a passage that concerns a fault, and return whether it is the one."""
    at = binding.fault.at
    if (at.point, at.when) != (point, when) or not _concerns(at, name):
        return False
    binding.passed += 1
    return binding.passed == at.nth


def _concerns(at: Point, name: str) -> bool:
    if at.point == "io":
        return matcher(at.name)(name)
    return at.name == name or (at.point == "collective" and not at.name)


def watch_files(points: Points, patterns: list[str]) -> None:
    """Have opens, reads and writes of matching files be points."""
    matches = [matcher(pattern) for pattern in patterns]

    def before(access: FileAccess) -> None:
        points.pass_point("io", access.path)

    def after(access: FileAccess) -> None:
        """Let it be over."""

    observer = FileObserver(lambda path: any(each(path) for each in matches), before, after)
    points.healing.enter_context(observing_files(observer))


_current: list[Points] = []


def enter_points(points: Points) -> None:
    """Make `points` those of this process."""
    _current[:] = [points]


def pass_point(point: PointKind, name: str = "") -> None:
    """Pass a point of this rank, if it is armed."""
    for points in _current:
        points.pass_point(point, name)


def heal() -> None:
    """End every fault of this rank, and put everything back."""
    for points in _current:
        points.heal()
