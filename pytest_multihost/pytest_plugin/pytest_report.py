"""From the ranks' results to pytest's own report: text, output, properties, warnings, subtests."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator

import pytest

from pytest_multihost.model.event import (
    SerializedReport,
    SubtestEnded,
    WarningRecorded,
    WarningText,
)
from pytest_multihost.model.operation import group_by_value, rank_set
from pytest_multihost.outcome import RankFinding
from pytest_multihost.pytest_plugin.artifacts import CompletedAttempt
from pytest_multihost.pytest_private import (
    ColouredRepr,
    ExceptionRepr,
    TerminalRepr,
    describe_subtest,
    make_longrepr,
    rename_subtest,
    terminal_writer,
)
from pytest_multihost.report import read_log
from pytest_multihost.report.text import COLOURS, page_sections

_FULL = 20_000, 20_000
"""Bytes of head and tail of a rank's output that go into the report; the log has all of it."""

_COLLATERAL = 1_000, 2_000
"""The same for a rank that has lost its peers: its runtime prints pages that do not say why."""


def longrepr(item: pytest.Item, attempt: CompletedAttempt) -> TerminalRepr | str:
    """Return what pytest shows for a world that did not pass.

    The headline rank's own representation with pytest's colours, its message saying which rank,
    and below it what happened to the others.
    """
    shown = _headline(item, attempt)
    writer = terminal_writer(item.config)
    sections = page_sections(
        attempt.judged,
        files=attempt.files,
        columns=writer.fullwidth if writer is not None else None,
    )
    for each in sections:
        shown.addsection(each.title, each.text, "-")
    if hasattr(item.config, "workerinput"):
        return shown  # xdist's workers send what pytest knows how to send
    painted = {
        each.text: [[(span.text, COLOURS[span.role]) for span in line] for line in each.lines]
        for each in sections
    }
    return ColouredRepr(shown, painted)


def _headline(item: pytest.Item, attempt: CompletedAttempt) -> ExceptionRepr:
    finding = attempt.judged.finding
    message = finding.reason
    if finding.outcome == "crashed":
        message = f"CRASHED  {message}"
    headline = next((e for e in finding.ranks if e.facts.rank == finding.headline), None)
    if headline is not None and headline.report is not None:
        original = _deserialized(item.config, headline.report).longrepr
        if isinstance(original, ExceptionRepr) and original.reprcrash is not None:
            original.reprcrash.message = message
            return original
    word = "HUNG  " if finding.outcome == "hung" else ""  # the summary has a word of its own
    text = headline.error.text if headline is not None and headline.error else f"{word}{message}"
    path, line, _ = item.location
    return make_longrepr(text, file=path, line=(line or 0) + 1, message=message)


def _deserialized(config: pytest.Config, data: SerializedReport) -> pytest.TestReport:
    # pytest changes what it is given, and the event keeps what arrived.
    report: pytest.TestReport = config.hook.pytest_report_from_serializable(
        config=config, data=dict(data)
    )
    return report


def add_results(item: pytest.Item, attempt: CompletedAttempt) -> None:
    """Add to an item's report, and to pytest's, everything that the ranks have sent."""
    if item.config.getoption("capture", None) != "no":  # else it has been shown already
        for (when, title, text), ranks in group_by_value(_output(attempt)).items():
            item.add_report_section(when, f"{rank_set(ranks)} {title}", text)
    _add_properties(item, attempt)
    _pass_on_warnings(item.config, attempt)
    _pass_on_subtests(item, attempt)


def _output(attempt: CompletedAttempt) -> Iterator[tuple[tuple[str, str, str], int]]:
    """Yield phase, title and text of what ranks printed and logged, with the rank."""
    for finding in attempt.judged.finding.ranks:
        rank = finding.facts.rank
        path = attempt.directory / f"rank-{rank}.log"
        head, tail = _COLLATERAL if finding.outcome == "collateral" else _FULL
        log = read_log(path, head=head, tail=tail)
        left_out = f"\n... {log.left_out} bytes left out; all of it: {path} ...\n"
        if text := f"{log.head}{left_out}{log.tail}" if log.left_out else log.head:
            yield ("call", "output", text), rank
        # What the logging plugin captured, under pytest's own titles.
        for title, text in _last_report(finding).get("sections", ()):
            if title.startswith("Captured log "):
                yield (title.removeprefix("Captured log "), "log", text), rank


def _add_properties(item: pytest.Item, attempt: CompletedAttempt) -> None:
    """Merge what ranks recorded: equal values once, others with their ranks behind the name."""
    if attempt.judged.diagnosis is not None:
        culprits = ",".join(map(str, attempt.judged.diagnosis.culprits))
        item.user_properties.append(("multihost_kind", attempt.judged.diagnosis.kind))
        item.user_properties.append(("multihost_culprits", culprits))
    recorded = [
        (name, value, finding.facts.rank)
        for finding in attempt.judged.finding.ranks
        for name, value in _last_report(finding).get("user_properties", ())
    ]
    values = {(name, repr(value)): value for name, value, _ in reversed(recorded)}
    alike = group_by_value(((name, repr(value)), rank) for name, value, rank in recorded)
    for key, ranks in alike.items():
        suffix = (
            "" if len(set(ranks)) == attempt.judged.result.spec.size else f"[{rank_set(ranks)}]"
        )
        item.user_properties.append((f"{key[0]}{suffix}", values[key]))


def _last_report(finding: RankFinding) -> SerializedReport:
    """Return the last report of a rank, which repeats what earlier phases have added to it."""
    return finding.facts.reports[-1].report if finding.facts.reports else {}


def _pass_on_warnings(config: pytest.Config, attempt: CompletedAttempt) -> None:
    """Let pytest's summary have the warnings that ranks recorded; equal ones once."""
    bodies = (event.body for event in attempt.judged.result.history)
    recorded = [body for body in bodies if isinstance(body, WarningRecorded)]
    for each, *_ in group_by_value((each.warning, each) for each in recorded).values():
        message = _warning(each.warning)
        where = {"when": each.when, "nodeid": each.nodeid, "location": each.location}
        config.hook.pytest_warning_recorded.call_historic(
            kwargs={"warning_message": message, **where}
        )


def _warning(text: WarningText) -> warnings.WarningMessage:
    category = getattr(sys.modules.get(text.module), text.category, Warning)
    return warnings.WarningMessage(
        message=Warning(text.message),
        category=category,
        filename=text.filename,
        lineno=text.lineno,
    )


def _pass_on_subtests(item: pytest.Item, attempt: CompletedAttempt) -> None:
    """Report the user's subtests, one for all ranks with the same description and outcome."""
    reports = [
        (_deserialized(item.config, event.body.report), event.rank)
        for event in attempt.judged.result.history
        if isinstance(event.body, SubtestEnded)
    ]
    alike = group_by_value(
        ((describe_subtest(report), report.outcome), (report, rank)) for report, rank in reports
    )
    for same in alike.values():
        report, ranks = same[0][0], {rank for _, rank in same}
        if len(ranks) < attempt.judged.result.spec.size:
            rename_subtest(report, f"[{rank_set(ranks)}]")
        item.ihook.pytest_runtest_logreport(report=report)
