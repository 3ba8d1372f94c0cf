"""Judges an attempt: the outcome, the rank to blame, and the demands of every test."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from pytest_multihost.core.blame import Judgement, judge_world
from pytest_multihost.core.model.result import WorldResult
from pytest_multihost.core.model.stack import SourceContext
from pytest_multihost.core.outcome import Finding, Symptoms
from pytest_multihost.core.outcome.agreement import require_agreement
from pytest_multihost.core.outcome.fault_progress import require_fired

Expect = Callable[[Judgement], Finding]
"""Returns the finding of a test that must hang in a certain way."""


def judge(
    result: WorldResult, symptoms: Symptoms, context: SourceContext, expect: Expect | None = None
) -> Judgement:
    """Judge a world that the engine has run: a test, a script, a replay, or recorded facts.

    Args:
        symptoms: How the backend's failures look when they follow from another rank's.
        expect: The test's check of its end; None: it must pass.
    """
    judged = judge_world(result, symptoms, context)
    finding = judged.finding if expect is None else expect(judged)
    # Last, because a test whose fault never fired has shown nothing, even if it hung as expected.
    finding = require_agreement(require_fired(finding, result), result, context.root)
    return replace(judged, finding=finding)
