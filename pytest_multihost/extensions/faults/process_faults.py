"""Faults of a rank's process: it starts late, waits, is stopped, raises an exception, or dies.

A stopped process cannot continue itself, so `freeze` and `cpu_throttle` are performed by the
server, the parent of the ranks, from the rank's announcement here. All times are absolute, on the
machine's monotonic clock: a rank continues on time, however late a message arrives.
"""

from __future__ import annotations

import builtins
import os
import pkgutil
import re
import signal
import sys
import threading
from collections.abc import Callable
from time import sleep  # by name: the test may replace it in its module
from typing import NoReturn

from pytest_multihost.core.model.errors import SettingError
from pytest_multihost.core.model.event import now
from pytest_multihost.core.model.fault import MAX_HASH_SEED, FaultParams
from pytest_multihost.extensions.faults.held_child import hold_next_child
from pytest_multihost.faults.kind import (
    Announcement,
    FaultKind,
    Strike,
    is_number,
    must_be,
    seconds,
    text,
    whole,
)

PERIOD_S = 0.1
"""A throttled rank runs for a part of each period and is stopped for the rest."""

_HARMLESS = ("SIGCHLD", "SIGCONT", "SIGURG", "SIGWINCH", "SIGSTOP", "SIGTSTP", "SIGTTIN")
_EXCEPTION_NAME = re.compile(r"(\w+(\.\w+)*:)?\w+(\.\w+)*")


def _nothing(strike: Strike) -> None:
    """Do nothing: the server performs the fault, or it was performed before the test."""


def _pause(
    params: FaultParams, now_s: float, *, stopped_s: float | None, running_s: float
) -> Announcement:
    pause = {"stopped_s": stopped_s, "running_s": running_s}
    if "seconds" not in params:
        return {"pause": pause}
    until_s = now_s + params["seconds"]
    return {"pause": {**pause, "until_s": until_s}, "until_s": until_s}


def _announce_throttle(params: FaultParams, now_s: float) -> Announcement:
    running_s = PERIOD_S * params["percent"] / 100
    return _pause(params, now_s, stopped_s=PERIOD_S - running_s, running_s=running_s)


def _wait(strike: Strike) -> None:
    """Keep this thread at the point until the fault is over."""
    if "until_s" not in strike.detail:
        threading.Event().wait()
        return
    while (left_s := strike.detail["until_s"] - now()) > 0:
        sleep(left_s)


def _await_release(strike: Strike) -> Callable[[], None] | None:
    """Keep this thread at the point until the controller releases it, or hold a process."""
    if strike.fault.params.get("what") == "child":
        return hold_next_child(strike.performed)
    strike.performed()
    return None


def _signal_number(name: str) -> int:
    return int(getattr(signal.Signals, name, 0)) if name.startswith("SIG") else 0


def _kill(strike: Strike) -> None:
    """End this process; a handler that the test has installed must not prevent it."""
    number = _signal_number(strike.fault.params.get("signal", "SIGKILL"))
    if number != signal.SIGKILL and threading.current_thread() is threading.main_thread():
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    while True:  # another thread may receive the signal, a moment later: do not pass the point
        sleep(1)


def _raise(strike: Strike) -> NoReturn:
    """Raise the exception that the fault names: a built-in one, or ``module:Class``.

    Raises:
        SettingError: There is no such class, or it is not an exception.
    """
    __tracebackhide__ = True  # the traceback ends at the line of the test that raises
    strike.met()
    name = strike.fault.params.get("error", "RuntimeError")
    message = strike.fault.params.get("message", f"planned by {strike.fault!r}")
    module = name.rpartition(":")[0]
    if module and not (strike.place.world.imports_named or module in sys.modules):
        seen = f"The token names it, and the test has not imported {module!r}."
        raise SettingError(f"the exception {name!r} is unknown", seen=seen)
    try:
        found = pkgutil.resolve_name(name if ":" in name else f"builtins:{name}")
    except (ImportError, AttributeError) as error:
        raise SettingError(f"there is no exception {name!r}", seen=str(error)) from error
    if not (isinstance(found, type) and issubclass(found, BaseException)):
        raise SettingError(f"{name!r} is not an exception", seen=repr(found))
    raise found(message)


def _exception_name(value: object) -> str | None:
    if isinstance(value, str) and _EXCEPTION_NAME.fullmatch(value):
        found = getattr(builtins, value, None)
        is_built_in = isinstance(found, type) and issubclass(found, BaseException)
        if is_built_in or ":" in value:  # others are imported only in the rank
            return None
    return "the name of a built-in exception, or 'module:Class' of another"


_share = must_be(
    "a number above 0 and below 100",
    lambda each: is_number(each) and 0 < each < 100,  # noqa: PLR2004 - percent
)
_hash_seed = must_be(
    f"a whole number from 0 to {MAX_HASH_SEED}",
    lambda each: whole(each) is None and each <= MAX_HASH_SEED,
)
_deadly_signal = must_be(
    "the name of a signal that ends a process, as 'SIGKILL'",
    lambda each: isinstance(each, str) and _signal_number(each) > 0 and each not in _HARMLESS,
)

PROCESS_FAULTS = (
    FaultKind(
        name="delay",
        perform=_wait,
        params={"seconds": seconds},
        required=frozenset({"seconds"}),
        announce=lambda params, now_s: {"until_s": now_s + params["seconds"]},
        sentence="{who} was delayed by {seconds} s {at}",
    ),
    FaultKind(
        name="hold",
        perform=_await_release,
        params={
            "until": must_be("'others-wait'", lambda each: each == "others-wait"),
            "what": must_be("'thread' or 'child'", lambda each: each in ("thread", "child")),
            "min_s": seconds,
            "max_s": seconds,
        },
        required=frozenset({"until"}),
        announce=lambda params, _now_s: {
            "hold": {"min_s": params.get("min_s", 0.0), "max_s": params.get("max_s")}
        },
        sentence="{who} was held {at} until all others waited{least}",
    ),
    FaultKind(
        name="start_skew",
        perform=_nothing,
        params={"seconds": seconds},
        required=frozenset({"seconds"}),
        is_before_test=True,
        one_per="point",
    ),
    FaultKind(
        name="freeze",
        perform=_wait,  # until the signal has arrived
        params={"seconds": seconds},
        announce=lambda params, now_s: _pause(
            params, now_s, stopped_s=params.get("seconds"), running_s=0.0
        ),
        is_exclusive=True,
        stops_process=True,
    ),
    FaultKind(
        name="kill",
        perform=_kill,
        params={"signal": _deadly_signal},
        announce=lambda _params, _now_s: {"kills": True},
        is_exclusive=True,
        sentence="{who} was killed {at}",
        mending="lost-ranks",
    ),
    FaultKind(
        name="raise_at",
        perform=_raise,
        params={"error": _exception_name, "message": text},
        is_exclusive=True,
        sentence="{who}'s {what} raised {error}",
        mending="agree-on-errors",
    ),
    FaultKind(
        name="cpu_throttle",
        perform=_nothing,
        params={"percent": _share, "seconds": seconds},
        required=frozenset({"percent"}),
        announce=_announce_throttle,
        lasts=True,
        stops_process=True,
        one_per="rank",
    ),
    FaultKind(
        name="hash_seed",
        perform=_nothing,
        params={"seed": _hash_seed},
        is_before_test=True,
        one_per="rank",
        needs_fresh_interpreters=True,
        sentence="{who} hashed strings differently",
        mending="broadcast-decisions",
    ),
    # The recorder performs it, as each operation is launched.
    FaultKind(
        name="stream_order",
        perform=_nothing,
        lasts=True,
        points=frozenset({"start"}),
        sentence="operations of {who} ran in the order of their launch, as in NCCL's streams",
        mending="launch-in-one-order",
    ),
)
