"""A test item whose body runs in ranks.

After collection our class is mixed into the item's own, so the item stays what it was to
everybody else - xdist, --lf, -x, --durations, reruns - and only its phases are ours: fixtures are
set up in the ranks, never here.
"""

from __future__ import annotations

import bdb
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest

from pytest_multihost.pytest_plugin.launching.server_process import FUNCTION, ORIGINAL
from pytest_multihost.pytest_plugin.results import CompletedAttempt, add_results, longrepr
from pytest_multihost.pytest_plugin.run import RUN
from pytest_multihost.pytest_private import TerminalRepr

ATTEMPT = pytest.StashKey[CompletedAttempt]()


class WorldFailedError(bdb.BdbQuit):
    """Ends the phase of an item whose world did not pass; never seen by a user.

    To pytest a BdbQuit is nothing to enter a debugger for, which is right: with --pdb it would stop
    in our own frames, and those of the ranks are gone.
    """


class MultihostItem(pytest.Item):
    """Mixed into the class of every multihost item in the controller."""

    def setup(self) -> None:
        """Forget the last attempt; fixtures are set up in the ranks."""
        self._report_sections.clear()
        self.user_properties.clear()
        if ATTEMPT in self.stash:
            del self.stash[ATTEMPT]

    def runtest(self) -> None:
        """Run the test as a world."""
        self.config.stash[RUN].check_machine(self)
        attempt = self.config.stash[RUN].attempt(self)
        self.stash[ATTEMPT] = attempt
        add_results(self, attempt)
        finding = attempt.finding
        if finding.status not in ("passed", "xpassed") and finding.when != "teardown":
            raise WorldFailedError(finding.reason)

    def teardown(self) -> None:
        """Report what only the teardown in the ranks got wrong, where pytest expects it."""
        attempt = self.stash.get(ATTEMPT, None)
        if attempt is not None and attempt.finding.when == "teardown":
            raise WorldFailedError(attempt.finding.reason)

    def repr_failure(
        self,
        excinfo: pytest.ExceptionInfo[BaseException],
        *args: Any,  # noqa: ANN401 - as other classes of items define it
        **kwargs: Any,  # noqa: ANN401
    ) -> str | TerminalRepr:
        """Show what the ranks saw instead of our own exception."""
        if isinstance(excinfo.value, WorldFailedError):
            return longrepr(self, self.stash[ATTEMPT])
        return super().repr_failure(excinfo, *args, **kwargs)

    def iter_markers(self, name: str | None = None) -> Iterator[pytest.Mark]:
        """Leave out what only the ranks can judge.

        xfail is about exceptions, and those are raised in the ranks. A skipif condition that is a
        string is evaluated in the test's module, and may ask the world for its size.
        """
        for mark in super().iter_markers(name):
            if mark.name != "xfail" and not _is_string_skipif(mark):
                yield mark


def _is_string_skipif(mark: pytest.Mark) -> bool:
    conditions = (*mark.args, mark.kwargs.get("condition"))
    return mark.name == "skipif" and any(isinstance(each, str) for each in conditions)


@cache
def _mixed(kind: type[pytest.Item]) -> type[pytest.Item]:
    metaclass: Any = type(kind)
    mixed: type[pytest.Item] = metaclass(f"Multihost{kind.__name__}", (MultihostItem, kind), {})
    return mixed


def _runs_in_ranks() -> None:
    """Stand in for a test function that the controller must not look at."""


def convert(item: pytest.Item) -> None:
    """Make `item` one whose body runs in ranks."""
    item.stash[ORIGINAL] = type(item)
    if isinstance(item, pytest.Function) and getattr(item.obj, "is_hypothesis_test", False):
        # Hypothesis's own plugin would look at the test's fixtures here, and so set them up.
        _ = item.location  # computed from the function, once
        item.stash[FUNCTION] = item.obj
        item.obj = _runs_in_ranks
    item.__class__ = _mixed(type(item))


def finish_report(
    item: pytest.Item, call: pytest.CallInfo[None], report: pytest.TestReport
) -> None:
    """Give pytest's report of our item the status that the ranks have earned.

    Runs after every other plugin's makereport: what skipping, xfail and error mean for a world was
    decided in the ranks.
    """
    attempt = item.stash.get(ATTEMPT, None)
    if attempt is None or call.when == "setup":
        return
    finding = attempt.finding
    if finding.outcome == "hung":
        report.is_multihost_hang = True  # type: ignore[attr-defined] # for the letter, over xdist too
    if call.when == "call" and finding.when != "teardown":
        _apply_status(item, report, attempt)
    if finding.status == "error" and finding.when == "setup" and call.when == "call":
        report.when = "setup"
    if call.when == "teardown" and finding.when == "teardown":
        report.longrepr = longrepr(item, attempt)  # pytest asks an item only for its call's
    if call.when == "teardown":  # a thousand histories are a lot of memory
        del item.stash[ATTEMPT]


def _apply_status(item: pytest.Item, report: pytest.TestReport, attempt: CompletedAttempt) -> None:
    finding = attempt.finding
    if finding.status in ("failed", "error"):
        report.outcome = "failed"
    elif finding.status == "skipped":
        path, line, _ = item.location
        report.outcome = "skipped"
        report.longrepr = (path, (line or 0) + 1, f"Skipped: {finding.reason}")
    elif finding.status in ("xfailed", "xpassed"):
        report.outcome = "skipped" if finding.status == "xfailed" else "passed"
        report.wasxfail = _xfail_reason(attempt)
    else:
        report.outcome = "passed"


def _xfail_reason(attempt: CompletedAttempt) -> str:
    for each in attempt.finding.ranks:
        for event in each.facts.reports:
            if event.detail["wasxfail"] is not None:
                return str(event.detail["wasxfail"])
        if each.facts.xfail is not None:
            return str(each.facts.xfail["reason"])
    return ""
