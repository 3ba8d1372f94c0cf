"""The page of a run: every test that ran as a world, those that did not pass first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from pytest_multihost.report.html.markup import Content, Markup, element
from pytest_multihost.report.html.page import Assets, document

_ORDER = ("hung", "crashed", "failed", "error", "xfailed", "xpassed", "skipped", "passed")


def run_page(
    run_id: str, verdicts: Sequence[Mapping[str, Any]], pages: Collection[str], assets: Assets
) -> str:
    """Return the page of a run.

    Args:
        run_id: Its name.
        verdicts: The lines of its verdicts.jsonl.
        pages: Folders that hold a page of their own.
        assets: Style and script.
    """
    told = sorted(verdicts, key=lambda each: _ORDER.index(_word(each)))  # stable: else as they ran
    counts = Counter(map(_word, told))
    body = [
        element(
            "header",
            element("p", "pytest-multihost-hangs", class_="up"),
            element("h1", _sum(counts)),
            element("p", _about(run_id, told), class_="world"),
            class_="masthead",
        ),
        element("main", _filters(counts), _table(told, pages)),
    ]
    return document(f"{_sum(counts)}, multihost run {run_id}", body, assets)


def _word(verdict: Mapping[str, Any]) -> str:
    """Return what became of a test: its status, or how its world ended where that failed it."""
    if verdict["status"] in ("failed", "error") and verdict["outcome"] in ("hung", "crashed"):
        return str(verdict["outcome"])
    return str(verdict["status"])


def _sum(counts: Mapping[str, int]) -> str:
    parts = [f"{counts[word]} {word}" for word in _ORDER if counts.get(word)]
    return ", ".join(parts) or "No test ran"


def _about(run_id: str, verdicts: Sequence[Mapping[str, Any]]) -> str:
    size = max((each["world_size"] for each in verdicts), default=0)
    seconds = sum(each["duration_s"] for each in verdicts)
    versions = [
        f"{k} {v}" for k, v in (verdicts[0]["environment"] if verdicts else {}).items() if v
    ]
    worlds = f"{len(verdicts)} world{'' if len(verdicts) == 1 else 's'} of up to {size} ranks"
    return " · ".join([f"run {run_id}", worlds, f"{seconds:.1f} s in worlds", *versions])


def _filters(counts: Mapping[str, int]) -> Content:
    if len(counts) < 2:  # noqa: PLR2004 - nothing to choose from
        return None
    words = [word for word in _ORDER if counts.get(word)]
    return element(
        "div",
        [
            element(
                "button",
                f"{word} {counts[word]}",
                type="button",
                data_shows=word,
                aria_pressed="true",
            )
            for word in words
        ],
        class_="filters",
        role="group",
        aria_label="which tests are shown",
    )


def _table(verdicts: Sequence[Mapping[str, Any]], pages: Collection[str]) -> Markup:
    heads = ("outcome", "test", "ranks", "duration")
    table = element(
        "table",
        element("thead", element("tr", [element("th", name, scope="col") for name in heads])),
        element("tbody", [_row(each, pages) for each in verdicts]),
        class_="tests",
    )
    return element(
        "div", table, class_="scroll", tabindex=0, role="region", aria_label="table of tests"
    )


def _row(verdict: Mapping[str, Any], pages: Collection[str]) -> Markup:
    word = _word(verdict)
    return element(
        "tr",
        element("td", element("span", word.capitalize(), class_=f"pill {word}")),
        element("td", _name(verdict, pages), _why(verdict)),
        element("td", f"{verdict['world_size']} · {verdict['backend']}"),
        element("td", f"{verdict['duration_s']:.2f} s", class_="number"),
        data_word=word,
    )


def _name(verdict: Mapping[str, Any], pages: Collection[str]) -> Content:
    more = [
        f"attempt {verdict['attempt']}" if verdict["attempt"] > 1 else "",
        verdict["worker"] or "",
    ]
    quiet = " · ".join(filter(None, more))
    name = element("code", verdict["nodeid"])
    linked = verdict["dir"] in pages
    return [
        element("a", name, href=f"{verdict['dir']}/report.html") if linked else name,
        element("span", f" {quiet}", class_="quiet") if quiet else None,
    ]


def _why(verdict: Mapping[str, Any]) -> Content:
    diagnosis = verdict["diagnosis"]
    if diagnosis is not None:
        return element(
            "p", element("span", diagnosis["kind"], class_="kind"), " ", diagnosis["summary"]
        )
    errors = [each["error"] for each in verdict["rank_results"] if each["error"]]
    if errors and verdict["status"] not in ("passed", "skipped"):
        return element("p", f"{errors[0]['type']}: {errors[0]['message']}"[:200])
    return None
