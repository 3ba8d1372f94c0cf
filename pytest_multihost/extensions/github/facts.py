"""Facts of a verdict that both its annotations and the summary report.

They are taken from verdicts.jsonl, see docs/results.md, because under pytest-xdist several
processes write it and only the controller reports.
"""

from __future__ import annotations

from pytest_multihost.core.model.operation import group_by_value
from pytest_multihost.core.model.rank_names import Names
from pytest_multihost.core.model.verdict import JsonVerdict, run_headline

MAX_CLAIMS = 8
MAX_SIDES = 4


def has_failed(verdict: JsonVerdict) -> bool:
    """Whether pytest counts the test as failed."""
    return verdict["status"] in ("failed", "error")


def headline(verdict: JsonVerdict) -> str:
    """Return the summary of a verdict, in one line."""
    return run_headline(verdict) or str(verdict["outcome"])


def sides_of(diagnosis: JsonVerdict) -> dict[tuple[str, int], list[int]]:
    """Return the lines of all ranks with these ranks, if there is no line of a culprit."""
    places = () if diagnosis.get("where") else diagnosis.get("places", ())
    return group_by_value(((each["file"], each["line"]), each["rank"]) for each in places)


def divergence_texts(diagnosis: JsonVerdict) -> list[str]:
    """Return where the ranks parted, if they did; older verdicts do not say it."""
    divergence = diagnosis.get("divergence")
    return [f"diverged {divergence['summary']}"] if divergence else []


def claims_of(diagnosis: JsonVerdict, names: Names) -> list[tuple[str, str]]:
    """Return equal pieces of evidence once, with their ranks."""
    alike = group_by_value(
        ((each["fact"], each["source"]), each["rank"]) for each in diagnosis["evidence"]
    )
    claims = [(f"{names.of(ranks)}: {fact}", source) for (fact, source), ranks in alike.items()]
    return claims[:MAX_CLAIMS]
