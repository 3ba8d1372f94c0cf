"""Record the points that this rank passes, for a sweep, and send them in batches of numbers."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic  # by name: the test may replace it in its module
from types import FrameType

from pytest_multihost.core.cpython_private import get_frame
from pytest_multihost.core.model.event import PointSite, PointsRecorded
from pytest_multihost.core.model.fault import UNKNOWN_PATH, Point, PointKind
from pytest_multihost.core.model.stack import Frame, relative_to
from pytest_multihost.core.rank.recorder import Recorder, SourceRef
from pytest_multihost.core.rank.recorder.exception_paths import error_path
from pytest_multihost.extensions.faults.meetings import meets_all

MAX_POINTS = 20_000
"""Maximum number of recorded points; later ones are only counted."""

_BATCH = 512

_EVERY_S = 0.05
"""The next point after this time is sent at once, with all points before it."""

SiteKey = tuple[PointKind, str, str, str, SourceRef, bool, bool, bool]
"""Kind, name, call and other name of a point, the user's line, main thread, inside another, and
whether a call may make a file."""

OperationKey = tuple[str, SourceRef, bool, int]
"""Name of an operation, the user's line, main thread, and inside how many others."""

_UNSTEADY = frozenset({"block_until_ready"})
"""Operations that are not recorded, because their number depends on timing and never repeats."""


@dataclass(slots=True)
class PointRecord:
    """The points that this rank has passed.

    A site holds everything that is the same at each passage of a point, and is sent once.

    Attributes:
        send: Sends an event to the controller.
        has_faults: Whether the world has faults. Then it may hang, so all earlier points are sent
            at each operation. That takes 10 us, too much for an undisturbed run.
    """

    recorder: Recorder
    root: str
    send: Callable[[PointsRecorded], None]
    has_faults: bool = False
    _sites: dict[SiteKey, int] = field(default_factory=dict)
    _operations: dict[OperationKey, int] = field(default_factory=dict)
    _new: list[PointSite] = field(default_factory=list)
    _passed: list[int] = field(default_factory=list)
    _left: int = MAX_POINTS
    _beyond: int = 0
    _due_s: float = 0.0
    _lock: threading.RLock = field(default_factory=threading.RLock)  # sending may pass a point
    _main_thread: int = field(default_factory=os.getpid)  # its id is that of the process

    def add(
        self,
        point: PointKind,
        name: str,
        call: str = "",
        other: str = "",
        *,
        makes: bool = False,
    ) -> None:
        """Record that the calling thread passes a point."""
        thread, caller = self.recorder.thread, get_frame(1)
        source = self.recorder.user_source(2)
        is_main, is_inside = thread.native_id == self._main_thread, thread.depth > 0
        key: SiteKey = (point, name, call, other, source, is_main, is_inside, makes)
        site = self._sites.get(key)
        if site is None:
            if point == "collective" and name in _UNSTEADY:
                return
            with self._lock:
                site = self._sites.get(key)
                if site is None:
                    site = self._add_site(key, caller)
        self._pass(site, is_operation=point == "collective")

    def add_operation(self, name: str, source: SourceRef) -> None:
        """Record an operation that begins at a known line, in half the time of `add`.

        A loop of collectives calls this thousands of times a second.
        """
        thread = self.recorder.thread
        is_main, depth = thread.native_id == self._main_thread, thread.depth
        short = (name, source, is_main, depth)
        site = self._operations.get(short)
        if site is None:
            if name in _UNSTEADY:
                return
            point: PointKind = "collective"
            key = (point, name, "", "", source, is_main, depth > 0, False)
            with self._lock:
                site = self._sites.get(key)
                if site is None:
                    site = self._add_site(key, get_frame(1))
                self._operations[short] = site
        self._pass(site, is_operation=True)

    def _pass(self, site: int, *, is_operation: bool) -> None:
        """Record a passage; send all new passages if it is time."""
        self._passed.append(site)
        # In an operation the rank may wait until the harness ends it.
        is_due = self.has_faults and is_operation
        if is_due or monotonic() >= self._due_s or len(self._passed) >= _BATCH:
            self.flush()

    def _add_site(self, key: SiteKey, caller: FrameType) -> int:
        """Describe a site that is passed for the first time; the caller holds the lock."""
        point, name, call, other, source, is_main, is_inside, makes = key
        frame = self.recorder.frame_of(source)
        if frame is not None:
            frame = self._relative(frame)
        is_inner = is_inside and point == "collective"
        self._new.append(
            PointSite(
                Point(point, name, call=call),
                frame,
                is_main,
                is_inner,
                other,
                makes,
                meets_all=point == "collective" and meets_all(caller, name, self.recorder.size),
                error_path=error_path(caller) if point == "io" else UNKNOWN_PATH,
            )
        )
        self._sites[key] = number = len(self._sites)
        return number

    def _relative(self, frame: Frame) -> Frame:
        return Frame(relative_to(self.root, frame.file), frame.line, frame.function)

    def flush(self, *, is_all: bool = False) -> None:
        """Send all points not sent yet.

        Args:
            is_all: Whether this is the last call.
        """
        with self._lock:
            # Other threads append without the lock: points appended meanwhile wait for the next
            # call.
            count = len(self._passed)
            passed = tuple(self._passed[: min(count, self._left)])
            del self._passed[:count]
            self._left -= len(passed)
            self._beyond += count - len(passed)
            self._due_s = monotonic() + _EVERY_S
            new: tuple[PointSite, ...] = ()
            if passed:
                new, self._new = tuple(self._new), []
            if passed or is_all:
                beyond = self._beyond if is_all else 0
                self.send(PointsRecorded(new, passed, beyond, is_all))
