"""Puts a process above this one, which watches and otherwise is as if it were not there.

It has to be an ancestor: on many machines only ancestors may read a process. So this process forks,
and its child goes on. The parent passes on signals that a process sends to it alone, stops when the
child is stopped, and ends as the child ends. If the parent is killed, so is the child.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

from pytest_multihost.core import files
from pytest_multihost.core.native_threads import native_thread_problems
from pytest_multihost.extensions.live.watch.option import FOLDER, IN_WORKER, WATCHER

TICK_S, BUSY_S = 0.25, 1.0
"""Time between two readings of the tree at least: while nothing works below, and while it works."""

_SHARE = 0.005
"""The part of a processor that these readings may use: a large tree is read more seldom."""

_PASSED_ON = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGTSTP,
    signal.SIGCONT,
)


def watch_this_process(mode: str) -> None:
    """Go on in a child that this process watches; without effect if an ancestor watches already.

    Args:
        mode: `option.REPORT` or `option.END`.
    """
    if FOLDER in os.environ or IN_WORKER in os.environ:
        return
    if threading.active_count() > 1 or native_thread_problems():
        sys.stderr.write(
            "multihost watch: this process has threads already, so it is not watched:"
            " use multihost watch -- pytest\n"
        )
        return
    sys.stdout.flush()
    sys.stderr.flush()
    folder = tempfile.mkdtemp(prefix="multihost-watch-")
    child = os.fork()
    if not child:
        os.environ[FOLDER] = folder
        return
    with _ended_together(child, folder):
        status = _serve(child, Path(folder), mode)
    _end_as(status)


_SWEEPER = 'read -r _ || kill -9 "$1"; rm -rf -- "$0"'


@contextlib.contextmanager
def _ended_together(child: int, folder: str) -> Iterator[None]:
    """Have a shell remove the folder at the end, and kill the child if this process is killed."""
    command, nowhere = ["sh", "-c", _SWEEPER, folder, str(child)], subprocess.DEVNULL
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=nowhere, stderr=nowhere, start_new_session=True
    ) as sweeper:
        yield
        sweeper.communicate(b"ended\n")


def _serve(child: int, folder: Path, mode: str) -> int:
    """Watch a child until it ends; return the status with which it has ended."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {*_PASSED_ON, signal.SIGCHLD})
    files.put(Path("/proc/self/comm"), WATCHER)
    from pytest_multihost.extensions.live.watch.watcher import ENDS, Watcher  # only needed here

    watcher = Watcher(child, folder, mode)
    status = 0
    while True:
        begun_s = watcher.used_s()
        with contextlib.suppress(Exception):  # a fault of the watcher is none of the tests
            watcher.look()
        least_s = TICK_S if watcher.is_still else BUSY_S
        wait_s = max(least_s, (watcher.used_s() - begun_s) / _SHARE)
        if _pass_on(child, wait_s) in ENDS:
            watcher.keep()
        ended, status = os.waitpid(child, os.WNOHANG | os.WUNTRACED)
        if ended and os.WIFSTOPPED(status):
            os.kill(os.getpid(), signal.SIGSTOP)
            os.kill(child, signal.SIGCONT)
        elif ended:
            break
    with contextlib.suppress(Exception):
        watcher.end()
    return status


def _pass_on(child: int, wait_s: float) -> int:
    """Wait for the next signal, pass it on unless the terminal has sent it to both, and return it.

    Returns 0 if there was none.
    """
    found = signal.sigtimedwait({*_PASSED_ON, signal.SIGCHLD}, wait_s)
    is_for_one = found is not None and found.si_code <= 0
    if found is not None and is_for_one and found.si_signo != signal.SIGCHLD:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, found.si_signo)
    return found.si_signo if found is not None else 0


def _end_as(status: int) -> NoReturn:
    """End with the status with which the child has ended."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        with contextlib.suppress(OSError, ValueError):
            import resource

            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the child has left one, if any
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
        os.kill(os.getpid(), number)
    os._exit(os.waitstatus_to_exitcode(status) & 0xFF)
