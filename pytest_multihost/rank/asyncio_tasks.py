"""Dump what the tasks of asyncio wait for.

A rank in an event loop shows `select` on its stack, whatever its tasks do. From 3.14 on
`python -m asyncio pstree` reads them from outside; before, only the rank itself can.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from pytest_multihost.model.stack import short_path

_MAX_TASKS = 50
_MAX_DEPTH = 30


def dump_tasks_on_signal(number: int, file: Path) -> None:
    """On signal `number`, write one line for each unfinished task to `file`.

    The handler is Python's: it runs once the main thread is back from C, as an event loop soon is.
    """

    def dump(_: int, __: FrameType | None) -> None:
        with contextlib.suppress(Exception):  # the rank is about to be ended in any case
            text = "".join(f"{line}\n" for line in task_lines()) or "no tasks\n"
            descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            os.write(descriptor, text.encode("utf-8", "backslashreplace"))
            os.close(descriptor)

    signal.signal(number, dump)


def task_lines() -> list[str]:
    """Return a line for each unfinished task: its name and where it waits, outermost first."""
    tasks: Any = sys.modules.get("asyncio.tasks")
    if tasks is None:
        return []
    # 3.11 keeps all tasks in _all_tasks, 3.12 those of the standard class in _scheduled_tasks.
    known: Any = getattr(tasks, "_scheduled_tasks", None) or getattr(tasks, "_all_tasks", ())
    found = [task for task in list(known) if not task.done()][:_MAX_TASKS]
    return [f"{task.get_name()}: {' → '.join(_chain(task.get_coro()))}" for task in found]


def _chain(awaited: Any) -> Iterator[str]:  # noqa: ANN401 - whatever can be awaited
    for _ in range(_MAX_DEPTH):
        frame, code = _frame_and_code(awaited)
        if code is None:
            break
        line = frame.f_lineno if frame is not None else code.co_firstlineno
        name = getattr(awaited, "__qualname__", code.co_name)
        yield f"{name} {short_path(str(Path.cwd()), code.co_filename)}:{line}"
        awaited = next(
            (
                inner
                for attribute in ("cr_await", "gi_yieldfrom", "ag_await")
                if (inner := getattr(awaited, attribute, None)) is not None
            ),
            None,
        )


def _frame_and_code(awaited: Any) -> tuple[FrameType | None, CodeType | None]:  # noqa: ANN401
    for prefix in ("cr", "gi", "ag"):
        code = getattr(awaited, f"{prefix}_code", None)
        if isinstance(code, CodeType):
            return getattr(awaited, f"{prefix}_frame", None), code
    return None, None
