"""A rank's life: put in order, start the backend, run the one test, report, leave.

The test runs through pytest's own protocol hook, never through the bare function: assertion
messages, warning filters and other plugins hang on it.

A rank passes three gates, which the controller opens for all ranks together: `go` when all are
ready; `teardown` when all test bodies are over, because the closing sockets of a rank that is
finished would turn those that wait for it into raisers; `exit` when all fixtures are torn down.
"""

from __future__ import annotations

import atexit
import contextlib
import sys
from collections.abc import Callable, Generator, Iterator, Mapping
from os import _exit, getpid  # by name: a test may replace them in their module
from pathlib import Path
from typing import Any, NoReturn
from warnings import WarningMessage

import pytest

from pytest_multihost.backends import Backend
from pytest_multihost.launch.wire.framing import Channel
from pytest_multihost.model.clock import now
from pytest_multihost.model.spec import RankSpec
from pytest_multihost.nemesis import kinds_by_name
from pytest_multihost.pytest_private import runtestprotocol, set_base_temp, xfail_in_force
from pytest_multihost.rank.after_fork import put_in_order
from pytest_multihost.rank.agent.coverage_data import save_coverage
from pytest_multihost.rank.agent.detach_pytest import forget_setup, tie, untie
from pytest_multihost.rank.agent.exceptions import (
    error_record,
    format_exception,
    let_go,
    shortened,
    warning_record,
)
from pytest_multihost.rank.agent.hypothesis_examples import agree_on_examples
from pytest_multihost.rank.bind_faults import arm, come_late
from pytest_multihost.rank.bind_faults import start as start_faults
from pytest_multihost.rank.controller_link import Teller
from pytest_multihost.rank.points import Points
from pytest_multihost.rank.recorder import current_recorder, start_recording
from pytest_multihost.rank.world import World, enter_world

FindItem = Callable[[str], pytest.Item]

MAX_REPR = 200_000
"""Characters of a failure's representation that travel; nobody reads the middle of more."""

_PLUGIN = "multihost_rank"
"""The name by which the hooks of this module are registered."""


def run_rank(
    spec: RankSpec, channel: Channel, *, find_item: FindItem, backends: Mapping[str, Backend]
) -> NoReturn:
    """Be a rank that was forked from a process that has collected. Never returns.

    Args:
        spec: Its place in the world.
        channel: Its connection to the controller.
        find_item: Returns the collected item with a given node id.
        backends: All backends by name.
    """
    arrive(spec, channel)
    backend = backends[spec.world.backend]
    live(spec, channel, find_item=find_item, backend=backend, is_started=False)


def arrive(spec: RankSpec, channel: Channel) -> None:
    """Put this process in order and say hello: from now on it can be asked for its stacks."""
    put_in_order(spec)
    start_recording(spec)
    Teller(channel).tell("hello", pid=getpid())


def start_backend(spec: RankSpec, channel: Channel, backend: Backend) -> None:
    """Start the backend; if that fails, tell and leave."""
    with _told(channel, root=str(Path.cwd())):
        come_late(spec, Teller(channel).tell)
        backend.start(spec)


def live(
    spec: RankSpec, channel: Channel, *, find_item: FindItem, backend: Backend, is_started: bool
) -> NoReturn:
    """Run the one test and leave.

    Args:
        spec: Its place in the world.
        channel: Its connection to the controller.
        find_item: Returns the collected item with a given node id.
        backend: The world's backend.
        is_started: Whether it has been started already.
    """
    teller = Teller(channel)
    with _told(channel, root=str(Path.cwd())):
        item = find_item(spec.world.nodeid)
    if not is_started:
        start_backend(spec, channel, backend)
    with _told(channel, root=str(item.config.rootpath)):
        # jax registers its shutdown barrier; a rank leaves without it, see `_leave`.
        atexit._clear()  # noqa: SLF001 - as in hygiene
        enter_world(World(spec, backend, channel, current_recorder()))
        _put_pytest_in_order(item.config, spec)
        forget_setup(item.session)
        _prepare_examples(item, spec, channel)
        teller.tell("ready")
        teller.await_gate("go")
        _run_test(item, teller, _armed(item, spec, teller))
        teller.tell("done")
    _leave(teller)


@contextlib.contextmanager
def _told(channel: Channel, *, root: str) -> Iterator[None]:
    """Tell the controller of whatever leaves the block, and end the rank's life there."""
    try:
        yield
    except EOFError:  # the controller is gone, and whoever could read a report with it
        _exit(1)
    except BaseException as error:  # noqa: BLE001 - pytest.exit(), Ctrl-C, a plugin's error
        tell_interrupted(channel, error, root=root)


def tell_interrupted(
    channel: Channel, error: BaseException, *, root: str, is_expected: bool = False
) -> NoReturn:
    """Tell of what kept this rank from a report, and whether xfail expects it, and leave."""
    teller = Teller(channel)
    let_go(error)
    record = error_record(error, root=root, text=format_exception(error))
    teller.tell("interrupted", error=record, is_expected=is_expected)
    _leave(teller)


def _prepare_examples(item: pytest.Item, spec: RankSpec, channel: Channel) -> None:
    root = str(item.config.rootpath)

    def tell(error: BaseException) -> NoReturn:
        tell_interrupted(channel, error, root=root, is_expected=_is_expected(item, error))

    agree_on_examples(getattr(item, "obj", None), spec.world.seed, tell)


def _armed(item: pytest.Item, spec: RankSpec, teller: Teller) -> Points:
    """Return the points of this rank, with its faults bound to them."""
    has_faults = bool(spec.world.faults)
    kinds = kinds_by_name(item.config.hook.pytest_multihost_faults()) if has_faults else {}
    points = arm(spec, kinds, current_recorder(), teller.tell)
    points.performed = teller.await_performed
    return points


def _run_test(item: pytest.Item, teller: Teller, points: Points) -> None:
    plugin: _RankPlugin = item.config.pluginmanager.get_plugin(_PLUGIN)  # type: ignore[assignment] # ours
    plugin.enter(teller, points)
    item.ihook.pytest_runtest_protocol(item=item, nextitem=None)


def _leave(teller: Teller) -> NoReturn:
    """Wait for the exit gate, then end without the interpreter's shutdown.

    `sys.exit` would run the destructors of runtimes whose peers are leaving too: measured 40 times
    the CPU seconds, and jax's shutdown barrier on top. What the test itself registered with
    `atexit` still runs.
    """
    teller.await_gate("exit")
    try:
        atexit._run_exitfuncs()  # noqa: SLF001 - as in hygiene
        save_coverage()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):  # a test may have closed or replaced it
                stream.flush()
        _exit(0)


def prepare_pytest(config: pytest.Config) -> None:
    """Cut what ties this copy of pytest to the controller, and take part in its hooks.

    Done in the server, once for all ranks that it will fork: in each of them it would make a copy
    of hundreds of pages of memory.
    """
    manager = config.pluginmanager
    if manager.has_plugin(_PLUGIN):
        return
    untie(config)
    manager.register(_RankPlugin(config), _PLUGIN)


def _put_pytest_in_order(config: pytest.Config, spec: RankSpec) -> None:
    """Tie this copy of pytest to the files of this rank."""
    prepare_pytest(config)
    tie(config)
    base = Path(spec.scratch, f"rank-{spec.rank}")
    base.mkdir(mode=0o700)
    set_base_temp(config, base)


class _RankPlugin:
    """The hooks of this package inside a rank."""

    _teller: Teller
    _points: Points

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._is_in_body = False

    def enter(self, teller: Teller, points: Points) -> None:
        """Become this rank's."""
        self._teller, self._points = teller, points

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool:
        """Run the test once: a rank that reruns alone would hang the others.

        `log=False`: terminal, JUnit and the like live in the controller and hear of the world's
        one report there.
        """
        runtestprotocol(item, log=False, nextitem=nextitem)
        return True

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        self._teller.tell("phase", phase="setup")
        start_faults(self._points, [getattr(item, "module", None)])

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self) -> Generator[None]:
        self._teller.tell("phase", phase="call")
        self._is_in_body = True
        try:
            return (yield)
        finally:
            self._points.heal()
            self._is_in_body = False

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_teardown(self) -> None:
        """Park: the test body is over, everything it holds stays open."""
        self._points.heal()  # also when the setup failed
        self._teller.tell("parked")
        self._teller.await_gate("teardown")
        self._teller.tell("phase", phase="teardown")

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Tell of each phase as soon as it is over, before anything of the next can hang."""
        at_s = now()
        _end_if_child(self._teller.channel, call)
        report = yield
        if not self._is_in_body:  # in the body it is a subtest's, told by logreport
            self._tell_report(item, call, report, at_s)
        return report

    def _tell_report(
        self, item: pytest.Item, call: pytest.CallInfo[None], report: pytest.TestReport, at_s: float
    ) -> None:
        error = None
        if call.excinfo is not None and (not report.skipped or hasattr(report, "wasxfail")):
            root = str(item.config.rootpath)
            error = error_record(
                call.excinfo.value, root=root, text=shortened(report.longreprtext, MAX_REPR)
            )
        record = {
            "when": report.when,
            "outcome": report.outcome,
            "wasxfail": getattr(report, "wasxfail", None),
            "is_strict_xpass": _is_strict_xpass(call, report),
            "xfail": _xfail(item),
            "duration_s": report.duration,
            "error": error,
            "report": _serialized(item.config, report),
        }
        self._teller.channel.send({"kind": "report", "at_s": at_s, **record})

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Tell of a subtest; the test's own reports are not logged in a rank."""
        self._teller.tell(
            "subtest", outcome=report.outcome, report=_serialized(self._config, report)
        )

    def pytest_warning_recorded(
        self,
        warning_message: WarningMessage,
        when: str,
        nodeid: str,
        location: tuple[str, int, str] | None,
    ) -> None:
        if when != "runtest":  # of the collection, and replayed to whoever registers later
            return
        record = warning_record(warning_message)
        self._teller.tell("warning", when=when, nodeid=nodeid, location=location, warning=record)


def _end_if_child(channel: Channel, call: pytest.CallInfo[None]) -> None:
    """End a forked child of the rank that has run on into the end of the test."""
    if channel.is_ours:
        return
    if call.excinfo is not None:
        sys.stderr.write(format_exception(call.excinfo.value))
    sys.stderr.write("a forked child of this rank returned from the test; it was ended\n")
    _exit(1)


def _is_strict_xpass(call: pytest.CallInfo[None], report: pytest.TestReport) -> bool:
    text = report.longrepr if isinstance(report.longrepr, str) else ""
    return call.excinfo is None and report.failed and text.startswith("[XPASS(strict)]")


def _xfail(item: pytest.Item) -> dict[str, Any] | None:
    """Return the xfail mark that is in force, so that a hang or death can be judged by it."""
    xfail = xfail_in_force(item)
    if xfail is None:
        return None
    return {"reason": xfail.reason, "is_plain": xfail.raises is None}


def _is_expected(item: pytest.Item, error: BaseException) -> bool:
    """Whether the xfail mark that is in force expects an exception, judged as pytest does."""
    xfail = xfail_in_force(item)
    if xfail is None:
        return False
    if xfail.raises is None:
        return True
    if isinstance(xfail.raises, type | tuple):
        return isinstance(error, xfail.raises)
    return bool(xfail.raises.matches(error))


def _serialized(config: pytest.Config, report: pytest.TestReport) -> dict[str, Any]:
    text = report.longreprtext if report.longrepr is not None else ""
    if len(text) > MAX_REPR:
        report.longrepr = shortened(text, MAX_REPR)
    data: dict[str, Any] = config.hook.pytest_report_to_serializable(config=config, report=report)
    return data
