"""Reset the state that a forked rank inherits from the server, and so from the controller.

Exit handlers would write the controller's files. Signal handlers and interval timers would run the
controller's code. All ranks would draw the same random numbers. faulthandler would write fatal
errors to a descriptor of the controller. Standard output would be the controller's terminal, and
environment variables would name another world. pytest's own state (capture, terminal, timers) is
reset by `rank.agent.lifecycle`.
"""

from __future__ import annotations

import contextlib
import faulthandler
import io
import json
import os
import random
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from pytest_multihost.core.cpython_private import (
    clear_exit_handlers,
    failed_tasks,
    keep_sockets_in,
    unfinished_tasks,
)
from pytest_multihost.core.files import open_log
from pytest_multihost.core.launch.scratch import sockets_directory
from pytest_multihost.core.model.json_values import to_json
from pytest_multihost.core.model.messages import DumpKind
from pytest_multihost.core.model.spec import RankSpec
from pytest_multihost.core.model.stack import (
    FailedThread,
    Frame,
    TaskState,
    is_library,
    short_path,
    task_state,
)
from pytest_multihost.core.rank.environment import foreign_variables, rank_variables
from pytest_multihost.core.slots.stacks import dump_signal

_MAX_DIRECTORY_BYTES = 85

_BY_FAULTHANDLER: tuple[tuple[DumpKind, bool], ...] = (("threads", True), ("main", False))
"""The dumps that faulthandler writes, and whether they are of all threads."""


def reset_after_fork(spec: RankSpec, *, keeps_input: bool = False) -> None:
    """Turn this forked process into a rank: streams, signals, environment, seeds, dumps.

    Generators are seeded differently in each rank, but reproducibly.

    Args:
        keeps_input: Whether it keeps the standard input that it has.
    """
    files = f"{spec.directory}/rank-{spec.rank}"  # no `Path`: it costs each rank pages
    _redirect_output(f"{files}.log")
    if not keeps_input:
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.close(null)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGALRM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, 0)
    clear_exit_handlers()
    _keep_sockets(sockets_directory(spec.scratch))
    variables = rank_variables(spec, os.environ)
    for name in foreign_variables(os.environ, keeps_proxies=spec.world.keeps_proxies):
        del os.environ[name]
    # Each variable that is set anew costs a rank pages.
    os.environ.update({k: v for k, v in variables.items() if os.environ.get(k) != v})
    # Forked ranks share the state of every generator, so `random.random()` would agree between
    # them. On real hosts it does not, and code that relies on it would pass here and fail there.
    seed = f"{spec.world.seed}/{spec.rank}"
    random.seed(seed)
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed(random.Random(seed).getrandbits(32))
    _arm_faulthandler(files)
    note_failed_threads(f"{files}.threads")


def _keep_sockets(directory: str) -> None:
    """Have multiprocessing keep its sockets in a directory that is removed with the world.

    Names of its sockets have 18 characters; a socket's address may have 107: see unix(7).
    """
    if len(os.fsencode(directory)) <= _MAX_DIRECTORY_BYTES:
        keep_sockets_in(directory)


def _redirect_output(log: str) -> None:
    """Send standard output and error to the rank's log, unbuffered.

    One file keeps the order of both, and unbuffered output survives any end of the rank.
    """
    descriptor = open_log(log)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
    for name, target in (("stdout", 1), ("stderr", 2)):
        raw: Any = _Log(target, "wb", closefd=False)
        stream = io.TextIOWrapper(
            raw, encoding="utf-8", errors="backslashreplace", write_through=True
        )
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


class _Log(io.FileIO):
    """A file that ignores write errors: a full disk must not fail a test that prints.

    It is a subclass because `io.TextIOWrapper` accepts nothing else.
    """

    def write(self, data: Any, /) -> int:  # noqa: ANN401 - any buffer
        try:
            return super().write(data)
        except OSError:
            return len(data)


def _arm_faulthandler(files: str) -> None:
    """Make faulthandler write fatal errors to the log, and stacks to a file on a signal.

    faulthandler's own handler is C and async-signal-safe: it works even while a thread holds the
    GIL and never returns. The handler for asyncio tasks is Python and needs the GIL.
    """
    faulthandler.enable(file=2)
    file = open_log(f"{files}.stacks")  # never closed; py-spy may also write there
    os.ftruncate(file, 0)
    for kind, is_all in _BY_FAULTHANDLER:
        faulthandler.register(dump_signal(kind), file=file, all_threads=is_all, chain=False)
    dump_tasks_on_signal(dump_signal("tasks"), f"{files}.tasks")
    dump_locks_on_signal(dump_signal("locks"), f"{files}.locks")
    dump_file_on_signal(dump_signal("files"), f"{files}.files")


def note_failed_threads(file: str) -> None:
    """Write a line of JSON to `file` for each thread that an exception ends, as soon as it does.

    pytest shows such an exception after the test, but a rank that then waits for the thread for
    ever is ended before.
    """
    handle = threading.excepthook

    def noted(args: threading.ExceptHookArgs, /) -> None:
        with contextlib.suppress(Exception):  # its __str__ may raise anything
            if args.exc_type is not SystemExit:  # which Python ignores in threads
                _append(file, f"{json.dumps(to_json(_failed_thread(args)))}\n")
        handle(args)

    threading.excepthook = noted


def _failed_thread(args: threading.ExceptHookArgs) -> FailedThread:
    error = f"{args.exc_type.__name__}: {args.exc_value}".partition("\n")[0]
    trace = traceback.extract_tb(args.exc_traceback)[::-1]
    frames = [Frame(each.filename, each.lineno or 0, each.name) for each in trace]
    return FailedThread(
        name=args.thread.name if args.thread is not None else "",
        error=error[:_MAX_ERROR],
        frame=next((each for each in frames if not is_library(each.file)), None),
    )


_MAX_ERROR = 500
_MAX_TASKS = 50
_MAX_DEPTH = 30
_AWAITABLES = (
    ("cr_code", "cr_frame", "cr_await"),
    ("gi_code", "gi_frame", "gi_yieldfrom"),
    ("ag_code", "ag_frame", "ag_await"),
)
"""Code, frame and inner awaitable of coroutines and generators."""


def dump_tasks_on_signal(number: int, file: str) -> None:
    """Write a line of JSON per asyncio task that waits or has failed to `file` on signal `number`.

    The stack of a rank in an event loop shows only `select`. Before Python 3.14, which has
    `python -m asyncio pstree`, only the rank itself can read its tasks.

    The handler is Python code: it runs once the main thread returns from C, which is soon in an
    event loop.
    """

    def lines(_: FrameType | None) -> list[str]:
        failed = [
            TaskState(task.get_name(), error=f"{type(error).__name__}: {error}".partition("\n")[0])
            for task, error in failed_tasks()[:_MAX_TASKS]
        ]
        waiting = [_task_state(task) for task in unfinished_tasks()[:_MAX_TASKS]]
        return [json.dumps(to_json(each)) for each in (*failed, *waiting)]

    _write_on_signal(number, file, lines, none="{}")


def dump_locks_on_signal(number: int, file: str) -> None:
    """Write a line of JSON per wait for a lock or thread to `file` on signal `number`.

    The handler is Python code, which runs also while the main thread waits for a lock.
    """

    def lines(interrupted: FrameType | None) -> list[str]:
        from pytest_multihost.core.rank.lock_waits import lock_waits

        return [json.dumps(to_json(each)) for each in lock_waits(interrupted)]

    _write_on_signal(number, file, lines, none="{}")


def dump_file_on_signal(number: int, file: str) -> None:
    """Write a line of JSON with the file for which the main thread polls, on signal `number`."""

    def lines(interrupted: FrameType | None) -> list[str]:
        from pytest_multihost.core.rank.polled_files import polled_file

        found = polled_file(interrupted)
        return [json.dumps(to_json(found))] if found is not None else []

    _write_on_signal(number, file, lines, none="{}")


def _write_on_signal(
    number: int, file: str, lines: Callable[[FrameType | None], list[str]], *, none: str
) -> None:
    """Append lines to `file` on signal `number`.

    Args:
        lines: Returns the lines; takes the frame that the signal has interrupted.
        none: The line that is written if there are none, because the asker waits for an answer.
    """

    def dump(_: int, interrupted: FrameType | None) -> None:
        with contextlib.suppress(Exception):  # the rank is about to be ended in any case
            text = "".join(f"{line}\n" for line in lines(interrupted) or [none])
            _append(file, text)

    signal.signal(number, dump)


def _append(file: str, text: str) -> None:
    descriptor = open_log(file)
    os.write(descriptor, text.encode("utf-8", "backslashreplace"))
    os.close(descriptor)


def _task_state(task: Any) -> TaskState:  # noqa: ANN401 - of any event loop
    """Return the state of a task: the chain that it awaits, and the user's line of the wait."""
    chain = list(_chain(task.get_coro()))
    name = task.get_name()
    texts, frames = [text for text, _ in chain], [frame for _, frame in chain]
    return task_state(name, texts, frames, is_first=name == "Task-1")


def _chain(awaited: Any) -> Iterator[tuple[str, Frame]]:  # noqa: ANN401 - any awaitable
    for _ in range(_MAX_DEPTH):
        found = (tuple(getattr(awaited, name, None) for name in names) for names in _AWAITABLES)
        code, frame, inner = next((each for each in found if each[0]), (None, None, None))
        if not isinstance(code, CodeType):
            break
        line = frame.f_lineno if frame is not None else code.co_firstlineno
        name = getattr(awaited, "__qualname__", code.co_name)
        text = f"{name} {short_path(str(Path.cwd()), code.co_filename)}:{line}"
        yield text, Frame(code.co_filename, line, code.co_name)
        awaited = inner
