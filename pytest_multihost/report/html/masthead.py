"""The first screen of a page: what happened, who, where, and how to see it again."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import replace

from pytest_multihost.model.diagnosis import Diagnosis, Place
from pytest_multihost.model.rank_set import rank_set
from pytest_multihost.outcome.faults.ongoing import frozen_for_good
from pytest_multihost.report.html.markup import Content, Markup, element
from pytest_multihost.report.html.story import Row, Story, rows
from pytest_multihost.report.html.words import GROUNDS, MEANINGS, NEXT, OUTCOMES, PLANNED

_LONG = 90
_TOO_LONG = 240
"""Characters from which a headline is set smaller, and at which another rank's words are cut."""


def masthead(story: Story) -> Markup:
    """Return the verdict in words."""
    finding, diagnosis = story.finding, story.diagnosis
    return element(
        "header",
        element("p", element("a", "All tests of this run", href="../report.html"), class_="up"),
        element(
            "p",
            element("span", OUTCOMES[finding.outcome], class_=f"pill {finding.outcome}"),
            element("span", diagnosis.kind, class_="kind") if diagnosis else None,
            element("span", diagnosis.confidence, class_="sure") if diagnosis else None,
            class_="verdict",
        ),
        element(
            "h1",
            *_marked(headline(story), diagnosis),
            class_="long" if len(headline(story)) > _LONG else None,
        ),
        element("p", _ground(story), class_="ground"),
        element("p", _world(story), class_="world"),
        class_="masthead",
    )


def headline(story: Story) -> str:
    """Return the one sentence."""
    if story.diagnosis is not None and story.finding.outcome == "hung":
        return story.diagnosis.summary
    reason = story.finding.reason
    return reason if len(reason) <= _TOO_LONG else f"{reason[:_TOO_LONG]}…"


def _marked(text: str, diagnosis: Diagnosis | None) -> Iterator[Content]:
    """Yield a text with the culprits set off, and the group of an operation said more quietly."""
    who = rank_set(diagnosis.culprits) if diagnosis and diagnosis.culprits else None
    patterns = [re.escape(who) + r"(?![\d,-])"] if who else []
    for part in re.split("(" + "|".join([*patterns, r"\((?:world )?group[^)]*\)"]) + ")", text):
        if who and part == who:
            yield element("b", part, class_="culprit")
        elif part.startswith(("(world group", "(group")):
            yield element("small", part)
        else:
            yield part


def _ground(story: Story) -> str:
    diagnosis = story.diagnosis
    if diagnosis is None:
        return story.result.reason or ""
    ground = GROUNDS[diagnosis.detected_by]
    if diagnosis.detected_by == "deadline" and story.result.reason:
        ground = story.result.reason[0].upper() + story.result.reason[1:]
    told = f"{ground}; told {diagnosis.detected_after_s:.1f} s after the last progress."
    return told if story.finding.outcome == "hung" else f"{diagnosis.summary}. {told}"


def _world(story: Story) -> Content:
    spec = story.result.spec
    size = f"{spec.size} rank{'s' if spec.size > 1 else ''}"
    attempt = f"attempt {spec.attempt}" if spec.attempt > 1 else None
    when = story.result.started_at.replace("T", " ").replace("Z", " UTC")
    facts = [size, spec.backend, when, attempt]
    return [element("code", spec.nodeid), " ", element("span", " · ".join(filter(None, facts)))]


# Who did what


def who(story: Story) -> Markup:
    """Return a line for each group of ranks that did the same, the culprit first."""
    found = rows(story)
    return element(
        "section",
        element("h2", "Who", id="who", class_="unseen"),
        element(
            "ol",
            [_card(row, story, is_first=index == 0) for index, row in enumerate(found)],
            class_="who",
        ),
        _advice(story),
    )


def _card(row: Row, story: Story, *, is_first: bool) -> Markup:
    at = row.place or _raised_at(row, story)
    excerpt = _excerpt(story) if is_first and row.role == "culprit" else None
    state = row.state.replace("_", " ")
    about = row.doing if row.doing != state else ""
    return element(
        "li",
        element("span", rank_set(row.ranks), class_="ranks"),
        element(
            "div",
            element("p", element("span", state, class_="state"), " ", about, class_="doing"),
            _where(replace(at, source="") if excerpt else at) if at else None,
            excerpt,
            class_="did",
        ),
        class_=row.role or None,
    )


def _raised_at(row: Row, story: Story) -> Place | None:
    error = row.error
    if error is None or not error.file or not error.line:
        return None
    path = error.file if error.file.startswith("/") else f"{story.context.root}/{error.file}"
    return Place(
        error.file, error.line, error.function or "", story.context.source_of(path, error.line)
    )


def _where(at: Place) -> Markup:
    return element(
        "p",
        element("code", f"{at.file}:{at.line}", class_="at"),
        " ",
        element("span", at.function, class_="function"),
        [" ", element("code", at.source, class_="source")] if at.source else None,
        class_="where",
    )


def _excerpt(story: Story) -> Markup | None:
    """Return the lines around the place where the culprit is."""
    where = story.diagnosis.where if story.diagnosis else None
    if not story.excerpt or where is None:
        return None
    lines = [
        element(
            "span",
            element("i", number),
            text or " ",
            class_="here" if number == where["line"] else None,
        )
        for number, text in story.excerpt
    ]
    name = f"source around {where['file']}:{where['line']}"
    return element("pre", lines, class_="excerpt", tabindex=0, role="region", aria_label=name)


def _advice(story: Story) -> Markup | None:
    if story.diagnosis is None:
        return None
    kind = story.diagnosis.kind
    what_next = PLANNED if _is_planned(story, story.diagnosis) else NEXT[kind]
    return element(
        "p",
        element("b", kind),
        ": ",
        MEANINGS[kind],
        " ",
        element("span", what_next),
        class_="advice",
    )


def _is_planned(story: Story, diagnosis: Diagnosis) -> bool:
    """Whether it is faults of the test's own that keep the culprits away."""
    frozen = frozen_for_good(story.result.spec.faults, story.result.history).keys()
    killed = {e.facts.rank for e in story.finding.ranks if e.outcome == "killed_as_planned"}
    return bool(diagnosis.culprits) and frozen | killed >= set(diagnosis.culprits)


def replay(story: Story) -> Markup:
    """Return the line that runs the test again as it was, with a button that copies it."""
    command = f"pytest {shlex.quote(story.result.spec.nodeid)}"
    if token := story.verdict.get("replay"):
        command += f" --multihost-replay {token}"
    return element(
        "section",
        element("h2", "Run it again", id="replay"),
        element(
            "div",
            element("code", command, id="command"),
            element("button", "Copy", type="button", data_copies="command"),
            class_="command",
        ),
    )


def notes(story: Story) -> Markup | None:
    """Return what else the reader should know."""
    found = list(story.diagnosis.notes) if story.diagnosis else []
    found += [f"left behind and ended: {command}" for command in story.result.leftovers]
    if not found:
        return None
    return element("ul", [element("li", each) for each in found], class_="notes")
