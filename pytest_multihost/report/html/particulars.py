"""What a verdict rests on, rank by rank: evidence, figures, faults, environment, files."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from pytest_multihost.model.diagnosis import Evidence
from pytest_multihost.model.rank_set import rank_set
from pytest_multihost.model.snapshot import Activity, WorldSnapshot
from pytest_multihost.outcome.faults.firings import firings
from pytest_multihost.report.html.markup import Content, Markup, element
from pytest_multihost.report.html.story import Story
from pytest_multihost.report.html.timeline import role
from pytest_multihost.report.html.words import FILES

_MIB = 1 << 20
_MAX_MOMENTS = 3
_MANY = 24
"""Files that are listed only when asked for."""


def evidence(story: Story) -> Markup | None:
    """Return the facts that speak for the verdict, each with its source."""
    if story.diagnosis is None:
        return None
    claims: dict[tuple[str, str], list[Evidence]] = {}
    for each in story.diagnosis.evidence:
        claims.setdefault((each.fact, each.source), []).append(each)
    last = story.result.snapshots[-1] if story.result.snapshots else None
    return element(
        "section",
        element("h2", "Evidence", id="evidence"),
        element("ul", [_claim(*key, told) for key, told in claims.items()], class_="evidence"),
        _sentences(
            "Could have ended a wait, so nothing was proven before", last.blockers if last else ()
        ),
        _sentences("Could not be seen", last.unobserved if last else ()),
    )


def _claim(claim: str, source: str, told: Sequence[Evidence]) -> Markup:
    moments = [f"+{each.at_s:.2f} s" for each in told if each.at_s is not None]
    when = f" at {', '.join(moments[:_MAX_MOMENTS])}{', …' if len(moments) > _MAX_MOMENTS else ''}"
    return element(
        "li",
        element("span", rank_set(each.rank for each in told), class_="ranks"),
        element("span", claim, element("span", when, class_="quiet") if moments else None),
        element("span", source, class_="from"),
    )


def _sentences(title: str, sentences: Sequence[str]) -> Content:
    if not sentences:
        return None
    return [
        element("h3", title),
        element("ul", [element("li", each) for each in sentences], class_="notes"),
    ]


# Rank by rank


_COLUMNS = (
    "rank",
    "what became of it",
    "phase",
    "main thread",
    "open operation",
    "CPU",
    "memory",
    "exit",
    "pid",
)


def ranks(story: Story) -> Markup:
    """Return a table with what is known of each rank's process."""
    results = story.verdict["rank_results"]
    order = {"culprit": 0, "waiting": 1}
    by_role = sorted(results, key=lambda each: order.get(role(each["rank"], story.diagnosis), 2))
    body = [_rank_row(each, story) for each in by_role]
    table = element(
        "table",
        element("thead", element("tr", [element("th", name, scope="col") for name in _COLUMNS])),
        element("tbody", body),
    )
    return element(
        "section",
        element("h2", "Ranks", id="ranks"),
        element(
            "div",
            table,
            class_="scroll tall",
            tabindex=0,
            role="region",
            aria_label="table of ranks",
        ),
        _looks(story),
    )


def _rank_row(told: Mapping[str, Any], story: Story) -> Markup:
    rank = told["rank"]
    seen = story.seen.get(rank)
    operations = seen.operations if seen else ()
    waited = [each for each in operations if each.waited_s is not None] or list(operations)
    return element(
        "tr",
        element("th", rank, scope="row"),
        element("td", told["outcome"].replace("_", " ")),
        element("td", told["phase"]),
        element("td", _seen_as(told, seen.activity if seen else None)),
        element("td", ", ".join(each.describe(story.result.spec.size) for each in waited[:2])),
        element("td", f"{told['cpu_s']:.1f} s", class_="number"),
        element("td", f"{told['peak_rss_bytes'] / _MIB:.0f} MiB", class_="number"),
        element("td", _exit(told)),
        element("td", told["pid"], class_="number"),
        class_=role(rank, story.diagnosis) or None,
    )


def _seen_as(told: Mapping[str, Any], activity: Activity | None) -> Content:
    label = (told["label"] or "").lower()
    doing = element("code", str(activity)) if activity is not None else None
    return [element("span", label, class_="state"), " ", doing]


def _exit(told: Mapping[str, Any]) -> str:
    if told["signal"] is not None:
        try:
            return signal.Signals(told["signal"]).name
        except ValueError:
            return f"signal {told['signal']}"
    return "" if told["exit_code"] is None else f"code {told['exit_code']}"


def _looks(story: Story) -> Markup | None:
    """Return what the main threads were seen to do at the last looks from outside."""
    looks = story.result.snapshots
    if not looks:
        return None
    started_s = story.result.started_s
    heads = [
        f"+{look.at_s - started_s:.2f} s" + (" trouble" if look.reason == "trouble" else "")
        for look in looks
    ]
    groups: dict[tuple[str, ...], list[int]] = {}
    for rank in range(story.result.spec.size):
        groups.setdefault(tuple(_label_in(look, rank) for look in looks), []).append(rank)
    body = [
        element(
            "tr",
            element("th", rank_set(who), scope="row"),
            [element("td", each) for each in labels],
        )
        for labels, who in groups.items()
    ]
    head = element(
        "tr",
        element("th", "seen at", scope="col"),
        [element("th", each, scope="col") for each in heads],
    )
    table = element("table", element("thead", head), element("tbody", body))
    return element(
        "details",
        element("summary", f"The last {len(looks)} looks at the main threads, from /proc"),
        element(
            "div", table, class_="scroll", tabindex=0, role="region", aria_label="table of looks"
        ),
    )


def _label_in(look: WorldSnapshot, rank: int) -> str:
    seen = next((each for each in look.ranks if each.rank == rank), None)
    if seen is None or seen.label is None:
        return "?"
    more = [" moved" if seen.has_run else "", " holds the interpreter" if seen.holds_gil else ""]
    locks = f" lock of {rank_set(seen.lock_holders)}" if seen.lock_holders else ""
    return f"{seen.label.lower()}{''.join(more)}{locks}"


# Faults, failures, logs


def faults(story: Story) -> Markup | None:
    """Return what disturbed whom, and when."""
    spec = story.result.spec
    if not spec.faults:
        return None
    lines = []
    for index, fault in enumerate(spec.faults):
        when = list(_fired(story, index, [rank for rank in fault.ranks if isinstance(rank, int)]))
        lines.append(
            element("li", element("code", repr(fault)), " ", ", ".join(when) or "never fired")
        )
    return element(
        "section", element("h2", "Faults", id="faults"), element("ul", lines, class_="notes")
    )


def _fired(story: Story, index: int, who: Iterable[int]) -> Iterator[str]:
    for rank in who:
        if found := firings(story.result.history, index, rank):
            times = f" and {len(found) - 1} times more" if len(found) > 1 else ""
            yield f"rank {rank} at +{found[0] - story.result.started_s:.2f} s{times}"


def failures(story: Story) -> Markup | None:
    """Return every exception as pytest shows it, equal ones once."""
    groups: dict[str, list[int]] = {}
    for each in story.finding.ranks:
        if each.error is not None and each.error.text:
            groups.setdefault(each.error.text, []).append(each.facts.rank)
    if not groups:
        return None
    parts = [
        element(
            "details",
            element(
                "summary", element("span", rank_set(who), class_="ranks"), " ", _last_line(text)
            ),
            element(
                "pre", text, tabindex=0, role="region", aria_label=f"failure of {rank_set(who)}"
            ),
            open=story.finding.headline in who,
        )
        for text, who in groups.items()
    ]
    return element("section", element("h2", "Exceptions", id="exceptions"), parts)


def _last_line(text: str) -> str:
    told = [line[1:].strip() for line in text.splitlines() if line.startswith("E ")]
    lines = told[:1] or text.strip().splitlines()[-1:]
    return lines[0][:160] if lines else ""


def logs(story: Story) -> Markup:
    """Return what the ranks printed, equal texts once."""
    groups: dict[tuple[str, str], list[int]] = {}
    by_rank = {log.rank: log for log in story.logs}
    for log in story.logs:
        groups.setdefault((log.head, log.tail), []).append(log.rank)
    parts = [_log(who, story, by_rank[who[0]]) for (head, _), who in groups.items() if head]
    silent = groups.get(("", ""), [])
    return element(
        "section",
        element("h2", "Logs", id="logs"),
        parts,
        element("p", f"{rank_set(silent)} printed nothing.", class_="lead") if silent else None,
    )


def _log(who: Sequence[int], story: Story, log: Any) -> Markup:  # noqa: ANN401 - a Log
    name = rank_set(who)
    roles = {role(rank, story.diagnosis) for rank in who}
    return element(
        "details",
        element("summary", element("span", name, class_="ranks"), " ", _size(log)),
        element(
            "pre",
            log.head,
            element("em", f"\n… {log.left_out} bytes left out; all of it: {log.name} …\n")
            if log.tail
            else None,
            log.tail,
            tabindex=0,
            role="region",
            aria_label=f"log of {name}",
            class_="log",
        ),
        element("p", element("a", log.name, href=log.name)),
        open="culprit" in roles,
    )


def _size(log: Any) -> str:  # noqa: ANN401 - a Log
    lines = log.head.count("\n") + log.tail.count("\n")
    return f"{lines} lines, cut" if log.tail else f"{lines} line{'' if lines == 1 else 's'}"


# The rest


def environment(story: Story) -> Markup:
    """Return with what it ran."""
    told, spec = story.verdict, story.result.spec
    facts = {
        "backend": spec.backend,
        "launch": told["launch"],
        "seed": told["seed"],
        "started": told["started_at"],
        "start-up": f"{told['startup_s']:.2f} s"
        if told["startup_s"] is not None
        else "not all ranks got ready",
        "duration": f"{told['duration_s']:.2f} s",
        "timeout": f"{spec.timeout_s:g} s",
        "worker": told["worker"],
        **told["environment"],
    }
    items = [
        element("div", element("dt", name), element("dd", str(value)))
        for name, value in facts.items()
        if value is not None
    ]
    return element("section", element("h2", "Environment", id="environment"), element("dl", items))


def files(story: Story) -> Markup:
    """Return what else lies in the folder."""
    items = [_file(name) for name in story.files if name in FILES]
    logs_ = [name for name in story.files if name.endswith((".log", ".stacks", ".main", ".tasks"))]
    links = element("p", [[element("a", name, href=name), " "] for name in logs_], class_="files")
    if len(logs_) > _MANY:
        summary = element("summary", f"{len(logs_)} logs and stacks of the ranks")
        links = element("details", summary, links)
    return element(
        "section",
        element("h2", "Files", id="files"),
        element("ul", items, class_="files"),
        links if logs_ else None,
    )


def _file(name: str) -> Markup:
    return element(
        "li", element("a", name, href=name), " ", element("span", FILES[name], class_="quiet")
    )
