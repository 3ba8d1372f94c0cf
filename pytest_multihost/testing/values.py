"""Values of the model, made from few words: events, specs and stacks."""

from __future__ import annotations

import re
from collections.abc import Mapping

from pytest_multihost.core.model.event import Event, EventBody
from pytest_multihost.core.model.json_values import from_json
from pytest_multihost.core.model.setting_values import DEFAULT_BACKEND
from pytest_multihost.core.model.spec import WorldSpec
from pytest_multihost.core.model.stack import Dump, Frame, ThreadStack

Detail = Mapping[str, object]
"""The fields of an event, as JSON values."""


def make_event(
    at_s: float, rank: int, kind: str, detail: Detail | None = None, payload: bytes = b""
) -> Event:
    """Return an event from its name and fields."""
    return Event(at_s, rank, from_json(EventBody, {**(detail or {}), "kind": kind}), payload)


def exited(code: int = 0, *, signal: int | None = None) -> dict[str, object]:
    """Return the detail of an `exited` event; a signal replaces the code."""
    usage = {"cpu_s": 0.1, "peak_rss_bytes": 1 << 20}
    return {"code": None if signal else code, "signal": signal, **usage}


def raised(
    text: str, *causes: str, file: str | None = None, line: int | None = None
) -> dict[str, object]:
    """Return a rank's report of an exception, from a text like "ValueError: no such step".

    `causes` are the texts of the exceptions from which it was raised, the last one first.
    """
    kind, _, message = text.partition(": ")
    is_ours = {"is_harness_symptom": kind.endswith("WorldBrokenError"), "is_harness_error": False}
    place = {"file": file, "line": line, "function": None, "library": None}
    found = {"type": kind, "message": message, **place}
    return {**found, "text": text, "causes": list(causes), "is_by_user": False, **is_ours}


def report(when: str, outcome: str = "passed", **changes: object) -> dict[str, object]:
    """Return the detail of a `report` event; `changes` replace its other keys."""
    by_xfail = {"wasxfail": None, "is_strict_xpass": False, "xfail": None}
    plain = {"error": None, "duration_s": 0.01, "report": {"longrepr": None}}
    return {"when": when, "outcome": outcome, **by_xfail, **plain, **changes}


def make_spec(size: int, *, timeout_s: float = 60.0, startup_timeout_s: float = 30.0) -> WorldSpec:
    """Return the spec of a world."""
    return WorldSpec(
        nodeid="test_scripted.py::test_scripted",
        attempt=1,
        size=size,
        backend=DEFAULT_BACKEND,
        local_devices=1,
        timeout_s=timeout_s,
        startup_timeout_s=startup_timeout_s,
        seed=1,
    )


def make_dump(rank: int, *frames: str) -> Dump:
    """Return a rank's stack from frames like "storage.py:17 read_shard", innermost first."""
    parts = [re.split(r":(\d+) ", each) for each in frames]
    stack = tuple(Frame(file, int(line), function) for file, line, function in parts)
    return Dump(rank, "scripted", (ThreadStack("MainThread", stack, current=True),))
