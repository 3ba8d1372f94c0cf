"""Failures of the test's own code, which the end of its world does not explain.

A test may expect that its world hangs, or that a rank dies or raises. The effects of such an end on
other ranks are harmless: lost connections, timeouts, aborted operations. Any other failure is the
test's own: an assertion, a failed subtest, an error of a fixture, a rank that skipped alone.
"""

from __future__ import annotations

from collections.abc import Iterator

from pytest_multihost.core.blame.kinds import kind_of
from pytest_multihost.core.model.event import Interrupted, RaisedError, ReportMade
from pytest_multihost.core.model.verdict import Diagnosis
from pytest_multihost.core.outcome.finding import (
    DEATH_SEEN_LATE_S,
    Finding,
    RankFinding,
    describe_subtests,
    first_line,
    rank_status,
)
from pytest_multihost.core.outcome.symptoms import Symptoms, is_closed_connection, is_unanswered


def own_failures(finding: Finding, end: Diagnosis) -> list[tuple[RankFinding, str]]:
    """Return the failures that the end of a world does not explain, each with a sentence.

    Args:
        end: How it ended. The exceptions of culprits that raised are part of it.
    """
    culprits = [finding.ranks[rank] for rank in end.culprits]
    began_s = min((each.at_s for each in culprits if each.at_s is not None), default=0.0)
    found = []
    for each in finding.ranks:
        facts, is_culprit = each.facts, each.facts.rank in end.culprits
        is_end = is_culprit and kind_of(end.kind).includes_errors
        is_failure = each.outcome in ("failed", "error") and facts.failure is not None
        is_early = each.at_s is not None and each.at_s <= began_s - DEATH_SEEN_LATE_S
        error = facts.failure.error if facts.failure is not None else None
        is_own = is_early or error is None or not _is_harmless(error, finding.symptoms)
        if is_failure and is_own and not is_end and rank_status(each) != "xfailed":
            found.append((each, each.summary))
        for phase, later in later_failures(each, finding.symptoms):
            found.append((each, f"{later.type}: {first_line(later.message)} in {phase}"))
        if facts.failed_subtests_s:
            found.append((each, describe_subtests(facts)))
        if each.outcome == "skipped" and not is_culprit:
            found.append((each, f"skipped alone: {facts.skip_reason}"))
    return found


def has_xfailed(finding: Finding, end: Diagnosis) -> bool:
    """Return whether a rank failed as xfail expects, and not only as part of the end."""
    return any(
        rank_status(each) == "xfailed" and each.facts.rank not in end.culprits
        for each in finding.ranks
        if each.outcome in ("failed", "error")
    )


def later_failures(finding: RankFinding, symptoms: Symptoms) -> Iterator[tuple[str, RaisedError]]:
    """Yield the own failures of a rank after its first one, with their phases.

    Example: the connection to a dead rank is lost in the call, and then a fixture's teardown
    asserts.
    """
    facts = finding.facts
    for each in (*facts.reports, facts.interrupted):
        if each is None or each is facts.failure or each.error is None:
            continue
        if isinstance(each, ReportMade) and each.outcome != "failed":
            continue
        if isinstance(each, Interrupted) and each.is_expected:
            continue
        if not _is_harmless(each.error, symptoms):
            yield (each.when if isinstance(each, ReportMade) else facts.phase), each.error


def _is_harmless(error: RaisedError, symptoms: Symptoms) -> bool:
    """Return whether an exception, or its cause, reports that a peer is gone."""
    text = f"{error.type}: {error.message}"
    is_symptom = symptoms.is_symptom(error, text) or symptoms.is_raised_from_symptom(error)
    return is_symptom or is_closed_connection(error) or is_unanswered(error)
