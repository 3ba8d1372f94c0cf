"""The hooks inside a rank: events for each phase go to the controller, gates come back."""

from __future__ import annotations

import sys
import threading
from collections.abc import Generator
from functools import partial
from os import _exit  # by name: a test may replace it in its module
from warnings import WarningMessage

import pytest

from pytest_multihost.model.event import (
    Parked,
    PhaseEntered,
    ReportMade,
    SerializedReport,
    SubtestEnded,
    WarningRecorded,
    WarningText,
    XfailMark,
    now,
)
from pytest_multihost.pytest_private import check_leftovers, runtestprotocol, xfail_in_force
from pytest_multihost.rank.exceptions import format_exception, raised_error, shortened
from pytest_multihost.rank.points import Points, start_faults
from pytest_multihost.rank.stages import ControllerLink

_MAX_REPR = 200_000
"""Maximum characters of a failure's representation that are sent; the middle is cut."""

_JOIN_S = 0.05


class RankPlugin:
    """The hooks; registered in the server, before there is a rank."""

    _link: ControllerLink
    _points: Points

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._is_in_body = False
        self._nodeid = ""

    def enter(self, link: ControllerLink, points: Points) -> None:
        """Become this rank's."""
        self._link, self._points = link, points

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool:
        """Run the test once: a rank that reruns alone would hang the others.

        `log=False`: terminal, JUnit and the like get the world's one report in the controller.

        Afterwards the rank leaves without pytest's end; what is checked only there is checked here,
        and is an error at the test's teardown.
        """
        self._nodeid = item.nodeid
        runtestprotocol(item, log=False, nextitem=nextitem)
        _join_threads()
        last = pytest.CallInfo.from_call(partial(check_leftovers, item.config), when="teardown")
        if last.excinfo is not None:
            item.ihook.pytest_runtest_makereport(item=item, call=last)
        return True

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Send the phase, and wrap what the faults need before the first fixture runs."""
        self._link.send(PhaseEntered("setup"))
        start_faults(self._points, [getattr(item, "module", None)])

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self) -> Generator[None]:
        """Send the phase; end the faults with the test's body."""
        self._link.send(PhaseEntered("call"))
        self._is_in_body = True
        try:
            return (yield)
        finally:
            self._points.heal()
            self._is_in_body = False

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_teardown(self) -> None:
        """Park: the test body is over, and everything it holds stays open until all are there."""
        self._points.heal()  # also when the setup failed
        self._link.send(Parked())
        self._link.await_gate("teardown")
        self._link.send(PhaseEntered("teardown"))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Send each phase's report as soon as it is over, before anything of the next can hang."""
        at_s = now()
        if not self._link.channel.is_ours:  # a forked child of the rank that has run on into here
            if call.excinfo is not None:
                sys.stderr.write(format_exception(call.excinfo.value))
            sys.stderr.write("a forked child of this rank returned from the test; it was ended\n")
            _exit(1)
        report = yield
        if self._is_in_body:  # a subtest's, sent by logreport
            return report
        error = None
        if call.excinfo is not None and (not report.skipped or hasattr(report, "wasxfail")):
            root, text = str(item.config.rootpath), shortened(report.longreprtext, _MAX_REPR)
            error = raised_error(call.excinfo.value, root=root, text=text)
        is_unexpected = call.excinfo is None and report.failed
        xfail = xfail_in_force(item)
        made = ReportMade(
            when=str(report.when),
            outcome=report.outcome,
            wasxfail=getattr(report, "wasxfail", None),
            is_strict_xpass=is_unexpected and str(report.longrepr).startswith("[XPASS(strict)]"),
            # The mark that is in force, so that a hang or death can be judged by it.
            xfail=XfailMark(xfail.reason, is_plain=xfail.raises is None) if xfail else None,
            duration_s=report.duration,
            error=error,
            report=_serialized(item.config, report),
        )
        self._link.send(made, at_s)
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Send a subtest's report; the test's own reports are not logged in a rank."""
        self._link.send(SubtestEnded(report.outcome, _serialized(self._config, report)))

    def pytest_warning_recorded(
        self,
        warning_message: WarningMessage,
        when: str,
        nodeid: str,
        location: tuple[str, int, str] | None,
    ) -> None:
        """Send a warning of the test."""
        if when != "runtest":  # of the collection, and replayed to plugins that register later
            return
        text = WarningText(
            module=warning_message.category.__module__,
            category=warning_message.category.__qualname__,
            message=str(warning_message.message),
            filename=warning_message.filename,
            lineno=warning_message.lineno,
        )
        self._link.send(WarningRecorded(when, nodeid or self._nodeid, location, text))


def _join_threads() -> None:
    """Wait a moment for threads that are about to end, and may end with an exception.

    pytest takes this long from the end of the last test to its last check. Idle threads of an
    executor do not end.
    """
    pools = sys.modules.get("concurrent.futures.thread")
    idle = getattr(pools, "_threads_queues", ())
    until_s = now() + _JOIN_S
    for thread in threading.enumerate():
        if not (thread.daemon or thread in idle or thread is threading.main_thread()):
            thread.join(max(0.0, until_s - now()))


def is_expected(item: pytest.Item, error: BaseException) -> bool:
    """Whether the xfail mark that is in force expects an exception, judged as pytest does."""
    xfail = xfail_in_force(item)
    if xfail is None or xfail.raises is None:
        return xfail is not None
    if isinstance(xfail.raises, type | tuple):
        return isinstance(error, xfail.raises)
    return bool(xfail.raises.matches(error))


def _serialized(config: pytest.Config, report: pytest.TestReport) -> SerializedReport:
    text = report.longreprtext if report.longrepr is not None else ""
    if len(text) > _MAX_REPR:
        report.longrepr = shortened(text, _MAX_REPR)
    # What the logging plugin has captured, say.
    report.sections = [(title, shortened(text, _MAX_REPR)) for title, text in report.sections]
    data: SerializedReport = config.hook.pytest_report_to_serializable(config=config, report=report)
    return data
