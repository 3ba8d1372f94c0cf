"""The points that this rank passes, and the faults that are performed at them.

A rank reports a fault to the controller before performing it, because the fault may kill or stop
the rank. So its place and time are always known. In a forked child of the rank only slow file
access is performed.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from time import sleep  # by name: the test may replace it in its module
from types import FrameType
from typing import Any

from pytest_multihost.core.cpython_private import get_frame
from pytest_multihost.core.model.event import (
    FaultChanged,
    FaultMet,
    PointsPassed,
    RankEventBody,
    now,
)
from pytest_multihost.core.model.fault import IO_CALLS, Fault, Point, PointKind
from pytest_multihost.core.model.json_values import from_json, to_json
from pytest_multihost.core.model.operation import OperationKind
from pytest_multihost.core.model.spec import RankSpec, WorldSpec
from pytest_multihost.core.model.stack import Frame
from pytest_multihost.core.procfs import children_of
from pytest_multihost.core.rank.recorder import (
    Recorder,
    SourceRef,
    after_import,
    user_frames,
)
from pytest_multihost.core.rank.services import RankTest, current_clock
from pytest_multihost.extensions.faults.point_record import PointRecord
from pytest_multihost.extensions.faults.portable_names import portable_glob
from pytest_multihost.faults.kind import FaultKind, Strike
from pytest_multihost.intercept.batches import count_batches
from pytest_multihost.intercept.calls import wrap_calls
from pytest_multihost.intercept.files import (
    FileAccess,
    FileObserver,
    matcher,
    observing_files,
)
from pytest_multihost.intercept.native_files import report_native_files
from pytest_multihost.intercept.targets import load_target

Send = Callable[[RankEventBody], None]
"""Sends an event to the controller."""

_MAX_COUNTS = 2_000
"""Maximum number of different points whose counts are sent."""

_MAX_FIRED_EVENTS = 20
"""Maximum number of "begun" events sent for one fault that only this rank performs."""

_MAX_MEETINGS = 200
"""Maximum number of events sent about the user's lines that meet a fault's effect."""

_LOADERS = ("torch.utils.data:DataLoader", "grain.python:DataLoader")
"""Data loaders whose batches are recorded if all points are."""


@dataclass(slots=True)
class Binding:
    """A fault bound to its point.

    Attributes:
        index: Its index among the world's faults.
        passed: How often its point has been passed.
        fired: How often the fault has been performed.
        met_at: The user's frames that have met its effect last.
        meetings: How many such meetings have been sent.
    """

    index: int
    fault: Fault
    kind: FaultKind
    passed: int = 0
    fired: int = 0
    met_at: tuple[Frame, ...] = ()
    meetings: int = 0


class _PassingThread(threading.local):
    """Whether this thread is performing a fault: points passed meanwhile do not count."""

    is_performing = False


@dataclass(slots=True, weakref_slot=True)
class Points:
    """The points that this rank passes.

    Attributes:
        send: Sends an event to the controller.
        performed: See `RankTest.await_performed`.
        record: The record of all points; None: they are not recorded.
        counts: How often each point has been passed, in order of first passage; empty without
            faults.
        healing: Callbacks that undo the faults after the test's body.
        more_modules: Modules of the test that are not in `sys.modules`.
        ready_s: When the rank was ready for the test; see `Strike`.
    """

    spec: RankSpec
    send: Send
    bindings: list[Binding]
    performed: Callable[[int], str]
    record: PointRecord | None = None
    counts: dict[tuple[PointKind, str, str], int] = field(default_factory=dict)
    healing: ExitStack = field(default_factory=ExitStack)
    more_modules: tuple[object, ...] = ()
    ready_s: float = 0.0
    _folders: tuple[str, ...] = ()
    _lock: threading.RLock = field(default_factory=threading.RLock)
    _thread: _PassingThread = field(default_factory=_PassingThread)
    _owner: int = field(default_factory=os.getpid)
    _is_healed: bool = False
    _is_forked: bool = False

    def leave_fork(self) -> None:
        """Remember that this is a forked child, whose operations are not the rank's."""
        self._is_forked = True

    def pass_point(
        self,
        point: PointKind,
        name: str = "",
        when: str = "before",
        call: str = "",
        other: str = "",
        *,
        makes: bool = False,
    ) -> None:
        """Pass a point: perform the faults bound to it, in this thread.

        Args:
            name: The name of the function, file, operation or data loader at the point.
            when: "before" or "after" the call at the point.
            call: The kind of a call on a file, or of an operation.
            other: The second path of a rename or link; both paths pass the point.
            makes: Whether a call on a file may create it.
        """
        __tracebackhide__ = True
        if self._thread.is_performing or os.getpid() != self._owner or self._is_healed:
            return
        shown = (point, name, "")
        if point == "io":
            shown = point, portable_glob(name, self._folders, _pids()), call
        if self.record is not None and when == "before":
            old = portable_glob(other, self._folders, _pids()) if other else ""
            self.record.add(*shown, old, makes=makes)
        if not self.bindings:
            return
        with self._lock:
            if when == "before":
                self.counts[shown] = self.counts.get(shown, 0) + 1
            names = (name, other) if other else (name,)
            due = [each for each in self.bindings if _is_due(each, point, names, when, call)]
        for binding in due:
            if self._is_first(binding):
                self._perform(binding, Point(point, name, call=call))

    def touch_file(self, access: FileAccess) -> None:
        """Pass the point of a call on a file, unless pytest or this package makes the call."""
        __tracebackhide__ = True
        if not _is_not_the_tests():
            path, call, other = access.path, access.call, access.other
            self.pass_point("io", path, call=call, other=other, makes=access.makes)

    def begin_operation(self, name: str, kind: OperationKind, source: SourceRef) -> None:
        """Pass the point of an operation that is about to begin at the user's line `source`."""
        __tracebackhide__ = True
        if self.bindings:
            if kind == "collective" or self.record is not None or self._names(name):
                self.pass_point("collective", name, call=kind)
        elif self.record is not None and not self._is_forked:  # the cheapest way
            self.record.add_operation(name, source)

    def _names(self, operation: str) -> bool:
        return any(each.fault.at.name == operation for each in self.bindings)

    def _is_first(self, binding: Binding) -> bool:
        """Return whether this rank is to perform a fault that only one rank performs."""
        if binding.fault.is_first and not binding.fired:
            claim = Path(self.spec.scratch, f"fault-{binding.index}")
            self._thread.is_performing = True
            try:
                claim.touch(exist_ok=False)
            except FileExistsError:
                return False
            finally:
                self._thread.is_performing = False
        return True

    def _perform(self, binding: Binding, passed: Point) -> None:
        __tracebackhide__ = True
        fault, kind = binding.fault, binding.kind
        if self.record is not None:  # the fault may end this rank
            self.record.flush()
        detail = kind.announce(fault.params, now())

        def send(phase: str, detail: Mapping[str, Any]) -> None:
            self.send(_fault_changed(binding.index, fault, phase, detail))

        def begun() -> None:
            binding.fired += 1
            if os.getpid() == self._owner and (detail or binding.fired <= _MAX_FIRED_EVENTS):
                send("begun", detail)

        def met() -> None:
            frames = user_frames(get_frame(1))
            is_news = frames and frames != binding.met_at and binding.meetings < _MAX_MEETINGS
            if is_news and os.getpid() == self._owner:
                binding.met_at, binding.meetings = frames, binding.meetings + 1
                self.send(FaultMet(binding.index, frames))

        strike = Strike(
            fault=fault,
            place=self.spec,
            passed=passed,
            more_modules=self.more_modules,
            detail=detail,
            begun=begun,
            armed=lambda **detail: send("armed", detail),
            healing=self.healing,
            performed=partial(self.performed, binding.index),
            ready_s=self.ready_s,
            ahead_s=lambda: current_clock().ahead_s,
            met=met,
        )
        if not kind.tells_itself:
            begun()
        ended = {"resume": True} if "pause" in detail else {}
        if kind.lasts and not kind.service:  # a service ends its faults for all ranks at once
            self.healing.callback(send, "ended", ended)

        over = partial(send, "ended", ended)
        self._perform_part(binding, strike, partial(kind.perform, strike), over)

    def _perform_part(
        self,
        binding: Binding,
        strike: Strike,
        part: Callable[[], Callable[[], None] | None],
        over: Callable[[], None],
    ) -> None:
        """Perform a part of a fault in this thread, and the rest in another.

        Args:
            over: Reports to the controller that the fault is over.
        """
        __tracebackhide__ = True
        rest = None
        self._thread.is_performing = True
        try:
            rest = part()
            if rest is not None:
                args = binding, strike, rest, over
                threading.Thread(target=self._perform_part, args=args, daemon=True).start()
        finally:
            self._thread.is_performing = False
            is_told = strike.detail or binding.fired <= _MAX_FIRED_EVENTS
            if rest is None and not binding.kind.lasts and is_told:
                over()

    def count_batches(self, target: str) -> None:
        """Make the batches of a data loader points, until the faults are healed.

        Raises:
            SettingError: The loader does not exist, or cannot be replaced.
        """
        if not self._is_healed and os.getpid() == self._owner:
            on_draw = partial(self.pass_point, "batch", target)
            count_batches(target, on_draw, self.healing, more_modules=self.more_modules)

    def set_folders(self) -> None:
        """Remember the folders that have other names in other runs."""
        scratch = self.spec.scratch
        own = (f"{scratch}/rank-{self.spec.rank}", f"{scratch}/shared", scratch)
        self._folders = (*own, self.spec.directory, str(Path.cwd()), tempfile.gettempdir())

    def heal(self) -> None:
        """End and undo all faults, and send the counts of the points passed."""
        if self._is_healed or os.getpid() != self._owner:
            return
        self._is_healed = True
        self.healing.close()
        if self.record is not None:
            self.record.flush(is_all=True)
        if self.bindings:
            passed = tuple((*point, count) for point, count in self.counts.items())
            self.send(PointsPassed(passed[:_MAX_COUNTS]))


def _fault_changed(index: int, fault: Fault, phase: str, detail: Mapping[str, Any]) -> FaultChanged:
    """Return the event of a fault; `detail` may hold anything, because plugins define kinds."""
    data = {"index": index, "fault": fault.kind, "at": to_json(fault.at), "phase": phase}
    return from_json(FaultChanged, {**detail, **data, "kind": FaultChanged.kind})


@cache
def _pids() -> frozenset[int]:
    """Return the processes of this world: this one, its parent, and the parent's children."""
    parent = os.getppid()
    return frozenset({os.getpid(), parent, *children_of(parent)})


_FILE_MODULES = frozenset(
    {"contextlib", "genericpath", "glob", "os", "pathlib", "posixpath", "shutil", "tempfile"}
)
"""Modules that touch files on behalf of their callers."""

CALLS_FOR_OTHERS = "_CALLS_FOR_OTHERS"
"""A module of this package that has this name reports the test's calls on files, or calls functions
of others for the test: their calls on files count as the test's."""

_CALLS_FOR_OTHERS = True

_HARNESS = frozenset({"_pytest", "pytest_multihost"})

_READERS_OF_CODE = frozenset(
    {"importlib", "inspect", "linecache", "pkgutil", "tokenize", "traceback", "warnings"}
)
"""Modules that search for source code; `inspect` searches the folders of all modules at once."""


_PASSES_ON = "passes on"
_NOT_THE_TESTS = "not the test's"
_THE_TESTS = "the test's"


def _is_not_the_tests() -> bool:
    """Return whether pytest or this package touches a file, or a module that reads source code."""
    frame: FrameType | None = get_frame(1)
    while frame is not None:
        space = frame.f_globals
        kind = _kind_of_module(str(space.get("__name__")))
        if kind is not _PASSES_ON and CALLS_FOR_OTHERS not in space:
            return kind is _NOT_THE_TESTS
        frame = frame.f_back
    return False


@cache
def _kind_of_module(name: str) -> str:
    """Return whose calls on files those of a module are."""
    room = name.partition(".")[0]
    if room in _FILE_MODULES:
        return _PASSES_ON
    return _NOT_THE_TESTS if room in _HARNESS or room in _READERS_OF_CODE else _THE_TESTS


def _is_due(binding: Binding, point: PointKind, names: Sequence[str], when: str, call: str) -> bool:
    """Count a passage of a fault's point; return whether this passage triggers the fault."""
    at = binding.fault.at
    if (at.point, at.when) != (point, when):
        return False
    if at.point == "io":
        is_meant = call in at.io_calls and any(map(matcher(at.name), names))
    elif at.point == "collective" and not at.name:
        is_meant = call == "collective"
    else:
        is_meant = at.name in names
    if not is_meant:
        return False
    binding.passed += 1
    return binding.passed == at.nth or (at.onwards and binding.passed > at.nth)


def _is_before_the_test(fault: Fault, world: WorldSpec) -> bool:
    return world.facts_of(fault).is_before_test or fault.at.point == "rendezvous"


def delay_start(spec: RankSpec, send: Send) -> None:
    """Delay this rank's rendezvous as its faults require; report faults already performed."""
    for index, fault in enumerate(spec.world.faults):
        if spec.rank in fault.ranks and _is_before_the_test(fault, spec.world):
            detail: dict[str, Any] = {}
            after_s = fault.params.get("heals_after")
            if fault.at.point == "rendezvous" and after_s is not None:  # a service has performed it
                detail = {"until_s": now() + after_s}
            send(_fault_changed(index, fault, "begun", detail))
    mine = (each for each in spec.world.faults if spec.rank in each.ranks)
    if seconds := sum(each.params["seconds"] for each in mine if each.kind == "start_skew"):
        sleep(seconds)


def bind_faults(
    spec: RankSpec,
    kinds: Mapping[str, FaultKind],
    recorder: Recorder,
    test: RankTest,
) -> Points:
    """Return the points of this rank with its faults bound to them; wrap nothing yet.

    Args:
        kinds: All kinds of faults, by name.
        recorder: Its listeners are called when operations begin.
    """
    bindings = [
        Binding(index, fault, kinds[fault.kind])
        for index, fault in enumerate(spec.world.faults)
        if spec.rank in fault.ranks and not _is_before_the_test(fault, spec.world)
    ]
    record = None
    if spec.world.tells_points:
        record = PointRecord(recorder, test.root, test.send, has_faults=bool(spec.world.faults))
    points = Points(spec, test.send, bindings, test.await_performed, record, ready_s=test.ready_s)
    reference = weakref.WeakMethod(points.leave_fork)  # a hook at fork is never removed
    os.register_at_fork(after_in_child=lambda: (leave := reference()) and leave())
    recorder.has_streams = any(each.fault.kind == "stream_order" for each in bindings)
    points.healing.callback(setattr, recorder, "has_streams", False)  # noqa: FBT003 - its value
    if bindings or record is not None:
        recorder.on_begin.append(points.begin_operation)
        points.healing.callback(recorder.on_begin.remove, points.begin_operation)
    return points


def start_faults(points: Points, more_modules: Iterable[object] = ()) -> None:
    """Wrap the functions whose calls are points, and pass the start of the test.

    Args:
        more_modules: Modules of the test that are not in `sys.modules`.

    Raises:
        SettingError: There is no such function; the message names the nearest.
    """
    points.more_modules = more_modules = tuple(more_modules)
    faults = [each.fault for each in points.bindings]
    told = points.spec.world.told_calls if points.record is not None else ()
    for target in dict.fromkeys((*_named(faults, "call"), *told)):
        _once_imported(target, partial(_wrap_calls, points, target), points)
    asked = points.spec.world.told_batches if points.record is not None else ()
    named = list(dict.fromkeys((*_named(faults, "batch"), *asked)))
    for target in named:
        _once_imported(target, partial(points.count_batches, target), points)
    for target in _LOADERS if points.record is not None else ():
        if target not in named:
            module = target.partition(":")[0]
            after_import(module, lambda _, target=target: points.count_batches(target))  # type: ignore[misc]
    if patterns := [*_named(faults, "io"), *(["*"] if points.record is not None else ())]:
        points.set_folders()
        report_native_files()
        observer = _file_observer(points, patterns)
        points.healing.enter_context(observing_files(observer, more_modules))
    if points.bindings:
        points.pass_point("start")


def _wrap_calls(points: Points, target: str) -> None:
    on_call = partial(points.pass_point, "call", target)
    wrap_calls(load_target(target), on_call, points.healing, more_modules=points.more_modules)


def _once_imported(target: str, act: Callable[[], None], points: Points) -> None:
    """Act at once, or if a token names the target: as soon as the test has imported its module."""
    module = target.partition(":")[0]
    if points.spec.world.imports_named or module in sys.modules:
        act()
    else:
        after_import(module, lambda _: act())


def _file_observer(points: Points, patterns: Iterable[str]) -> FileObserver:
    matches = [matcher(pattern) for pattern in patterns]
    bound = (each.fault.at for each in points.bindings)
    calls = frozenset[str]().union(*(each.io_calls for each in bound if each.point == "io"))
    return FileObserver(
        lambda path: any(each(path) for each in matches),
        before=points.touch_file,
        calls=IO_CALLS if points.record is not None else calls,
    )


def _named(faults: Iterable[Fault], point: str) -> list[str]:
    return list(dict.fromkeys(each.at.name for each in faults if each.at.point == point))
