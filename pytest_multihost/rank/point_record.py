"""Record the points that this rank passes, for a sweep: a number for each, sent in batches."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field

from pytest_multihost.model.event import PointSite, PointsRecorded
from pytest_multihost.model.fault import Point, PointKind
from pytest_multihost.model.stack import Frame, relative_to
from pytest_multihost.rank.recorder import Recorder

MAX_POINTS = 20_000
"""Number of points that are recorded; later ones are only counted."""

_BATCH = 512

_UNSTEADY = frozenset({"block_until_ready"})
"""Operations whose number depends on timing: no record holds them, as no run repeats it."""


@dataclass(slots=True)
class PointRecord:
    """The points that this rank has passed; not thread-safe.

    What is the same at each passage is a site, which is described once.

    Attributes:
        recorder: Knows the user's line.
        root: pytest's rootdir.
        send: Sends an event to the controller.
    """

    recorder: Recorder
    root: str
    send: Callable[[PointsRecorded], None]
    _sites: dict[tuple[object, ...], int] = field(default_factory=dict)
    _new: list[PointSite] = field(default_factory=list)
    _passed: list[int] = field(default_factory=list)
    _left: int = MAX_POINTS
    _beyond: int = 0
    _main_thread: int = field(default_factory=os.getpid)  # its id is that of the process

    def add(self, point: PointKind, name: str, call: str) -> None:
        """Record a passage, by the thread that calls this."""
        if self._left <= 0:
            self._beyond += 1
            return
        recorder = self.recorder
        thread = recorder.thread
        is_inner = thread.depth > 0 and point == "collective"
        is_main = thread.native_id == self._main_thread
        source = recorder.user_source()
        key = (point, name, call, source, is_main, is_inner)
        site = self._sites.get(key)
        if site is None:
            if point == "collective" and name in _UNSTEADY:
                return
            site = self._sites[key] = len(self._sites)
            frame = recorder.frame_of(source)
            if frame is not None:
                file = relative_to(self.root, frame.file)
                frame = Frame(file, frame.line, frame.function)
            self._new.append(PointSite(Point(point, name, call=call), frame, is_main, is_inner))
        self._passed.append(site)
        self._left -= 1
        if len(self._passed) >= _BATCH:
            self.flush()

    def flush(self, *, is_all: bool = False) -> None:
        """Send what has not been sent; `is_all`: nothing more will be."""
        new, passed, beyond = tuple(self._new), tuple(self._passed), self._beyond
        self._new, self._passed, self._beyond = [], [], 0
        if passed or beyond or is_all:
            self.send(PointsRecorded(new, passed, beyond, is_all))
