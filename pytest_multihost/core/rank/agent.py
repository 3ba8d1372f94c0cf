"""Run one test through pytest in a rank.

The rank resets the state that the fork copied, starts the backend, runs the test, reports, and
leaves. No other module in a rank imports pytest: a program may call
`pytest_multihost.current_world()` in production, where it must cost nothing.

Hooks send events for each phase to the controller, and wait for its gates. A rank passes three
gates, which the controller opens for all ranks together: `go` when all are ready; `teardown` when
all test bodies are over, because a rank that tears down closes its sockets, and ranks that wait for
it would see a lost connection instead of a hang; `exit` when all fixtures are torn down.
"""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable, Generator, Mapping
from dataclasses import replace
from functools import partial
from os import _exit  # by name: a test may replace it in its module
from pathlib import Path
from typing import Any, NoReturn
from warnings import WarningMessage

import pytest

from pytest_multihost.core.backends import Backend
from pytest_multihost.core.cpython_private import clear_exit_handlers, pool_threads
from pytest_multihost.core.launch.wire import Channel
from pytest_multihost.core.model.errors import SettingError
from pytest_multihost.core.model.event import (
    Done,
    Parked,
    PhaseEntered,
    Ready,
    ReportMade,
    SerializedReport,
    SubtestEnded,
    WarningRecorded,
    WarningText,
    XfailMark,
    now,
)
from pytest_multihost.core.model.spec import RankSpec
from pytest_multihost.core.pytest_private import (
    Xfail,
    check_leftovers,
    redirect_log_file,
    redirect_terminal,
    reset_setup_state,
    reset_stop_requests,
    runtestprotocol,
    set_base_temp,
    start_debugger,
    stop_capturing,
    stop_requests,
    terminal_muted,
    xfail_before_setup,
    xfail_in_force,
)
from pytest_multihost.core.rank.neighbours import share_hypothesis_examples
from pytest_multihost.core.rank.program_child import run_in_child
from pytest_multihost.core.rank.raised_errors import format_exception, raised_error, shortened
from pytest_multihost.core.rank.recorder import current_recorder
from pytest_multihost.core.rank.role_order import start_in_order
from pytest_multihost.core.rank.role_program import program_of, run_program
from pytest_multihost.core.rank.services import (
    RankTest,
    begin_test,
    connect_debugger,
    end_test,
    leave_body,
    leave_to_services_after_failure,
    park_services,
    stated_by_services,
)
from pytest_multihost.core.rank.stages import (
    ControllerLink,
    leave,
    send_interrupted,
    sending_errors,
    start_backend,
    start_rank,
)
from pytest_multihost.core.rank.world import World, set_world

__all__ = [
    "FindItem",
    "prepare_pytest",
    "run_rank",
    "run_test_and_exit",
    "send_interrupted",
    "start_backend",
    "start_rank",
]

_MAX_REPR = 200_000
"""Maximum number of characters sent of a failure's representation; the middle is cut."""

_JOIN_S = 0.05


class RankPlugin:
    """The hooks of a rank, registered in the server before it forks ranks."""

    _link: ControllerLink
    _test: RankTest
    _spec: RankSpec

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._is_in_body = False
        self._has_failed = False
        self._nodeid = ""

    def enter(self, link: ControllerLink, test: RankTest, spec: RankSpec) -> None:
        """Use the connection, the test and the spec of this rank from now on."""
        self._link, self._test, self._spec = link, test, spec

    @pytest.hookimpl(tryfirst=True)
    def pytest_pyfunc_call(self) -> bool | None:
        """Run the program of the rank's role in place of the test's function, if it has one."""
        program = program_of(self._spec)
        if not program:
            return None
        role = self._spec.role
        if role is not None and role.has_children:
            run_in_child(program, role, self._link)
        else:
            run_program(program)
        return True

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool:
        """Run the test once: a rank that reruns alone would hang the others.

        Reports are not logged, because terminal and JUnit get the world's one report in the
        controller. The rank leaves without the end of pytest's session, so the checks that pytest
        makes at its end are made here; a failed check is an error at the test's teardown.
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
        """Send the phase, wait for the roles after which this one starts, and start the services.

        Faults wrap the functions that they need before any fixture runs.
        """
        self._link.send(PhaseEntered("setup", _mark(xfail_before_setup(item))))
        start_in_order(self._spec, self._link)
        try:
            begin_test(replace(self._test, modules=(getattr(item, "module", None),)))
        except SettingError as error:
            if error.__cause__ is not None:  # the user's module raised: its frames say where
                raise
            pytest.fail(str(error), pytrace=False)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self) -> Generator[None]:
        """Send the phase; end disturbances with the test's body."""
        self._link.send(PhaseEntered("call"))
        self._is_in_body = True
        try:
            yield
            end_test()
            for each in stated_by_services():
                self._link.send(each)
        finally:
            leave_body()
            self._is_in_body = False

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_teardown(self) -> None:
        """Wait until all test bodies are over; everything that this one holds stays open."""
        leave_body()  # even if the setup failed
        if self._has_failed:
            leave_to_services_after_failure()
        self._link.send(Parked())
        park_services()
        self._link.await_gate("teardown")
        self._link.send(PhaseEntered("teardown"))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Send each phase's report before the next phase can hang."""
        at_s = now()
        if not self._link.channel.is_ours:  # a forked child of the rank returned from the test
            if call.excinfo is not None:
                sys.stderr.write(format_exception(call.excinfo.value))
            sys.stderr.write("a forked child of this rank returned from the test; it was ended\n")
            _exit(1)
        report = yield
        if self._is_in_body:  # a subtest's report, sent by pytest_runtest_logreport
            return report
        error = None
        if call.excinfo is not None and (not report.skipped or hasattr(report, "wasxfail")):
            root, text = str(item.config.rootpath), shortened(report.longreprtext, _MAX_REPR)
            error = raised_error(call.excinfo.value, root=root, text=text)
            if isinstance(call.excinfo.value, pytest.FixtureLookupError):  # its text is its data
                missing = f"fixture {call.excinfo.value.argname!r} not found"
                error = replace(error, message=missing)
        is_unexpected = call.excinfo is None and report.failed
        xfail = xfail_in_force(item)
        made = ReportMade(
            when=str(report.when),
            outcome=report.outcome,
            wasxfail=getattr(report, "wasxfail", None),
            is_strict_xpass=is_unexpected and str(report.longrepr).startswith("[XPASS(strict)]"),
            # The mark that is in force, so that a hang or death can be judged by it.
            xfail=_mark(xfail),
            duration_s=report.duration,
            error=error,
            report=_serialized(item.config, report),
        )
        if report.passed and report.when != "teardown":  # the event of the next phase is near
            self._link.send_with_next(made, at_s)
        else:
            self._link.send(made, at_s)
        self._has_failed = self._has_failed or report.failed
        return report

    def pytest_enter_pdb(self, pdb: Any) -> None:  # noqa: ANN401 - the class of --pdbcls
        """Have a service connect each debugger with the user: the rank has no terminal."""
        connect_debugger(pdb)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> Generator[None]:
        """Send a subtest's report; the test's own reports are not logged in a rank.

        pytest's process writes its line, once for all ranks.
        """
        self._link.send(SubtestEnded(report.outcome, _serialized(self._config, report)))
        with terminal_muted(self._config):
            yield

    def pytest_warning_recorded(
        self,
        warning_message: WarningMessage,
        when: str,
        nodeid: str,
        location: tuple[str, int, str] | None,
    ) -> None:
        """Send a warning of the test."""
        if when != "runtest":  # from the collection, replayed to plugins that register later
            return
        text = WarningText(
            module=warning_message.category.__module__,
            category=warning_message.category.__qualname__,
            message=str(warning_message.message),
            filename=warning_message.filename,
            lineno=warning_message.lineno,
        )
        self._link.send(WarningRecorded(when, nodeid or self._nodeid, location, text))


def _mark(xfail: Xfail | None) -> XfailMark | None:
    return XfailMark(xfail.reason, is_plain=xfail.raises is None) if xfail else None


def _join_threads() -> None:
    """Wait briefly for threads that are about to end, perhaps with an exception.

    pytest takes about as long between the end of the last test and its last check. Idle threads of
    an executor do not end, and are skipped.
    """
    idle = pool_threads()
    until_s = now() + _JOIN_S
    for thread in threading.enumerate():
        if not (thread.daemon or thread in idle or thread is threading.main_thread()):
            thread.join(max(0.0, until_s - now()))


def is_expected(item: pytest.Item, error: BaseException) -> bool:
    """Return whether the xfail mark in force expects an exception, by pytest's own rules."""
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
    # For example, the log that the logging plugin has captured.
    report.sections = [(title, shortened(text, _MAX_REPR)) for title, text in report.sections]
    data: SerializedReport = config.hook.pytest_report_to_serializable(config=config, report=report)
    return data


FindItem = Callable[[str], pytest.Item]

_PLUGIN = "multihost_rank"
"""The name under which the hooks inside a rank are registered."""

_NOT_IN_A_RANK = (
    "timeout",  # pytest-timeout: its SIGALRM would fire in a rank; the world has its own deadline
    "faulthandler",  # its one global timer and its descriptor belong to the controller
    "pdbinvoke",
    "pdbtrace",
    "reportlog_plugin",  # writes the controller's file
)
"""Plugins of the controller that must not act in a rank, by their registered names."""


def run_rank(
    spec: RankSpec, channel: Channel, *, find_item: FindItem, backends: Mapping[str, Backend]
) -> NoReturn:
    """Run a rank that was forked from a process that has collected. Never returns.

    Args:
        find_item: Returns the collected item with a given node id.
    """
    start_rank(spec, channel)
    backend = backends[spec.backend]
    start_backend(spec, channel, backend)
    run_test_and_exit(spec, channel, find_item=find_item, backend=backend)


def run_test_and_exit(
    spec: RankSpec, channel: Channel, *, find_item: FindItem, backend: Backend
) -> NoReturn:
    """Run the test and leave.

    Args:
        find_item: Returns the collected item with a given node id.
        backend: The world's backend, which has been started.
    """
    link = ControllerLink(channel)
    with sending_errors(channel):
        item = find_item(spec.world.nodeid)
    root = str(item.config.rootpath)

    def fail(error: BaseException) -> NoReturn:
        send_interrupted(channel, error, root=root, is_expected=is_expected(item, error))

    with sending_errors(channel, root=root):
        # jax registers its shutdown barrier here; a rank leaves without it, see `leave`.
        clear_exit_handlers()
        set_world(World(spec, backend, channel, current_recorder(), start_debugger))
        plugin = _prepare_item(item, spec)
        share_hypothesis_examples(getattr(item, "obj", None), spec.world.seed, fail)
        gc.freeze()  # the rank's last check must report only garbage that the test leaves
        ready_s = now()
        link.send(Ready())
        link.await_gate("go")
        test = RankTest(
            send=link.send,
            await_performed=link.await_performed,
            ask=link.ask,
            plugins=item.config.pluginmanager,
            root=root,
            ready_s=ready_s,
        )
        plugin.enter(link, test, spec)
        # Calling the test function is not enough: hooks in pytest's own protocol make assertion
        # messages, apply warning filters and call other plugins.
        item.ihook.pytest_runtest_protocol(item=item, nextitem=None)
        link.send(Done(*stop_requests(item.session)))
    leave(link)


def prepare_pytest(config: pytest.Config) -> None:
    """Detach this copy of pytest from the controller, and register the hooks of a rank.

    The server does this once for all ranks that it will fork, because each rank would copy hundreds
    of memory pages.

    pytest's global capture is stopped, so that a rank prints into its log, which the report quotes.
    The capture keeps output in an unnamed temporary file, which is lost if the rank is killed.
    """
    manager = config.pluginmanager
    if manager.has_plugin(_PLUGIN):
        return
    for name in filter(manager.has_plugin, _NOT_IN_A_RANK):
        manager.unregister(name=name)
    stop_capturing(config)
    manager.register(RankPlugin(config), _PLUGIN)


def _prepare_item(item: pytest.Item, spec: RankSpec) -> RankPlugin:
    """Point this copy of pytest at the streams and files of this rank; return the rank's hooks."""
    config = item.config
    prepare_pytest(config)
    redirect_terminal(config, sys.stdout)
    redirect_log_file(config, sys.stderr)
    set_base_temp(config, Path(spec.scratch, f"rank-{spec.rank}"))
    # A server that replaces a dead one is forked during a run, when the controller has set up an
    # item.
    reset_setup_state(item.session)
    reset_stop_requests(item.session)
    plugin: RankPlugin = config.pluginmanager.get_plugin(_PLUGIN)  # type: ignore[assignment]
    return plugin
