"""All uses of pytest's private API.

Only this module may import `_pytest` (import-linter checks it) or touch a private attribute of
pytest's configuration and items. It imports no other module of this package, because both the
plugin and the agent inside a rank need it. A new release of pytest can break only this module.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import io
import os
import sys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import FrameType
from typing import IO, Any, NoReturn

import pluggy
import pytest
from _pytest._code.code import (
    ExceptionRepr,
    ReprExceptionInfo,
    ReprFileLocation,
    ReprTracebackNative,
    TerminalRepr,
)
from _pytest._io import TerminalWriter
from _pytest.config import _prepareconfig
from _pytest.debugging import PdbInvoke, PdbTrace, pytestPDB
from _pytest.outcomes import Exit
from _pytest.runner import check_interactive_exception, runtestprotocol
from _pytest.skipping import Xfail, evaluate_xfail_marks, xfailed_key
from _pytest.warnings import catch_warnings_for_item

# Names that other modules import from here only because this module may import `_pytest`.
__all__ = [
    "ExceptionRepr",
    "TerminalRepr",
    "Xfail",
    "check_interactive_exception",
    "runtestprotocol",
]

PaintedLine = Sequence[tuple[str, Mapping[str, bool]]]
"""The parts of a line, each with its markup."""


class _LoadsOnly:
    """A plugin that stops pytest-cov from measuring a process that only loads plugins."""

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_load_initial_conftests(
        self, early_config: pytest.Config
    ) -> Generator[None, object, object]:
        early_config.known_args_namespace.no_cov = True
        return (yield)


def load_plugins(args: Sequence[str]) -> pytest.PytestPluginManager:
    """Return the plugins that pytest loads for a command line, without configuring them.

    These are all plugins loaded before `pytest_configure`: installed ones, named ones, and initial
    conftest.py files. Their output is not captured, and their assertions are not rewritten.

    Raises:
        Exception: A plugin cannot be loaded, or the options in a configuration file are wrong.
    """
    config = _prepareconfig([*args, "--capture=no", "--assert=plain"], [_LoadsOnly()])
    config._ensure_unconfigure()
    return config.pluginmanager


def base_temp(config: pytest.Config) -> Path:
    """Return the directory of this run's temporary files."""
    return _temp_path_factory(config).getbasetemp()


def set_base_temp(config: pytest.Config, directory: Path) -> None:
    """Make `tmp_path` and related fixtures make their directories in `directory`.

    The first of them makes the directory itself, so a test without such fixtures has none.
    """
    factory = _temp_path_factory(config)
    factory._given_basetemp, factory._basetemp = directory, None


def _temp_path_factory(config: pytest.Config) -> pytest.TempPathFactory:
    # It is public only as a fixture, and callers here cannot request fixtures.
    factory: pytest.TempPathFactory = config._tmp_path_factory  # type: ignore[attr-defined]
    return factory


def terminal_writer(config: pytest.Config) -> TerminalWriter | None:
    """Return pytest's terminal writer; None in xdist's workers, which have none."""
    reporter: Any = config.pluginmanager.get_plugin("terminalreporter")
    writer: TerminalWriter | None = reporter._tw if reporter is not None else None
    return writer


def is_terminal(writer: TerminalWriter) -> bool:
    """Return whether a writer's output is a terminal."""
    is_a_tty: Callable[[], bool] | None = getattr(writer._file, "isatty", None)
    return is_a_tty is not None and is_a_tty()


def write_uncounted(writer: TerminalWriter, text: str) -> None:
    """Write `text` without changing the writer's column count."""
    writer._file.write(text)
    writer._file.flush()


def uncaptured(config: pytest.Config) -> AbstractContextManager[None]:
    """Suspend pytest's capture of output."""
    capture: Any = config.pluginmanager.get_plugin("capturemanager")
    return capture.global_and_fixture_disabled() if capture else nullcontext()


def input_terminal(config: pytest.Config) -> str | None:
    """Return the device of the terminal at standard input, which a capture replaces; or None."""
    capture: Any = config.pluginmanager.get_plugin("capturemanager")
    captured: Any = capture._global_capturing.in_ if capture is not None else None
    is_active = captured is not None and captured._state == "started"
    if is_active:
        captured.suspend()
    try:
        return os.ttyname(0)
    except OSError:
        return None
    finally:
        if is_active:
            captured.resume()


def redirect_terminal(config: pytest.Config, file: IO[str]) -> None:
    """Make the terminal reporter write plain text to `file`, if this run has a reporter."""
    reporter: Any = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None:
        reporter._tw._file = file
        reporter._tw.hasmarkup = False


@contextlib.contextmanager
def terminal_muted(config: pytest.Config) -> Iterator[None]:
    """Drop the output of the terminal reporter within the block."""
    writer: Any = terminal_writer(config)
    if writer is None:
        yield
        return
    file, writer._file = writer._file, io.StringIO()
    try:
        yield
    finally:
        writer._file = file


_released: list[object] = []
"""Streams of captures that have ended; kept because collecting them would warn of an open file."""


def stop_capturing(config: pytest.Config) -> None:
    """End pytest's global capture, so that output goes where it went before; capsys still works.

    Other objects may hold a stream of the capture, such as a logging handler made at import. Their
    output goes to the standard output or error that this process has at that time.
    """
    capture: Any = config.pluginmanager.get_plugin("capturemanager")
    if capture is None:  # -p no:capture
        return
    stdout, stderr, descriptors = sys.__stdout__, sys.__stderr__, (os.dup(1), os.dup(2))
    capture.read_global_capture()
    parts = capture._global_capturing
    for name, part in (("__stdout__", parts.out), ("__stderr__", parts.err)):
        if part is not None:  # --capture=no
            stream = part.tmpfile
            stream.write = lambda text, name=name: getattr(sys, name).write(text)
            stream.close = lambda: None
            _released.append(stream)
    capture.stop_global_capturing()
    for target, descriptor in zip((1, 2), descriptors, strict=True):
        os.dup2(descriptor, target)
        os.close(descriptor)
    sys.stdout, sys.stderr = stdout, stderr
    capture._method = "no"
    capture.start_global_capturing()


def redirect_log_file(config: pytest.Config, file: IO[str]) -> None:
    """Write the log file of the option --log-file to `file` instead."""
    plugin: Any = config.pluginmanager.get_plugin("logging-plugin")
    handler = plugin.log_file_handler if plugin is not None else None
    if handler is None or handler.baseFilename == os.devnull:
        return
    replaced = handler.setStream(file)
    if replaced is not None:  # left open, it would be a ResourceWarning
        replaced.close()


def skip_item(reason: str) -> NoReturn:
    """Skip the running item; pytest then shows the item's line instead of the caller's."""
    raise pytest.skip.Exception(reason, _use_item_location=True)


def post_mortem(item: pytest.Item, call: pytest.CallInfo[None], report: pytest.TestReport) -> None:
    """Show an exception in the debugger, as --pdb does."""
    with contextlib.suppress(Exit):  # the user ends the run: the caller finds out by itself
        PdbInvoke().pytest_exception_interact(item, call, report)


def start_debugger(frame: FrameType) -> None:
    """Stop in the debugger at a frame, as `pytest.set_trace` does at its caller's."""
    debugger: Any = pytestPDB._init_pdb("set_trace")  # type: ignore[no-untyped-call]
    debugger.set_trace(frame)


def register_tracing(plugins: pluggy.PluginManager) -> None:
    """Stop each test in the debugger at its first line, as --trace does."""
    plugins.register(PdbTrace(), "pdbtrace")


def check_leftovers(config: pytest.Config) -> None:
    """Check for exceptions of finalizers and of threads, as pytest does when it ends.

    As there, the warning filters of the configuration apply, and not those of a test's marks.

    Raises:
        Exception: There were some, and the filters turn them into errors.
    """
    __tracebackhide__ = True
    manager = config.pluginmanager
    with contextlib.ExitStack() as stack:
        if manager.has_plugin("warnings"):
            stack.enter_context(
                catch_warnings_for_item(config, config.hook, when="runtest", item=None)
            )
        gc.collect()
        if manager.has_plugin("unraisableexception"):
            _collect("unraisableexception", "collect_unraisable", config)
        if manager.has_plugin("threadexception"):
            _collect("threadexception", "collect_thread_exception", config)


def reset_setup_state(session: pytest.Session) -> None:
    """Forget which fixtures are set up: a process forked during a run inherits the parent's."""
    session._setupstate = type(session._setupstate)()


def xfail_in_force(item: pytest.Item) -> Xfail | None:
    """Return the xfail mark that applies to `item`; None if there is none, or with --runxfail."""
    is_ignored = item.config.getoption("runxfail", None)  # absent with -p no:skipping
    return None if is_ignored else item.stash.get(xfailed_key, None)


def xfail_before_setup(item: pytest.Item) -> Xfail | None:
    """Return the xfail mark that `item` has before its setup; None if it has no valid one.

    pytest evaluates the marks again, and reports their errors.
    """
    if item.config.getoption("runxfail", None) in (None, True):
        return None
    with contextlib.suppress(Exception, pytest.fail.Exception):
        return evaluate_xfail_marks(item)
    return None


def reset_stop_requests(session: pytest.Session) -> None:
    """Forget that the session is to stop: a process forked during a run inherits the parent's."""
    session.shouldfail = session.shouldstop = False


def stop_requests(session: pytest.Session) -> tuple[str, str]:
    """Return why a session should stop, as failed and otherwise; empty: it should not."""
    found = (getattr(session, name, False) for name in ("shouldfail", "shouldstop"))
    fail, stop = (str(each) if each else "" for each in found)
    return fail, stop


def _collect(module: str, function: str, config: pytest.Config) -> None:
    """Report the exceptions that pytest has kept; before 8.4 it reported each one at once."""
    collect = getattr(importlib.import_module(f"_pytest.{module}"), function, None)
    if collect is not None:
        collect(config)


def fixture_definitions(item: pytest.Item, name: str) -> list[pytest.FixtureDef[Any]]:
    """Return the definitions of a fixture that `item` requests; the last one is in force."""
    info: Any = getattr(item, "_fixtureinfo", None)
    return [] if info is None else list(info.name2fixturedefs.get(name, ()))


def set_up_session_fixture(name: str, item: pytest.Function) -> Sequence[Callable[[], object]]:
    """Set up a session fixture for all processes that are forked from this one.

    The fixture keeps its value, or the exception that it raised. A fork therefore returns the value
    without setting the fixture up again, and never tears it down.

    Returns:
        The teardown of the fixture and of the fixtures that it requests, to be called in the
        reverse order.

    Raises:
        ValueError: The fixture is of a narrower scope, or it has parameters.
    """
    state: Any = item.session._setupstate
    request: Any = item._request
    for node in item.listchain():
        state.stack[node] = ([], None)
    try:
        _require_shareable(request._arg2fixturedefs.get(name) or ())
        with contextlib.suppress(*_FIXTURE_OUTCOMES):  # kept by the fixture
            request._get_active_fixturedef(name)
        finishers: list[Callable[[], object]] = []
        for definition in request._fixture_defs.values():
            if definition.cached_result is not None:
                finishers += definition._finalizers
                definition._finalizers.clear()
        return finishers
    finally:
        reset_setup_state(item.session)
        item._initrequest()


_FIXTURE_OUTCOMES = (Exception, pytest.skip.Exception, pytest.fail.Exception)


def _require_shareable(definitions: Sequence[Any]) -> None:
    scopes = [each.scope for each in definitions[-1:] if each.scope != "session"]
    if scopes:
        why = f"its scope is {scopes[0]!r}, and only fixtures of scope 'session' can be shared"
    elif any(each.params is not None for each in definitions):
        why = "it has parameters, and a shared fixture has one value"
    else:
        return
    raise ValueError(why)


def make_longrepr(text: str, *, file: str, line: int, message: str) -> ReprExceptionInfo:
    """Return a failure representation that survives xdist and names its cause.

    Only a representation with `reprcrash` keeps its one-line reason in the short summary and in
    JUnit.
    """
    traceback = ReprTracebackNative([f"{line}\n" for line in text.splitlines()])
    return ReprExceptionInfo(traceback, ReprFileLocation(file, line, message))


_MAX_RULE = 160


class ColouredRepr(ExceptionRepr):
    """A failure representation whose sections may be coloured.

    It has all attributes of the plain representation, because JUnit and others read these.
    """

    def __init__(self, plain: ExceptionRepr, painted: Mapping[str, Sequence[PaintedLine]]) -> None:
        """Take a plain representation, and the coloured lines of its sections by their text."""
        self.sections = plain.sections
        self.reprcrash = plain.reprcrash
        self.reprtraceback = plain.reprtraceback
        self._plain = plain
        self._painted = painted

    def toterminal(self, tw: Any) -> None:  # noqa: ANN401 - private to pytest
        """Write everything; text without a traceback has the colour of errors."""
        sections, self._plain.sections = self._plain.sections, []
        try:
            if type(self._plain) is ReprExceptionInfo:  # made by make_longrepr
                tw.line(str(self._plain), red=True, bold=True)
            else:
                self._plain.toterminal(tw)
        finally:
            self._plain.sections = sections
        for title, text, separator in sections:
            # Without a terminal the lines are as wide as they need; so is the rule above them.
            widest = max((len(line) for line in text.splitlines()), default=0)
            width = tw.fullwidth if is_terminal(tw) else max(tw.fullwidth, min(widest, _MAX_RULE))
            tw.sep(separator, title, fullwidth=width)
            for line in self._painted.get(text) or [[(line, {})] for line in text.splitlines()]:
                for part, markup in line:
                    tw.write(part, **markup)
                tw.line()


def rename_subtest(report: Any, suffix: str) -> None:  # noqa: ANN401 - SubtestReport is private
    """Add `suffix` to the description of a subtest's report.

    The context is frozen, and `dataclasses.replace` would quote its values a second time.
    """
    message = report.context.msg
    object.__setattr__(report.context, "msg", f"{message} {suffix}" if message else suffix)


def describe_subtest(report: Any) -> str:  # noqa: ANN401 - SubtestReport is private
    """Return a description that no other subtest of the same test has."""
    context = report.context
    return f"{context.msg} {dict(context.kwargs)}"
