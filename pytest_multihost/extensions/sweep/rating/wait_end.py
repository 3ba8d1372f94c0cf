"""Finds the end of a weakness's wait, from a world under the model of a launcher."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping

from pytest_multihost.core.model.event import FaultChanged
from pytest_multihost.core.model.fault import Fault
from pytest_multihost.core.model.result import WorldResult
from pytest_multihost.extensions.sweep.rating.launcher import (
    HORIZON_S,
    LauncherRecord,
    RankEnd,
    read_launcher_record,
)
from pytest_multihost.extensions.sweep.result import WaitEnd

POLL_S = 0.1
"""How often a launcher looks for processes that have ended: torchrun's `monitor_interval`."""

_GLOO = "gloo's timeout"
_TIMEOUTS: Mapping[str, str] = {
    r"Gloo context initialization failed": "gloo's timeout for connections",
    r"[Ss]hutdown ?[Bb]arrier|Shutdown::": "jax's timeout at exit",
    r"[Hh]eartbeat": "jax's timeout for heartbeats",
    r"Timed out waiting \d+ms|Application timeout|transport/tcp/\S+ .*[Tt]imed out": _GLOO,
    r"failed to pass monitoredBarrier": _GLOO,
    r"[Ww]ait timeout|Timeout waiting for key|after \d+ms": "the store's timeout",
    r"Barrier timed out|DEADLINE_EXCEEDED": "jax's timeout for barriers",
    r"Watchdog caught collective": "NCCL's timeout",
    r"TimeoutError|[Tt]imed out|[Tt]imeout": "a timeout of the program",
}
"""Names of timeouts, by a regular expression for the text of an error or of a log."""


def wait_end(result: WorldResult, fault: Fault, logs: Mapping[int, str]) -> WaitEnd:
    """Return the cause of the wait's end, and its seconds after the disturbance."""
    record = read_launcher_record(result)
    began_s = disturbed_s(result, fault)
    if began_s is None:
        return WaitEnd(by="not measured", name="the injection did not happen again")
    # The harness has ended the later ones.
    last_s = math.inf if result.detected_s is None else result.detected_s
    exits = [each for each in record.ends if each.how == "exited" and each.at_s <= last_s]
    if exits and record.ends_all:
        return _by_launcher(record, exits[0], began_s)
    if result.ending == "self" and exits:
        return _by_runtime(exits, began_s, logs)
    if result.ending == "self":
        return WaitEnd(by="not measured", name="no rank waited in the run that measures it")
    if not record.is_cut and result.ending == "overrun":
        return WaitEnd(by="nothing", after_s=HORIZON_S)
    waited_s = max(0.0, (result.detected_s or result.ended_s) - began_s)
    why = _doubt(result) or "the time for measuring was over"
    return WaitEnd(by="not measured", name=f"nothing did within {waited_s:.0f} s; {why}")


def disturbed_s(result: WorldResult, fault: Fault) -> float | None:
    """Return when a fault began first in a world; None if it did not happen."""
    found = [
        index
        for index, each in enumerate(result.spec.faults)
        if (each.kind, each.at, each.ranks) == (fault.kind, fault.at, fault.ranks)
    ]
    times = [
        event.at_s
        for event in result.history
        if isinstance(event.body, FaultChanged)
        and event.body.index in found[-1:]
        and event.body.phase == "begun"
    ]
    return min(times, default=None)


def _by_launcher(record: LauncherRecord, exited: RankEnd, began_s: float) -> WaitEnd:
    """Return the end of a world whose first failed process makes the launcher end the others."""
    # The rank that ends first may only have lost its connection to one whose timeout has struck.
    errors = [each.text for each in record.ends if each.how == "raised"]
    name = next(filter(None, map(timeout_name, errors)), "")
    after_s = round(max(0.0, exited.at_s - began_s) + POLL_S, 1)
    return WaitEnd(by="timeout" if name else "launcher", name=name, after_s=after_s)


def _by_runtime(exits: Iterable[RankEnd], began_s: float, logs: Mapping[int, str]) -> WaitEnd:
    """Return the end of a world in which all processes have ended without a launcher."""
    ordered = sorted(exits, key=lambda each: each.at_s)
    names = (timeout_name(logs.get(each.rank, "")) for each in ordered)
    name = next(filter(None, names), "")
    after_s = round(max(0.0, ordered[-1].at_s - began_s), 1)
    return WaitEnd(by="timeout" if name else "runtime", name=name, after_s=after_s)


def timeout_name(text: str) -> str:
    """Return the name of the timeout that an error or a log reports; empty if it reports none."""
    return next((name for each, name in _TIMEOUTS.items() if re.search(each, text)), "")


def _doubt(result: WorldResult) -> str:
    """Return why the clock of a world could not jump; empty if it could, or did not exist."""
    clock = result.records.get("clock")
    jumps = clock.verdict.get("clock_jumps") if clock is not None else None
    doubts = jumps.get("doubts") if isinstance(jumps, dict) else None
    first = doubts[0] if isinstance(doubts, list) and doubts else None
    return str(first.get("why")) if isinstance(first, dict) else ""
