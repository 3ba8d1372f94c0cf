"""The verdict that is put together from what was observed and what was found."""

from __future__ import annotations

import json
from typing import Any

import pytest
from builders import run_script

from pytest_multihost.core.blame import Judgement
from pytest_multihost.core.outcome import Symptoms, judge
from pytest_multihost.core.report.artifacts import Attempt, build_verdict
from pytest_multihost.testing import (
    SourceContext,
    Step,
    exited,
    make_spec,
    raised,
    report,
    to_json,
    well_behaved,
)


def recorded(script: list[Step], **spec: Any) -> dict[str, Any]:  # noqa: ANN401 - fields of the spec
    """Return the verdict on a scripted world of two ranks, as it is written."""
    result = run_script(script, make_spec(2, **spec))
    attempt = Attempt("2026-11-21T00-00-00Z-1", "t.py-t-1f3a-1", None, {"python": "3.11.7"})
    judged = Judgement(result, judge(result, Symptoms()), None, SourceContext("/"))
    return to_json(build_verdict(judged, attempt))


def test_a_passed_world_is_recorded() -> None:
    """Every attempt has a verdict, not only what went wrong."""
    ready_late = [*well_behaved(1)[:2], Step(1, "ready", after_s=2.0), *well_behaved(1)[3:]]
    data = recorded([*well_behaved(0), *ready_late])
    assert (data["status"], data["outcome"], data["ended_by"]) == ("passed", "passed", "self")
    assert (data["startup_s"], data["duration_s"], data["reason"]) == (2.0, 2.0, None)
    assert (data["dir"], data["launch"], data["backend"]) == ("t.py-t-1f3a-1", "scripted", "none")
    first = data["rank_results"][0]
    assert (first["pid"], first["exit_code"], first["signal"], first["log"]) == (
        *(1000, 0, None),
        "rank-0.log",
    )


def test_a_hang_is_recorded() -> None:
    """The harness ended it, and says why; times count from the start."""
    script = [*well_behaved(0, stays_in="call"), *well_behaved(1, stays_in="call")]
    data = recorded(script, timeout_s=3)
    assert (data["status"], data["outcome"], data["ended_by"]) == ("failed", "hung", "harness")
    assert data["reason"] == "took longer than 3 s: ranks 0,1 still in the test"
    first = data["rank_results"][0]
    assert (first["outcome"], first["phase"], first["duration_s"]) == ("hung", "call", 3.0)
    assert (first["signal"], first["cpu_s"], first["peak_rss_bytes"]) == (15, 0.1, 1 << 20)


def test_an_error_is_recorded_with_its_place() -> None:
    """So that an editor or a CI annotation can point there."""
    error = raised("ValueError: boom", file="t.py", line=3)
    failed = Step(0, "report", report("call", "failed", error=error), on="go")
    data = recorded([*well_behaved(0, stays_in="call"), failed, *well_behaved(1)])
    assert data["rank_results"][0]["error"] == {
        "type": "ValueError",
        "message": "boom",
        "file": "t.py",
        "line": 3,
        "text": "ValueError: boom",
        "function": None,
    }
    assert data["rank_results"][1]["error"] is None


def test_a_rank_that_died_is_recorded_with_the_time_it_lived() -> None:
    """Not with that of the world."""
    death = Step(0, "exited", exited(signal=9), after_s=1.5, on="go")
    data = recorded([*well_behaved(0, stays_in="call"), death, *well_behaved(1, stays_in="call")])
    first, second = data["rank_results"]
    assert (first["outcome"], first["signal"], first["exit_code"]) == ("crashed", 9, None)
    assert (first["duration_s"], second["duration_s"]) == (1.5, 2.25)


@pytest.mark.parametrize("phase", ["startup", "call"])
def test_a_verdict_is_json(phase: Any) -> None:  # noqa: ANN401 - a Phase
    """Strictly: no NaN, and nothing that only Python knows; a world that was never ready, too."""
    data = recorded([*well_behaved(0), *well_behaved(1, stays_in=phase)])
    assert (data["startup_s"] is None) == (phase == "startup")
    assert json.loads(json.dumps(data, allow_nan=False))["nodeid"] == data["nodeid"]
