"""Detach a forked copy of pytest from the process that it was copied from.

Terminal, capture, log file, debugger and timers all belong to the controller. Nothing here imports
pytest: its objects are handed in.
"""

from __future__ import annotations

import os
import sys
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
    """Have pytest write to the streams of this process."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None:
        reporter._tw._file = sys.stdout  # noqa: SLF001 - no public setter
    _redirect_log_file(config.pluginmanager.get_plugin("logging-plugin"))


def reset_setup_state(session: PytestPrivate) -> None:
    """Start with nothing set up.

    A server that replaces a dead one is forked in the middle of a run, while the controller has
    an item on its stack.
    """
    session._setupstate = type(session._setupstate)()  # noqa: SLF001 - no public way


def _redirect_log_file(logging_plugin: PytestPrivate) -> None:
    """Send what would go to the controller's --log-file into the rank's log."""
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
