"""Run the program of a role in place of the test's function."""

from __future__ import annotations

import contextlib
import os
import runpy
import shlex
import shutil
import signal
import sys
from collections.abc import Callable, Sequence
from os import _exit  # by name: a program may replace it in its module
from typing import NoReturn

from pytest_multihost.core.cpython_private import run_exit_handlers, wait_for_threads
from pytest_multihost.core.model.errors import SettingError, shown
from pytest_multihost.core.model.event import Exited, ProgramRestarted
from pytest_multihost.core.model.spec import RankSpec
from pytest_multihost.core.outcome import describe_exit
from pytest_multihost.core.rank.raised_errors import trimmed_traceback
from pytest_multihost.core.rank.recorder import current_recorder


def program_of(spec: RankSpec) -> Sequence[str]:
    """Return the words of the program that a rank's role runs; empty if it runs the test."""
    role = spec.role
    return () if role is None or not role.run else shlex.split(filled_in(role.run, spec))


def filled_in(text: str, spec: RankSpec) -> str:
    """Return a text of a rank's role with the rank's port and numbers in place of their names."""
    role = spec.role
    if role is None:
        return text
    number = spec.rank - role.ranks.start
    ports = {each.name: spec.ports_of(each)[2] for each in spec.world.roles}
    values = {"port": spec.ports_of(role)[2 + number], "rank": number, "size": len(role.ranks)}
    return text.format(**values, ports=ports)


def run_program(words: Sequence[str]) -> None:
    """Run a module, a file, or a Python program on PATH, as the interpreter would.

    Args:
        words: The command line: "-m", a module and its arguments, or a file and its arguments.

    Raises:
        SettingError: There is no such program.
        BaseException: Any exception of the program, except an exit without an error.
    """
    name = words[1] if words[0] == "-m" else words[0]
    arguments = list(words[2 if words[0] == "-m" else 1 :])
    sys.argv[:] = [name, *arguments]
    try:
        if words[0] == "-m":
            sys.path.insert(0, os.getcwd())  # noqa: PTH109 - as the interpreter does
            runpy.run_module(name, run_name="__main__", alter_sys=True)
            return
        path = name if os.path.isfile(name) else shutil.which(name)  # noqa: PTH113
        if path is None:
            raise SettingError(f"there is no program {shown(name)}")
        runpy.run_path(path, run_name="__main__")
    except SystemExit as error:
        if error.code not in (None, 0):
            raise


def run_again(
    words: Sequence[str], restarts: int, notify: Callable[[ProgramRestarted], None]
) -> None:
    """Run a program in a child process, and again if it ends with an error.

    Each run is a fork of this process, in which no program has run yet. The end of the last one is
    this rank's own.

    Args:
        words: The command line, as for `run_program`.
        restarts: How often it is run again.
        notify: Called before it is.

    Raises:
        SystemExit: The last run exited with an error.
    """
    __tracebackhide__ = True
    code = 0
    for number in range(restarts + 1):
        sys.stdout.flush()
        sys.stderr.flush()
        if (pid := os.fork()) == 0:
            _become_program(words, number, restarts)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if code == 0:
            return
        if number < restarts:
            status = Exited(code=code) if code > 0 else Exited(signal=-code)
            notify(ProgramRestarted(describe_exit(status), number + 1, restarts))
    if code < 0:
        with contextlib.suppress(OSError):  # SIGKILL has no handler
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    raise SystemExit(code)


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
            code = error.code if isinstance(error.code, int) else 1
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
