"""Late, frozen, throttled, dead: a rank that waits, is stopped from outside, or ends itself.

Nobody can stop and continue himself: the server, parent of the rank, does it on what the rank
announces here. All moments are absolute times of the machine's monotonic clock, so a rank goes on
when it was to, whatever has become of anybody else.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Mapping
from time import sleep  # by name: the test may replace it in its module
from typing import Any

from pytest_multihost.model.clock import now
from pytest_multihost.nemesis.kind import FaultKind, Strike, is_number, seconds

PERIOD_S = 0.1
"""One turn of a throttled rank: it runs for a part of this, and is stopped for the rest."""

_FULL = 100


def _until(params: Mapping[str, Any], now_s: float) -> dict[str, Any]:
    return {"until_s": now_s + params["seconds"]} if "seconds" in params else {}


def _wait(strike: Strike) -> None:
    """Keep this thread at the point until the fault is over."""
    until_s = strike.detail.get("until_s")
    if until_s is None:
        threading.Event().wait()
        return
    while (left_s := until_s - now()) > 0:
        sleep(left_s)


def _frozen(params: Mapping[str, Any], now_s: float) -> dict[str, Any]:
    """Ask to be stopped once; the thread at the point waits besides, till the stop has come."""
    until = _until(params, now_s)
    pause = {"stopped_s": params.get("seconds"), "running_s": 0.0, **until}
    return {**until, "pause": pause}


def _throttled(params: Mapping[str, Any], now_s: float) -> dict[str, Any]:
    running_s = PERIOD_S * params["percent"] / _FULL
    until = _until(params, now_s)
    pause = {"stopped_s": PERIOD_S - running_s, "running_s": running_s, **until}
    return {**until, "pause": pause}


def _number(name: str) -> int:
    return int(getattr(signal.Signals, name, 0)) if name.startswith("SIG") else 0


def _kill(strike: Strike) -> None:
    """End this process; a handler of the test's own must not keep it from dying as planned."""
    number = _number(strike.fault.params.get("signal", "SIGKILL"))
    if number != signal.SIGKILL and threading.current_thread() is threading.main_thread():
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    while True:  # the signal may be taken by another thread a moment later
        sleep(1)


def _deadly(value: object) -> str | None:
    harmless = ("SIGCHLD", "SIGCONT", "SIGURG", "SIGWINCH", "SIGSTOP", "SIGTSTP", "SIGTTIN")
    is_good = isinstance(value, str) and _number(value) > 0 and value not in harmless
    return None if is_good else "the name of a signal that ends a process, as 'SIGKILL'"


def _percent(value: object) -> str | None:
    is_good = is_number(value) and 0 < value < _FULL  # type: ignore[operator]
    return None if is_good else "a number above 0 and below 100"


def _nothing(strike: Strike) -> None:
    """Leave it to the server: it was asked by what was announced."""


def _kills(params: Mapping[str, Any], now_s: float) -> dict[str, Any]:  # noqa: ARG001 - as any
    return {"kills": True}


DELAY = FaultKind(
    name="delay",
    perform=_wait,
    params={"seconds": seconds},
    required=frozenset({"seconds"}),
    announce=_until,
)

FREEZE = FaultKind(name="freeze", perform=_wait, params={"seconds": seconds}, announce=_frozen)

CPU_THROTTLE = FaultKind(
    name="cpu_throttle",
    perform=_nothing,
    params={"percent": _percent, "seconds": seconds},
    required=frozenset({"percent"}),
    announce=_throttled,
    lasts=True,
)

KILL = FaultKind(name="kill", perform=_kill, params={"signal": _deadly}, announce=_kills)
