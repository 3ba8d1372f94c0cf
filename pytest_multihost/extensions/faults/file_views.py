"""Faults of this rank's view of files: folders in another order, files of others not yet there."""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from time import CLOCK_REALTIME, clock_gettime, sleep  # by name: the test may replace them

from pytest_multihost.core.model.event import now
from pytest_multihost.core.model.fault import START
from pytest_multihost.faults.kind import FaultKind, Strike, seconds, text
from pytest_multihost.intercept.files import (
    FileAccess,
    FileObserver,
    matcher,
    observing_files,
)

CLOCK_REALTIME_COARSE = 5
"""The clock of the times of files (linux/time.h); Python has no name for it."""

_TICK_S = 0.01
"""How far that clock may be behind the others."""

_AT_FDCWD, _STATX_BYTES, _STATX_CTIME, _STATX_BTIME = -100, 256, 0x80, 0x800


def _shuffle(strike: Strike) -> None:
    """List matching folders in reverse, so that two names suffice for another order."""
    fits = matcher(strike.fault.params["path"])

    def listed(_path: str, names: Sequence[str]) -> Sequence[str]:
        strike.begun()
        strike.met()
        return names[::-1]

    observer = FileObserver(
        lambda path: fits(path) or fits(f"{path}/"),
        before=lambda _: None,
        calls=frozenset({"listdir"}),
        listed=listed,
    )
    strike.armed()
    strike.healing.enter_context(observing_files(observer, strike.more_modules))


@dataclass(slots=True)
class _StaleView:
    """This rank's view of the files and folders that other ranks make from now on.

    Attributes:
        fits: Whether the fault concerns a path.
        since_s: Since when, on the wall clock of file systems.
        ahead_s: Returns how far the world's wall clock is ahead of that one.
        known: Paths that this rank has made or seen.
        moved: Folders and files that it has moved, with all that is in them.
        made_ahead_s: Hidden paths, each with `ahead_s` at this rank's first look for it: about the
            value when the file was made.
    """

    strike: Strike
    fits: Callable[[str], bool]
    since_s: float
    ahead_s: Callable[[], float]
    known: set[str] = field(default_factory=set)
    moved: set[str] = field(default_factory=set)
    made_ahead_s: dict[str, float] = field(default_factory=dict)

    def before(self, access: FileAccess) -> None:
        """Fail if a file is not visible yet; remember the files of this rank itself."""
        if access.call == "rename":
            self.moved.add(access.path)
        elif access.makes:
            self.known.add(access.path)
        elif self.is_hidden(access.path):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), access.path)

    def listed(self, folder: str, names: Sequence[str]) -> Sequence[str]:
        """Return the visible names in a folder."""
        return [name for name in names if not self.is_hidden(str(PurePath(folder, name)))]

    def is_hidden(self, path: str) -> bool:
        """Whether another rank has made a path since, and has changed it too recently."""
        above = (path, *map(str, PurePath(path).parents))
        if not self.fits(path) or path in self.known or not self.moved.isdisjoint(above):
            return False
        times = born_and_changed_s(path)
        if times is None:
            return False
        made_ahead_s = self.made_ahead_s.setdefault(path, self.ahead_s())
        seen_s = times[1] + made_ahead_s + self.strike.fault.params["seconds"]
        if times[0] >= self.since_s and clock_gettime(CLOCK_REALTIME) < seen_s:
            self.strike.begun()
            self.strike.met()
            return True
        self.known.add(path)
        return False


def _next_tick_s() -> float:
    """Wait until the clock of files has moved, and return its time: existing files are older."""
    before_s = clock_gettime(CLOCK_REALTIME_COARSE)
    while (since_s := clock_gettime(CLOCK_REALTIME_COARSE)) == before_s:
        sleep(0.001)
    return since_s


def _hide_new(strike: Strike) -> None:
    ahead_s = strike.ahead_s
    if strike.fault.at == START:  # of the test, which others may have begun before this rank
        since_s = clock_gettime(CLOCK_REALTIME_COARSE) - (now() - strike.ready_s) - _TICK_S
    else:
        since_s = _next_tick_s()
    view = _StaleView(strike, matcher(strike.fault.params["path"]), since_s - ahead_s(), ahead_s)
    observer = FileObserver(
        matcher("*"),  # also the folders that matching files are in
        before=view.before,
        calls=frozenset({"link", "listdir", "mkdir", "open", "rename", "stat"}),
        listed=view.listed,
    )
    strike.armed()
    strike.healing.enter_context(observing_files(observer, strike.more_modules))


def born_and_changed_s(path: str) -> tuple[float, float] | None:
    """Return when a file was made and last changed or moved, by statx(2); None if there is none.

    Python knows no time of birth. On a file system without one, a file counts as made at its last
    change, and a folder at time 0.
    """
    buffer = ctypes.create_string_buffer(_STATX_BYTES)
    wanted = _STATX_CTIME | _STATX_BTIME
    if ctypes.CDLL(None).statx(_AT_FDCWD, os.fsencode(path), 0, wanted, buffer):
        return None
    [filled], [mode] = struct.unpack_from("I", buffer), struct.unpack_from("H", buffer, 28)
    born, changed = (
        whole_s + part_ns / 1e9
        for whole_s, part_ns in (struct.unpack_from("qI", buffer, place) for place in (80, 96))
    )
    if not filled & _STATX_BTIME:
        born = 0.0 if stat.S_ISDIR(mode) else changed
    return born, changed


FILE_VIEWS = (
    FaultKind(
        name="shuffled_listing",
        perform=_shuffle,
        params={"path": text},
        required=frozenset({"path"}),
        lasts=True,
        tells_itself=True,
        sentence="{who} listed {path} in another order, {then}",
        mending="sort-listings",
    ),
    FaultKind(
        name="stale_files",
        perform=_hide_new,
        params={"seconds": seconds, "path": text},
        required=frozenset({"path", "seconds"}),
        lasts=True,
        tells_itself=True,
        sentence="{who} did not see other ranks' new files ({path}) for {seconds} s, {then}",
        mending="wait-by-an-operation",
    ),
)
