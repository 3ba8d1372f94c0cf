"""A test item whose body runs in ranks.

At the end of the collection `MultihostItem` is mixed into the item's own class. The item stays the
object that pytest collected, with its node id, markers and parent, so that xdist, --lf, -x,
--durations and reruns treat it like any other; and it stays an instance of its class, which plugins
look at. An item class of our own would have to be chosen while pytest collects, before it is known
whether a conftest or a hook marks the test, and could not be a TestCase method or another plugin's
item.

Fixtures are set up in the ranks, never in the controller: they would open files, ports and devices
that each rank needs for itself, and a runtime that a fixture starts makes a fork unsound.
"""

from __future__ import annotations

import bdb
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest

from pytest_multihost.pytest_plugin.artifacts import CompletedAttempt
from pytest_multihost.pytest_plugin.pytest_report import add_results, longrepr
from pytest_multihost.pytest_plugin.server_process import ORIGINAL
from pytest_multihost.pytest_private import TerminalRepr

_RUN_ITEM = pytest.StashKey[Callable[[pytest.Item], CompletedAttempt]]()
_ATTEMPT = pytest.StashKey[CompletedAttempt]()


class WorldFailedError(bdb.BdbQuit):
    """Ends the phase of an item whose world did not pass; never seen by a user.

    A BdbQuit, because pytest enters no debugger for it: with --pdb it would stop in this module's
    frames, and those of the ranks are gone.
    """


class MultihostItem(pytest.Item):
    """Mixed into the class of every multihost item in the controller."""

    def setup(self) -> None:
        """Forget the last attempt; fixtures are set up in the ranks."""
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

    def teardown(self) -> None:
        """Report what only the teardown in the ranks got wrong, where pytest expects it."""
        attempt = self.stash.get(_ATTEMPT, None)
        if attempt is not None and attempt.judged.finding.when == "teardown":
            raise WorldFailedError(attempt.judged.finding.reason)

    def repr_failure(
        self,
        excinfo: pytest.ExceptionInfo[BaseException],
        *args: Any,  # noqa: ANN401 - as other classes of items define it
        **kwargs: Any,  # noqa: ANN401
    ) -> str | TerminalRepr:
        """Show what the ranks saw instead of our own exception."""
        if isinstance(excinfo.value, WorldFailedError):
            return longrepr(self, self.stash[_ATTEMPT])
        return super().repr_failure(excinfo, *args, **kwargs)

    def iter_markers(self, name: str | None = None) -> Iterator[pytest.Mark]:
        """Leave out what only the ranks can judge.

        xfail is about exceptions, and those are raised in the ranks. A skipif condition that is a
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


def _runs_in_ranks() -> None:
    """Replace a test function that plugins in the controller must not see."""


def convert(item: pytest.Item, run_item: Callable[[pytest.Item], CompletedAttempt]) -> None:
    """Make `item` one whose body runs in ranks.

    Args:
        item: As pytest collected it; a rank gets it back as it was (`server_process`).
        run_item: Runs it as a world.
    """
    item.stash[_RUN_ITEM] = run_item
    function = None
    if isinstance(item, pytest.Function) and getattr(item.obj, "is_hypothesis_test", False):
        # Hypothesis's plugin wraps pytest_runtest_call, and would call the test's fixtures there.
        _ = item.location  # computed from the function while that is still in place, then cached
        function = item.obj
        item.obj = _runs_in_ranks
    item.stash[ORIGINAL] = type(item), function
    item.__class__ = _mixed(type(item))


def finish_report(
    item: pytest.Item, call: pytest.CallInfo[None], report: pytest.TestReport
) -> None:
    """Set the status of pytest's report of a multihost item to the result of its ranks.

    To be called after every other plugin's makereport: what skip, xfail and error mean for a world
    was decided in the ranks.
    """
    attempt = item.stash.get(_ATTEMPT, None)
    if attempt is None or call.when == "setup":
        return
    finding = attempt.judged.finding
    if finding.outcome == "hung":
        report.is_multihost_hang = True  # type: ignore[attr-defined] # for the letter, over xdist too
    if call.when == "call" and finding.when != "teardown":
        _apply_status(item, report, attempt)
    if finding.status == "error" and finding.when == "setup" and call.when == "call":
        report.when = "setup"
    if call.when == "teardown":
        if finding.when == "teardown":
            report.longrepr = longrepr(item, attempt)  # pytest asks an item only for its call's
        del item.stash[_ATTEMPT]  # a thousand histories are a lot of memory


def _apply_status(item: pytest.Item, report: pytest.TestReport, attempt: CompletedAttempt) -> None:
    finding = attempt.judged.finding
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
    for each in attempt.judged.finding.ranks:
        for report in each.facts.reports:
            if report.wasxfail is not None:
                return report.wasxfail
        if each.facts.xfail is not None:
            return each.facts.xfail.reason
    return ""
