"""Facts of a verdict that both its annotations and the summary report.

They are taken from verdicts.jsonl, see docs/results.md, because under pytest-xdist several
processes write it and only the controller reports.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pytest_multihost.core.model.operation import group_by_value
from pytest_multihost.core.model.rank_names import PLAIN
from pytest_multihost.core.model.verdict import JsonVerdict

MAX_CLAIMS = 8
MAX_SIDES = 4


def has_failed(verdict: JsonVerdict) -> bool:
    """Whether pytest counts the test as failed."""
    return verdict["status"] in ("failed", "error")


def headline(verdict: JsonVerdict) -> str:
    """Return the summary of a verdict, in one line."""
    if verdict["diagnosis"] is not None:
        return str(verdict["diagnosis"]["summary"])
    return next(own_errors(verdict), str(verdict["reason"] or verdict["outcome"]))


def own_errors(verdict: JsonVerdict, culprits: Sequence[int] = ()) -> Iterator[str]:
    """Yield the own exceptions of ranks other than the culprits."""
    for each in verdict["rank_results"]:
        is_own = each["outcome"] != "collateral" and each["rank"] not in culprits
        if each["error"] is not None and is_own:
            first = (str(each["error"]["message"]).splitlines() or [""])[0]
            who = f"rank {each['rank']}: {each['error']['type']}"
            yield f"{who}: {first}" if first else who


def sides_of(diagnosis: JsonVerdict) -> dict[tuple[str, int], list[int]]:
    """Return the lines of all ranks with these ranks, if there is no line of a culprit."""
    places = () if diagnosis.get("where") else diagnosis.get("places", ())
    return group_by_value(((each["file"], each["line"]), each["rank"]) for each in places)


def divergence_texts(diagnosis: JsonVerdict) -> list[str]:
    """Return where the ranks parted, if they did; older verdicts do not say it."""
    divergence = diagnosis.get("divergence")
    return [f"diverged {divergence['summary']}"] if divergence else []


def claims_of(diagnosis: JsonVerdict) -> list[tuple[str, str]]:
    """Return equal pieces of evidence once, with their ranks."""
    alike = group_by_value(
        ((each["fact"], each["source"]), each["rank"]) for each in diagnosis["evidence"]
    )
    claims = [(f"{PLAIN.of(ranks)}: {fact}", source) for (fact, source), ranks in alike.items()]
    return claims[:MAX_CLAIMS]
