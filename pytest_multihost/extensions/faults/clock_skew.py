"""The fault `clock_skew`: this rank's wall clock shows another time, as Python code reads it.

`time.monotonic` and waits, the times of files, and the clocks that C++ reads are unchanged.
"""

from __future__ import annotations

import copyreg
import datetime
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial, wraps
from types import SimpleNamespace
from typing import Any

from pytest_multihost.core.cpython_private import get_frame
from pytest_multihost.core.model.setting_values import MAX_SECONDS
from pytest_multihost.core.model.stack import is_library
from pytest_multihost.faults.kind import FaultKind, Strike, is_number, must_be
from pytest_multihost.intercept.targets import replace_names

Function = Callable[..., Any]
"""A function of `time`, or its replacement."""


def _skew(strike: Strike) -> None:
    """Replace the functions and classes that give the time, wherever they have been imported."""
    seconds = strike.fault.params["seconds"]
    noting = partial(_noting, strike)
    dates = [
        (datetime.datetime, _datetime(seconds, noting)),
        (datetime.date, _date(seconds, noting)),
    ]
    times = [(getattr(time, each.__name__), noting(each)) for each in _functions(seconds)]
    replace_names((*dates, *times), strike.more_modules)
    back = [(new, old) for old, new in (*dates, *times)]
    strike.healing.callback(replace_names, back, strike.more_modules)
    for real, _ in dates:
        copyreg.pickle(real, _reduced)
        strike.healing.callback(copyreg.dispatch_table.pop, real)


def _noting(strike: Strike, read: Function) -> Function:
    """Return a function that reads the clock and reports it if the user's code has called it.

    A library may read a clock to write a log. Then the line that called the library decides
    nothing.
    """

    @wraps(read)
    def noted(*args: object, **kwargs: object) -> object:
        if not is_library(get_frame(1).f_code.co_filename):
            strike.met()
        return read(*args, **kwargs)

    return noted


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


def _stand_in(real: type, members: Mapping[str, object]) -> type:
    """Return a class that replaces a class of dates, and makes real dates."""

    class Meta(type):
        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, real)

        def __subclasscheck__(cls, subclass: type) -> bool:
            return issubclass(subclass, real)

    def new(_: type, *args: object, **kwargs: object) -> object:
        return real(*args, **kwargs)

    return Meta(real.__name__, (real,), {"__new__": new, **members})


def _as_it_is(function: Function) -> Function:
    return function


def _datetime(by_s: float, noting: Callable[[Function], Function] = _as_it_is) -> type:
    real, by = datetime.datetime, datetime.timedelta(seconds=by_s)

    def now(tz: datetime.tzinfo | None = None) -> datetime.datetime:
        later = real.now(datetime.UTC) + by
        return later.astimezone(tz) if tz else later.astimezone().replace(tzinfo=None)

    def utcnow() -> datetime.datetime:
        return now(datetime.UTC).replace(tzinfo=None)

    members = {"now": now, "utcnow": utcnow, "today": now}
    noted = {name: staticmethod(noting(each)) for name, each in members.items()}
    return _stand_in(real, noted)


def _date(by_s: float, noting: Callable[[Function], Function]) -> type:
    real, now = datetime.date, _datetime(by_s).now  # type: ignore[attr-defined]

    def today() -> object:
        return now().date()

    return _stand_in(real, {"today": staticmethod(noting(today))})


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
