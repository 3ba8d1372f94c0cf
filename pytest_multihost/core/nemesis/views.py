"""Faults that make one rank see other things than the rest: its clock, files, results of calls."""

from __future__ import annotations

import copyreg
import ctypes
import datetime
import errno
import os
import stat
import struct
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import PurePath
from time import CLOCK_REALTIME, clock_gettime, sleep  # by name: the test may replace them
from types import SimpleNamespace
from typing import Any, NoReturn

from pytest_multihost.core.model.collectives import COLLECTIVES
from pytest_multihost.core.model.event import now
from pytest_multihost.core.model.fault import FIELD_ERRORS, MAX_SECONDS, START
from pytest_multihost.core.nemesis.interpose import (
    FileAccess,
    FileObserver,
    matcher,
    observing_files,
)
from pytest_multihost.core.nemesis.kind import (
    FaultKind,
    Strike,
    error_name,
    error_number,
    is_number,
    must_be,
    seconds,
    text,
)
from pytest_multihost.core.nemesis.targets import Replaced, replace_names

# The fault `clock_skew`: this rank's wall clock shows another time, as Python code reads it.
#
# `time.monotonic` and waits, the times of files, and the clocks that C++ reads are unchanged.


Function = Callable[..., Any]
"""A function of `time`, or its replacement."""


def _skew(strike: Strike) -> None:
    """Replace the functions and classes that give the time, wherever they have been imported."""
    seconds = strike.fault.params["seconds"]
    dates = [(datetime.datetime, _datetime(seconds)), (datetime.date, _date(seconds))]
    times = [(getattr(time, each.__name__), each) for each in _functions(seconds)]
    replace_names((*dates, *times), strike.more_modules)
    back = [(new, old) for old, new in (*dates, *times)]
    strike.healing.callback(replace_names, back, strike.more_modules)
    for real, _ in dates:
        copyreg.pickle(real, _reduced)
        strike.healing.callback(copyreg.dispatch_table.pop, real)


def _reduced(date: Any) -> tuple[Function, tuple[object, ...]]:  # noqa: ANN401 - of either class
    """Return how pickle rebuilds a date: not by its class, which pickle cannot find for now."""
    return _date_of, (type(date).__name__, *date.__reduce__()[1])


def _date_of(name: str, *state: object) -> object:
    return getattr(datetime, name)(*state)


def _functions(by_s: float) -> Iterator[Function]:
    """Yield replacements for functions of the module `time`, under their names."""
    real: Any = SimpleNamespace(**vars(time))
    by_ns = round(by_s * 1e9)

    def now() -> float:
        return float(real.time() + by_s)

    def time_ns() -> int:
        return int(real.time_ns() + by_ns)

    def clock(read: Function, by: float, number: int) -> object:
        return read(number) + (by if number == time.CLOCK_REALTIME else 0)

    def convert(function: Function, seconds: float | None = None) -> object:
        return function(now() if seconds is None else seconds)

    def asctime(given: object = None) -> object:
        return real.asctime(real.localtime(now()) if given is None else given)

    def strftime(text: str, given: object = None) -> object:
        return real.strftime(text, real.localtime(now()) if given is None else given)

    yield _named("time", now)
    yield time_ns
    yield _named("clock_gettime", partial(clock, real.clock_gettime, by_s))
    yield _named("clock_gettime_ns", partial(clock, real.clock_gettime_ns, by_ns))
    for name in ("localtime", "gmtime", "ctime"):
        yield _named(name, partial(convert, getattr(real, name)))
    yield from (asctime, strftime)


def _named(name: str, function: Function) -> Function:
    function.__name__ = name  # a partial one has none
    return function


def _stand_in(real: type, members: dict[str, object]) -> type:
    """Return a class that replaces a class of dates, and makes real dates."""

    class Meta(type):
        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, real)

        def __subclasscheck__(cls, subclass: type) -> bool:
            return issubclass(subclass, real)

    def new(_: type, *args: object, **kwargs: object) -> object:
        return real(*args, **kwargs)

    return Meta(real.__name__, (real,), {"__new__": new, **members})


def _datetime(by_s: float) -> type:
    real, by = datetime.datetime, datetime.timedelta(seconds=by_s)

    def now(tz: datetime.tzinfo | None = None) -> datetime.datetime:
        later = real.now(datetime.UTC) + by
        return later.astimezone(tz) if tz else later.astimezone().replace(tzinfo=None)

    def utcnow() -> datetime.datetime:
        return now(datetime.UTC).replace(tzinfo=None)

    members = {"now": now, "utcnow": utcnow, "today": now}
    return _stand_in(real, {name: staticmethod(each) for name, each in members.items()})


def _date(by_s: float) -> type:
    real, now = datetime.date, _datetime(by_s).now  # type: ignore[attr-defined]
    return _stand_in(real, {"today": staticmethod(lambda: now().date())})


CLOCK_SKEW = FaultKind(
    name="clock_skew",
    perform=_skew,
    params={
        "seconds": must_be(
            "a number of seconds from -1e9 to 1e9",
            lambda each: is_number(each) and abs(each) <= MAX_SECONDS,
        )
    },
    required=frozenset({"seconds"}),
    lasts=True,
    one_per="rank",
    sentence="{who}'s clock was {seconds} s {way}, {then}",
    mending="broadcast-decisions",
)


# Faults of this rank's view of files: folders in another order, files of others not yet there.


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
        """Fail if a file is not visible yet; remember what this rank makes itself."""
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


# Faults of a call's result in this rank alone: an error, the end of the data, another value.


_OF_JAX = frozenset(
    {
        *(each.name for each in COLLECTIVES if each.runtime == "jax"),
        *("blocking_key_value_get", "blocking_key_value_get_bytes", "block_until_ready"),
        "get_live_nodes",
    }
)
"""Operations of jax whose names do not show it."""


def error_class(operation: str, backend_error: str) -> type[Exception]:
    """Return the exception of an operation of a runtime that fails.

    Args:
        operation: Its name, as its users call it.
        backend_error: The exception of operations of the world's backend, as ``module:Class``;
            empty: RuntimeError.
    """
    wanted = "" if operation.startswith("world.") else backend_error
    if operation in _OF_JAX or operation.startswith(("jax.", "key_value_")):
        wanted = "jax.errors:JaxRuntimeError"
    elif operation.startswith("store.") or operation == "TCPStore":
        wanted = "torch.distributed:DistStoreError"
    module, _, name = wanted.partition(":")
    found = getattr(sys.modules.get(module), name, RuntimeError) if name else RuntimeError
    return found if isinstance(found, type) and issubclass(found, Exception) else RuntimeError


def _fail(strike: Strike) -> NoReturn:
    __tracebackhide__ = True
    if strike.passed.point == "collective":
        error = error_class(strike.passed.name, strike.place.world.backend_facts.operation_error)
        raise error(f"{strike.passed.name}: planned by {strike.fault!r}")
    number = error_number(strike.fault.params.get("error", FIELD_ERRORS[strike.passed.call]))
    raise OSError(number, os.strerror(number), strike.passed.name)


def _end_data(_strike: Strike) -> NoReturn:
    __tracebackhide__ = True
    raise StopIteration


def _return(strike: Strike) -> NoReturn:
    __tracebackhide__ = True
    raise Replaced(strike.fault.params.get("value"))


VALUE_FAULTS = (
    FaultKind(
        name="fails",
        perform=_fail,
        params={"error": error_name},
        points=frozenset({"collective", "io"}),
        is_exclusive=True,
        sentence="{who}'s {what} failed with {error} ({often})",
        mending="agree-on-errors",
    ),
    FaultKind(
        name="short_data",
        perform=_end_data,
        points=frozenset({"batch"}),
        sentence="{who}'s data ended before {what}",
        mending="join-uneven-inputs",
    ),
    FaultKind(
        name="empty_data",
        perform=_end_data,
        points=frozenset({"batch"}),
        sentence="{who} got no data from {name}",
        mending="join-uneven-inputs",
    ),
    FaultKind(
        name="returns",
        perform=_return,
        params={"value": lambda _: None},
        points=frozenset({"call"}),
        is_exclusive=True,
        sentence="{who}'s {what} returned {value}",
        mending="broadcast-decisions",
    ),
)
