"""The two pages: one for each attempt that did not go well, one for each run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

from pytest_multihost.report.artifacts.folders import JsonVerdict
from pytest_multihost.report.html import explanations, sections
from pytest_multihost.report.html.page_model import PageModel, rank_groups
from pytest_multihost.report.html.render import Assets, render, script_json
from pytest_multihost.report.html.timeline import timeline_data
from pytest_multihost.report.stack_tree import merge_stacks

_OUTCOMES = ("hung", "crashed", "failed", "error", "xfailed", "xpassed", "skipped", "passed")
"""In the order in which a run's page lists them."""


def attempt_page(page: PageModel, assets: Assets) -> str:
    """Return the page of one attempt of one test."""
    timeline = timeline_data(page)
    return render(
        "attempt.html.j2",
        assets,
        page=page,
        result=page.result,
        finding=page.finding,
        diagnosis=page.diagnosis,
        groups=rank_groups(page),
        is_planned=page.diagnosis is not None and sections.is_planned(page, page.diagnosis),
        merge_stacks=merge_stacks,
        sections=sections,
        explanations=explanations,
        left_out=timeline["left_out"],
        timeline_json=script_json(timeline),
    )


def run_page(
    run_id: str, verdicts: Sequence[JsonVerdict], pages: Collection[str], assets: Assets
) -> str:
    """Return the page of a run: every test that ran as a world, those that did not pass first.

    Args:
        run_id: Its name.
        verdicts: The lines of its verdicts.jsonl.
        pages: Folders that hold a page of their own.
        assets: Style and script.
    """
    rows = sorted(
        ((_outcome(each), each) for each in verdicts), key=lambda row: _OUTCOMES.index(row[0])
    )
    counts = Counter(outcome for outcome, _ in rows)
    return render(
        "run.html.j2",
        assets,
        run_id=run_id,
        rows=rows,
        counts=[(outcome, counts[outcome]) for outcome in _OUTCOMES if counts[outcome]],
        pages=pages,
        error_of=_first_error,
    )


def _outcome(verdict: JsonVerdict) -> str:
    """Return a test's status, or how its world ended where that failed it."""
    if verdict["status"] in ("failed", "error") and verdict["outcome"] in ("hung", "crashed"):
        return str(verdict["outcome"])
    return str(verdict["status"])


def _first_error(verdict: JsonVerdict) -> str:
    """Return the first rank's error of a test that did not pass, in one line."""
    errors = [each["error"] for each in verdict["rank_results"] if each["error"]]
    if not errors or verdict["status"] in ("passed", "skipped"):
        return ""
    return f"{errors[0]['type']}: {errors[0]['message']}"[:200]
