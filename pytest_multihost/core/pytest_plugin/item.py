"""A test item whose body runs in ranks, and the transfer of the ranks' results to pytest's report.

At the end of the collection, `convert` mixes `MultihostItem` into the item's own class. The item
stays the object that pytest collected, with its node id, markers and parent, so xdist, --lf, -x,
--durations and reruns treat it like any other. It also stays an instance of its class, which
plugins check. A separate item class would have to be chosen while pytest collects, before a
conftest or a hook may have marked the test; and it could not be a TestCase method or another
plugin's item.

Fixtures are set up in the ranks, never in the controller. In the controller they would open files,
ports and devices that each rank needs for itself, and a runtime started by a fixture would make a
fork unsound.
"""

from __future__ import annotations

import bdb
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

import pytest

from pytest_multihost.core.model.event import SerializedReport, SubtestEnded, WarningRecorded
from pytest_multihost.core.model.operation import group_by_value
from pytest_multihost.core.model.printable import printable
from pytest_multihost.core.outcome import RankFinding
from pytest_multihost.core.pytest_plugin.analysis import Analysis
from pytest_multihost.core.pytest_plugin.attempt import CompletedAttempt
from pytest_multihost.core.pytest_plugin.server_process import ORIGINAL
from pytest_multihost.core.pytest_private import (
    ColouredRepr,
    ExceptionRepr,
    TerminalRepr,
    describe_subtest,
    is_terminal,
    make_longrepr,
    rename_subtest,
    terminal_writer,
    uncaptured,
)
from pytest_multihost.core.report import read_log, without_lines
from pytest_multihost.core.report.layout import COLOURS, Section
from pytest_multihost.core.report.text import page_sections

_RUN_ITEM = pytest.StashKey[Callable[[pytest.Item], CompletedAttempt]]()
_ATTEMPT = pytest.StashKey[CompletedAttempt]()

_FULL = 20_000, 20_000
"""Bytes from the head and the tail of a rank's output in the report; the log has all of it."""

_COLLATERAL = 1_000, 2_000
"""The same for a rank that lost its peers: its runtime prints pages that do not show the cause."""


class WorldFailedError(bdb.BdbQuit):
    """Ends the phase of an item whose world did not pass; users never see it.

    It is a BdbQuit because pytest enters no debugger for that. With --pdb, a debugger would stop in
    this module's frames, while the ranks' frames are gone.
    """


class MultihostItem(pytest.Item):
    """The mixin for the class of every multihost item in the controller."""

    def setup(self) -> None:
        """Discard the last attempt; fixtures are set up in the ranks."""
        self._report_sections.clear()
        self.user_properties.clear()
        if _ATTEMPT in self.stash:
            del self.stash[_ATTEMPT]

    def runtest(self) -> None:
        """Run the test as a world."""
        attempt = self.stash[_ATTEMPT] = self.stash[_RUN_ITEM](self)
        add_results(self, attempt)
        finding = attempt.judged.finding
        if finding.status not in ("passed", "xpassed") and finding.when != "teardown":
            raise WorldFailedError(finding.reason)
        failing = [each for each in attempt.analyses if _fails(self, each)]
        if failing:
            self.stash[_ATTEMPT] = replace(attempt, failed_by=failing[0])
            raise WorldFailedError(failing[0].headline)

    def teardown(self) -> None:
        """Raise in this phase if only the teardown in the ranks failed."""
        attempt = self.stash.get(_ATTEMPT, None)
        if attempt is not None and attempt.judged.finding.when == "teardown":
            raise WorldFailedError(attempt.judged.finding.reason)

    def repr_failure(
        self,
        excinfo: pytest.ExceptionInfo[BaseException],
        *args: Any,  # noqa: ANN401 - as other classes of items define it
        **kwargs: Any,  # noqa: ANN401
    ) -> str | TerminalRepr:
        """Return the ranks' failure instead of the representation of `WorldFailedError`."""
        if isinstance(excinfo.value, WorldFailedError):
            return longrepr(self, self.stash[_ATTEMPT])
        return super().repr_failure(excinfo, *args, **kwargs)

    def iter_markers(self, name: str | None = None) -> Iterator[pytest.Mark]:
        """Yield the markers except markers that only the ranks can evaluate.

        xfail is about exceptions, which are raised in the ranks. A skipif condition that is a
        string is evaluated in the test's module, and may ask the world for its size.
        """
        for mark in super().iter_markers(name):
            conditions = (*mark.args, mark.kwargs.get("condition"))
            has_string = mark.name == "skipif" and any(isinstance(c, str) for c in conditions)
            if mark.name != "xfail" and not has_string:
                yield mark


@cache
def _mixed(kind: type[pytest.Item]) -> type[pytest.Item]:
    metaclass: Any = type(kind)
    mixed: type[pytest.Item] = metaclass(f"Multihost{kind.__name__}", (MultihostItem, kind), {})
    return mixed


def convert(item: pytest.Item, run_item: Callable[[pytest.Item], CompletedAttempt]) -> None:
    """Turn `item` into one whose body runs in ranks.

    Args:
        item: As pytest collected it; in a rank, `server_process` reverts the conversion.
    """
    item.stash[_RUN_ITEM] = run_item
    function = None
    if isinstance(item, pytest.Function) and getattr(item.obj, "is_hypothesis_test", False):
        # Hypothesis's plugin wraps pytest_runtest_call, and would call the test's fixtures there.
        _ = item.location  # computed from the function while it is still in place, then cached
        function = item.obj
        item.obj = lambda: None
    item.stash[ORIGINAL] = type(item), function
    item.__class__ = _mixed(type(item))


def fail_items(items: Iterable[pytest.Item], message: str) -> None:
    """Make every one of `items` fail with `message` instead of running."""

    def fail(_item: pytest.Item) -> NoReturn:
        pytest.fail(message, pytrace=False)

    for item in items:
        convert(item, fail)


def finish_report(
    item: pytest.Item, call: pytest.CallInfo[None], report: pytest.TestReport
) -> None:
    """Set the status of pytest's report of a multihost item to the result of its ranks.

    Call it after every other plugin's makereport, because the ranks have decided the meaning of
    skip, xfail and error for their world. A failure or a skip in this process remains: a hook
    may check the remains of the ranks.
    """
    attempt = item.stash.get(_ATTEMPT, None)
    if attempt is None or call.when == "setup":
        return
    finding = attempt.judged.finding
    if finding.outcome == "hung":
        report.is_multihost_hang = True  # type: ignore[attr-defined] # for the letter, over xdist too
    if call.when == "call" and not _has_own_status(call, report, attempt):
        _apply_status(item, report, attempt)
    if finding.status == "error" and finding.when == "setup" and call.when == "call":
        report.when = "setup"
    if call.when == "teardown":
        if finding.when == "teardown":
            report.longrepr = longrepr(item, attempt)  # pytest asks an item only in the call phase
        del item.stash[_ATTEMPT]  # a thousand histories take much memory


def _has_own_status(
    call: pytest.CallInfo[None], report: pytest.TestReport, attempt: CompletedAttempt
) -> bool:
    """Return whether a hook in this process has failed a test, or has skipped a passed test."""
    if call.excinfo is not None and not isinstance(call.excinfo.value, WorldFailedError):
        is_failure = not isinstance(call.excinfo.value, pytest.skip.Exception)
    else:
        is_failure = report.outcome == "failed" and call.excinfo is None
    has_passed = attempt.judged.finding.status in ("passed", "xpassed") and not attempt.failed_by
    return is_failure or (report.outcome == "skipped" and has_passed)


def _apply_status(item: pytest.Item, report: pytest.TestReport, attempt: CompletedAttempt) -> None:
    finding = attempt.judged.finding
    of_call = finding.call if finding.when == "teardown" else None
    status, reason = of_call or (finding.status, finding.reason)
    if status in ("failed", "error") or attempt.failed_by is not None:
        report.outcome = "failed"
        if report.longrepr is None:  # a hook has caught the exception that ends the phase
            report.longrepr = longrepr(item, attempt)
    elif status == "skipped":
        path, line, _ = item.location
        report.outcome = "skipped"
        report.longrepr = (path, (line or 0) + 1, f"Skipped: {reason}")
    else:
        report.outcome = "skipped" if status == "xfailed" else "passed"
        if status in ("xfailed", "xpassed"):
            reasons = (
                reason
                for facts in (each.facts for each in finding.ranks)
                for reason in (
                    *(made.wasxfail for made in facts.reports),
                    facts.xfail.reason if facts.xfail is not None else None,
                )
                if reason is not None
            )
            report.wasxfail = next(reasons, "")


def longrepr(item: pytest.Item, attempt: CompletedAttempt) -> TerminalRepr | str:
    """Return pytest's representation of a world that did not pass.

    It is the headline rank's own representation with pytest's colours and a message that names the
    rank, followed by sections about the others.
    """
    writer = terminal_writer(item.config)
    # Without a terminal pytest assumes 80 columns, unless COLUMNS says otherwise.
    has_width = writer is not None and (is_terminal(writer) or "COLUMNS" in os.environ)
    columns = writer.fullwidth if writer is not None and has_width else None
    sections: Sequence[Section]
    if attempt.failed_by is not None:
        shown = _at_item(item, attempt.failed_by.headline)
        sections = attempt.failed_by.sections(attempt.files, columns)
    else:
        shown = _headline(item, attempt)
        added = {name: texts for each in attempt.analyses for name, texts in each.lines.items()}
        sections = page_sections(attempt.judged, files=attempt.files, columns=columns, added=added)
    for each in sections:
        shown.addsection(printable(each.title), each.text, "-")
    if hasattr(item.config, "workerinput"):
        return shown  # an xdist worker can send only pytest's own types
    painted = {
        each.text: [
            [(printable(span.text), COLOURS[span.role]) for span in line] for line in each.lines
        ]
        for each in sections
    }
    return ColouredRepr(shown, painted)


def _fails(item: pytest.Item, analysis: Analysis) -> bool:
    """Issue the warnings of an analysis, and return whether it fails the test."""
    fails = analysis.fails_test
    for each in analysis.warnings:
        file, number = item.location[0], (item.location[1] or 0) + 1
        if each.place is not None:
            file, number = each.place.file, each.place.line
        where = str(Path(item.config.rootpath, file))
        try:
            warnings.warn_explicit(each.text, each.category, where, number)
        except each.category:  # -W error
            fails = True
    return fails


def _at_item(item: pytest.Item, message: str) -> ExceptionRepr:
    path, line, _ = item.location
    return make_longrepr(message, file=path, line=(line or 0) + 1, message=message)


def _headline(item: pytest.Item, attempt: CompletedAttempt) -> ExceptionRepr:
    finding = attempt.judged.finding
    message = finding.reason
    headline = next((e for e in finding.ranks if e.facts.rank == finding.headline), None)
    if finding.outcome == "crashed" and (headline is None or headline.outcome == "crashed"):
        message = f"{finding.word.upper()}  {message}"
    if headline is not None and headline.report is not None:
        original = _deserialized(item.config, headline.report).longrepr
        if isinstance(original, ExceptionRepr) and original.reprcrash is not None:
            original.reprcrash.message = message
            return original
    word = "HUNG  " if finding.outcome == "hung" else ""  # the short summary has its own word
    text = headline.error.text if headline is not None and headline.error else f"{word}{message}"
    path, line, _ = item.location
    return make_longrepr(text, file=path, line=(line or 0) + 1, message=message)


def _deserialized(config: pytest.Config, data: SerializedReport) -> pytest.TestReport:
    # A copy, because pytest changes its argument and the event must keep the original.
    report: pytest.TestReport = config.hook.pytest_report_from_serializable(
        config=config, data=dict(data)
    )
    return report


def add_results(item: pytest.Item, attempt: CompletedAttempt) -> None:
    """Add the ranks' output, properties, warnings and subtests to the reports."""
    names = attempt.judged.result.spec.names
    if item.config.getoption("capture", None) != "no":  # else the output has been shown already
        for (when, title, text), ranks in group_by_value(_output(attempt)).items():
            item.add_report_section(when, f"{names.of(ranks)} {title}", text)
    _add_properties(item, attempt)
    _pass_on_warnings(item.config, attempt)
    _pass_on_subtests(item, attempt)


def _output(attempt: CompletedAttempt) -> Iterator[tuple[tuple[str, str, str], int]]:
    """Yield phase, title and text of the ranks' output and log records, with the rank."""
    noise = attempt.judged.result.spec.backend_facts.noise
    for finding in attempt.judged.finding.ranks:
        rank = finding.facts.rank
        path = attempt.directory / f"rank-{rank}.log"
        head, tail = _COLLATERAL if finding.outcome == "collateral" else _FULL
        log = read_log(path, head=head, tail=tail)
        left_out = f"\n... {log.describe_left_out(str(path))} ...\n"
        shown = f"{log.head}{left_out}{log.tail}" if log.left_out else log.head
        if text := without_lines(shown, noise):
            yield ("call", "output", text), rank
        # The logging plugin's captured records, under pytest's own titles.
        for title, text in _last_report(finding).get("sections", ()):
            if title.startswith("Captured log ") and (told := without_lines(text, noise)):
                yield (title.removeprefix("Captured log "), "log", told), rank


def _add_properties(item: pytest.Item, attempt: CompletedAttempt) -> None:
    """Add the ranks' properties: equal values once, others with their ranks behind the name."""
    if attempt.judged.diagnosis is not None:
        culprits = ",".join(map(str, attempt.judged.diagnosis.culprits))
        item.user_properties.append(("multihost_kind", attempt.judged.diagnosis.kind))
        item.user_properties.append(("multihost_culprits", culprits))
    recorded = [
        (name, value, finding.facts.rank)
        for finding in attempt.judged.finding.ranks
        for name, value in _last_report(finding).get("user_properties", ())
    ]
    names = attempt.judged.result.spec.names
    values = {(name, repr(value)): value for name, value, _ in reversed(recorded)}
    alike = group_by_value(((name, repr(value)), rank) for name, value, rank in recorded)
    for key, ranks in alike.items():
        is_all = len(set(ranks)) == names.size
        suffix = "" if is_all else f"[{names.of(ranks)}]"
        item.user_properties.append((f"{key[0]}{suffix}", values[key]))


def _last_report(finding: RankFinding) -> SerializedReport:
    """Return the last report of a rank, which includes the additions of earlier phases."""
    return finding.facts.reports[-1].report if finding.facts.reports else {}


def _pass_on_warnings(config: pytest.Config, attempt: CompletedAttempt) -> None:
    """Pass each distinct warning of the ranks to pytest's summary."""
    bodies = (event.body for event in attempt.judged.result.history)
    recorded = [body for body in bodies if isinstance(body, WarningRecorded)]
    for each, *_ in group_by_value((each.warning, each) for each in recorded).values():
        text = each.warning
        category = getattr(sys.modules.get(text.module), text.category, Warning)
        message = warnings.WarningMessage(
            Warning(text.message), category, text.filename, text.lineno
        )
        where = {"when": each.when, "nodeid": each.nodeid, "location": each.location}
        config.hook.pytest_warning_recorded.call_historic(
            kwargs={"warning_message": message, **where}
        )


def _pass_on_subtests(item: pytest.Item, attempt: CompletedAttempt) -> None:
    """Report the user's subtests, one for all ranks with the same description and outcome."""
    reports = [
        (_deserialized(item.config, event.body.report), event.rank)
        for event in attempt.judged.result.history
        if isinstance(event.body, SubtestEnded)
    ]
    names = attempt.judged.result.spec.names
    alike = group_by_value(
        ((describe_subtest(report), report.outcome), (report, rank)) for report, rank in reports
    )
    for same in alike.values():
        report, ranks = same[0][0], {rank for _, rank in same}
        if len(ranks) < names.size:
            rename_subtest(report, f"[{names.of(ranks)}]")
        with uncaptured(item.config):  # else pytest's line of it would be output of the test
            item.ihook.pytest_runtest_logreport(report=report)
