"""Adapt the test tools in a rank: pytest, hypothesis and coverage.py.

pytest's terminal, capture, log file, debugger and timers all belong to the controller. Nothing
here imports a tool: pytest's objects are handed in.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from typing import Any, NoReturn

PytestPrivate = Any
"""An object of pytest's of which private parts are used."""

_NOT_IN_A_RANK = (
    "timeout",  # pytest-timeout: its SIGALRM would fire in a rank; the world has its own deadline
    "faulthandler",  # its one global timer and its descriptor belong to the controller
    "pdbinvoke",
    "pdbtrace",
    "reportlog_plugin",  # writes the controller's file
)
"""Plugins of the controller that must not act in a rank, by the names they register."""


def detach_pytest(config: PytestPrivate) -> None:
    """Remove what must not act in a rank: timers, debugger, capture."""
    manager = config.pluginmanager
    for name in _NOT_IN_A_RANK:
        if manager.has_plugin(name):
            manager.unregister(name=name)
    _stop_capturing(manager.get_plugin("capturemanager"))
    sys.breakpointhook = _refuse_breakpoint


def redirect_pytest(config: PytestPrivate) -> None:
    """Have pytest write to the streams of this process; its --log-file goes to the rank's log."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None:
        reporter._tw._file = sys.stdout  # noqa: SLF001 - no public setter
    logging_plugin = config.pluginmanager.get_plugin("logging-plugin")
    handler = logging_plugin.log_file_handler if logging_plugin is not None else None
    if handler is None or handler.baseFilename == os.devnull:  # no log file was asked for
        return
    replaced = handler.setStream(sys.stderr)
    if replaced is not None:  # left open, it would be a ResourceWarning
        replaced.close()


def _stop_capturing(capture: PytestPrivate) -> None:
    """Let the rank print into its log; capsys and capfd still work.

    pytest's global capture keeps output in an unnamed temporary file, which is lost when the rank
    is killed: just when it is wanted. The log is read back into the report.
    """
    if capture is None:  # -p no:capture
        return
    stdout, stderr, descriptors = sys.__stdout__, sys.__stderr__, (os.dup(1), os.dup(2))
    capture.read_global_capture()
    capture.stop_global_capturing()
    for target, descriptor in zip((1, 2), descriptors, strict=True):
        os.dup2(descriptor, target)
        os.close(descriptor)
    sys.stdout, sys.stderr = stdout, stderr
    capture._method = "no"  # noqa: SLF001 - no public setter
    capture.start_global_capturing()


def _refuse_breakpoint(*_: object, **__: object) -> NoReturn:
    message = (
        "breakpoint() in a rank: a rank has no terminal."
        " Attach with `py-spy dump --pid`, or run the test with ranks=1 outside the marker."
    )
    raise RuntimeError(message)


Function = Any
"""A test function, or what a tool has made of it."""


Fail = Callable[[BaseException], object]


def share_hypothesis_examples(test: Function, seed: int, fail: Fail) -> None:
    """Make a hypothesis test draw the same examples in all ranks; leave any other alone.

    A rank that shrinks or replays alone would run its test body when the others do not, and each
    collective in it would meet a wrong one. So there is no shrinking, and the first failure ends
    the rank. No deadline: a collective takes as long as the slowest rank. No database: ranks would
    read and write it at different moments.

    Args:
        test: The test function or bound method.
        seed: The world's.
        fail: Reports the exception that an example raised, and does not return.
    """
    function: Function = getattr(test, "__func__", test)
    if not getattr(function, "is_hypothesis_test", False):
        return
    hypothesis: Any = sys.modules["hypothesis"]
    own = getattr(function, "_hypothesis_internal_use_settings", None)
    phases = (hypothesis.Phase.explicit, hypothesis.Phase.generate)
    function._hypothesis_internal_use_settings = hypothesis.settings(  # noqa: SLF001
        own or hypothesis.settings.default,
        deadline=None,
        database=None,
        phases=phases,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    function._hypothesis_internal_use_seed = seed  # noqa: SLF001
    handle = function.hypothesis
    handle.inner_test = _first_failure_ends(handle.inner_test, fail)


def _first_failure_ends(body: Function, fail: Fail) -> Function:
    @functools.wraps(body)
    def run(*args: object, **kwargs: object) -> object:
        try:
            return body(*args, **kwargs)
        except Exception as error:
            if type(error).__module__.startswith("hypothesis."):  # assume() and its like
                raise
            named = (f"{name}={value!r}" for name, value in kwargs.items())
            error.add_note(f"Falsifying example: {', '.join((*map(repr, args), *named))}")
            fail(error)
            raise

    return run


def save_coverage() -> None:
    """Write the data of a running coverage.py measurement.

    coverage.py writes in an exit handler, but a rank leaves by `os._exit`. A forked rank inherits
    the controller's data file name, so it gets a separate one; pytest-cov combines all files.
    """
    module: Any = sys.modules.get("coverage")
    measurement: Any = module.Coverage.current() if module is not None else None
    if measurement is None:
        return
    measurement.stop()
    data: Any = measurement._data  # noqa: SLF001 - get_data() would write to the old name
    if data is not None:
        data._suffix = f"rank-{os.getpid()}"  # noqa: SLF001
        data._choose_filename()  # noqa: SLF001
    measurement.save()
