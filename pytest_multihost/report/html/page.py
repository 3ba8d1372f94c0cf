"""The page of one test: from facts and verdict to text, without reading or writing anything."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pytest_multihost.report.html import masthead, particulars, stacks
from pytest_multihost.report.html.markup import Content, Markup, data_block, element, joined
from pytest_multihost.report.html.story import Story, lane_words
from pytest_multihost.report.html.timeline import timeline

_LINKS = (
    ("who", "Who"),
    ("timeline", "Timeline"),
    ("stacks", "Stacks"),
    ("exceptions", "Exceptions"),
    ("evidence", "Evidence"),
    ("ranks", "Ranks"),
    ("logs", "Logs"),
    ("faults", "Faults"),
    ("environment", "Environment"),
    ("files", "Files"),
)

_KEYS = (
    "Lanes of the ranks over time. Arrow keys: up and down choose a rank, left and right one of"
    " its operations; plus and minus zoom."
)


@dataclass(frozen=True, slots=True)
class Assets:
    """What a page carries besides its content.

    Attributes:
        style: CSS.
        script: JavaScript.
    """

    style: str
    script: str


def attempt_page(story: Story, assets: Assets) -> str:
    """Return the page of one attempt of one test."""
    data = timeline(
        story.result,
        story.finding,
        story.diagnosis,
        root=story.context.root,
        words=lane_words(story),
    )
    parts = {
        "who": masthead.who(story),
        "timeline": lanes(story, data["left_out"]),
        "stacks": stacks.stacks(story),
        "exceptions": particulars.failures(story),
        "evidence": particulars.evidence(story),
        "ranks": particulars.ranks(story),
        "logs": particulars.logs(story),
        "faults": particulars.faults(story),
        "environment": particulars.environment(story),
        "files": particulars.files(story),
    }
    links = [element("a", name, href=f"#{id_}") for id_, name in _LINKS if parts[id_] is not None]
    body = [
        masthead.masthead(story),
        element("nav", links, aria_label="parts of this page"),
        element(
            "main",
            parts["who"],
            masthead.notes(story),
            parts["timeline"],
            masthead.replay(story),
            *(part for id_, part in parts.items() if id_ not in ("who", "timeline")),
        ),
        data_block("data", data),
    ]
    title = f"{story.finding.outcome}: {masthead.headline(story)}"
    return document(title, body, assets)


def lanes(story: Story, left_out: int) -> Markup:
    """Return the frame that the script draws the ranks' lanes in."""
    buttons: Sequence[tuple[str, str, str]] = (
        ("in", "+", "zoom in"),
        ("out", "\u2212", "zoom out"),
        ("all", "All", "show all of the time"),
        ("end", "End", "zoom to the moment of the hang"),
    )
    return element(
        "section",
        element("h2", "Timeline", id="timeline"),
        element(
            "div",
            element(
                "div",
                [element("span", word, class_=f"key {sort}") for sort, word in _legend(story)],
                class_="legend",
            ),
            element(
                "div",
                [
                    element(
                        "button", text, type="button", data_zoom=what, aria_label=name, title=name
                    )
                    for what, text, name in buttons
                ],
                class_="zoom",
            ),
            class_="tools",
        ),
        element(
            "div",
            element("div", class_="names", aria_hidden="true"),
            element("div", element("canvas", aria_hidden="true"), class_="plot"),
            id="lanes",
            tabindex=0,
            role="group",
            aria_label=_KEYS,
        ),
        element("div", id="chosen", aria_live="polite", class_="chosen"),
        element("p", f"{left_out} earlier operations are not drawn.", class_="lead")
        if left_out
        else None,
        element(
            "noscript",
            element("p", "The lanes are drawn by a script. All that they show is in facts.json."),
        ),
    )


def _legend(story: Story) -> Iterator[tuple[str, str]]:
    diagnosis = story.diagnosis
    yield "done", "operation"
    yield "open", "waiting in one"
    if diagnosis is not None and (diagnosis.culprits or diagnosis.cycle):
        yield "late", "the culprit" if diagnosis.culprits else "in the circle"
    if story.result.spec.faults:
        yield "fault", "fault"
    if story.result.detected_s is not None:
        yield "moment", "last progress, verdict"


def document(title: str, body: Content, assets: Assets) -> str:
    """Return a whole page that loads nothing, from anywhere, and runs no script but its own."""
    policy = (
        f"default-src 'none'; img-src data:; style-src '{_hash(assets.style)}';"
        f" script-src '{_hash(assets.script)}'; base-uri 'none'; form-action 'none'"
    )
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("meta", name="robots", content="noindex"),
        element("title", title),
        element("link", rel="icon", href="data:,"),
        Markup(f"<style>{assets.style}</style>"),
    )
    end = Markup(f"<script>{assets.script}</script>")
    page = element("html", head, element("body", joined([body, end])), lang="en")
    return f"<!doctype html>\n{page.text}\n"


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"
