"""Run the program of a role in a child of its rank, which outlives it.

So the rank can start the program again after an error, and can end a program that does not end by
itself. Each run is a fork of the rank, in which no program has run yet.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from os import _exit  # by name: a program may replace it in its module
from typing import NoReturn

from pytest_multihost.core.cpython_private import run_exit_handlers, wait_for_threads
from pytest_multihost.core.model.errors import MultihostError
from pytest_multihost.core.model.event import Exited, ProgramRestarted
from pytest_multihost.core.model.messages import EndService
from pytest_multihost.core.model.operation import HARNESS_SCOPE
from pytest_multihost.core.model.role import RoleSpec
from pytest_multihost.core.outcome import describe_exit
from pytest_multihost.core.rank.raised_errors import trimmed_traceback
from pytest_multihost.core.rank.recorder import current_recorder
from pytest_multihost.core.rank.role_program import exit_code, run_program
from pytest_multihost.core.rank.stages import ControllerLink

_GRACE_S = 5.0
"""How long a service may take to end after SIGTERM before it is killed."""

_FAREWELL_S = 1.0
"""How long before the tests of all other ranks a service may end by itself."""


def run_in_child(words: Sequence[str], role: RoleSpec, link: ControllerLink) -> None:
    """Run a program in a child process, and again if it ends with an error and may restart.

    The end of the last run is this rank's own, unless it was a service that has been ended.

    Args:
        words: The command line, as for `run_program`.

    Raises:
        SystemExit: The last run exited with an error.
        MultihostError: It was a service that has ended by itself.
    """
    __tracebackhide__ = True
    service = _ServiceProgram(link)
    code = 0
    for number in range(role.restarts + 1):
        sys.stdout.flush()
        sys.stderr.flush()
        if (pid := _fork()) == 0:
            _become_program(words, number, role.restarts)
        if role.is_service:
            service.serves(pid)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if code == 0 and role.is_service:
            service.require_end()
        if code == 0 or service.is_over:
            return
        if number < role.restarts:
            status = Exited(code=code) if code > 0 else Exited(signal=-code)
            link.send(ProgramRestarted(describe_exit(status), number + 1, role.restarts))
    if code < 0:
        with contextlib.suppress(OSError):  # SIGKILL has no handler
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    raise SystemExit(code)


def _fork() -> int:
    """Fork this process, which may have the thread of a service: the child does not need it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


@dataclass(slots=True)
class _ServiceProgram:
    """Ends a program once the controller says so."""

    link: ControllerLink
    _over: threading.Event = field(default_factory=threading.Event)
    _process: int = -1
    _thread: threading.Thread | None = None

    def serves(self, pid: int) -> None:
        """End this process when it is time; only the last process started counts.

        It is kept by a descriptor: when it has ended, another process may get its id.
        """
        previous, self._process = self._process, os.pidfd_open(pid)
        if previous >= 0:
            os.close(previous)
        if self._thread is None:
            self._thread = threading.Thread(target=self._await_end, daemon=True)
            self._thread.start()
        elif self.is_over:  # since the last run has ended
            threading.Thread(target=self._end, daemon=True).start()

    def _await_end(self) -> None:
        recorder = current_recorder()
        record = recorder.begin("service", "wait", (recorder.rank,), scope=HARNESS_SCOPE)
        with recorder.during(record):
            self.link.channel.receive(lambda message: isinstance(message, EndService))
        self._over.set()
        self._end()

    @property
    def is_over(self) -> bool:
        """Whether the controller has said so."""
        return self._over.is_set()

    def require_end(self) -> None:
        """Check that the controller says so, too, of a program that has ended by itself.

        A program may end because its last client asks for that, shortly before the client's test
        returns.

        Raises:
            MultihostError: The other ranks are still in the test.
        """
        if not self._over.wait(_FAREWELL_S):
            raise MultihostError(
                "a service has ended by itself, with exit code 0, while others were in the test",
                remedy="Leave out service=True if the program is to end by itself.",
            )

    def _end(self) -> None:
        with contextlib.suppress(OSError):  # it may have ended
            signal.pidfd_send_signal(self._process, signal.SIGTERM)
            time.sleep(_GRACE_S)
            signal.pidfd_send_signal(self._process, signal.SIGKILL)


def _become_program(words: Sequence[str], number: int, restarts: int) -> NoReturn:
    """Run a program in this child process, and end it as the interpreter does."""
    code = 1
    try:
        current_recorder().claim()
        os.environ["TORCHELASTIC_RESTART_COUNT"] = str(number)
        os.environ["TORCHELASTIC_MAX_RESTARTS"] = str(restarts)
        try:
            run_program(words)
            code = 0
        except SystemExit as error:
            code = exit_code(error)
            if not isinstance(error.code, int):
                sys.stderr.write(f"{error.code}\n")
        wait_for_threads()
        run_exit_handlers()
    except BaseException as error:  # noqa: BLE001 - the program may raise anything
        error.__traceback__ = trimmed_traceback(error)
        sys.excepthook(type(error), error, error.__traceback__)
        code = 1
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):  # the program may have closed it
                stream.flush()
        _exit(code & 0xFF)
