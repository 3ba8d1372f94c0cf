"""Mark waits of event loops that do nothing but look, in turns, whether their server is to end.

uvicorn's `Server.main_loop` sleeps for a tenth of a second, looks whether the server is to end,
and sleeps again. From outside this cannot be told from a loop that counts down to an answer: the
kernel shows the same turns of both. But the loop itself knows its timers. So while its only timer
is that of the server's own sleep, and nothing is ready to run, its thread has a name of its own in
the kernel. The name has the number of times that the loop has done anything else, so two equal
names show that only such turns lie between them; see `TICKS`.

A timer of the program's, a callback, a request, or a call from another thread counts as something
else. So does a server whose methods a subclass has replaced, or that calls the program back in its
turns. Loops that are not written in Python, as uvloop's, cannot be asked and are not marked.
"""

from __future__ import annotations

import contextlib
import string
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import update_wrapper
from types import ModuleType
from typing import Any

from pytest_multihost.core.cpython_private import (
    Task,
    only_resumes,
    waits_for_one_timer,
    wrap_loop_polls,
)
from pytest_multihost.core.launch.libc import rename_thread
from pytest_multihost.core.model.process import TICKS
from pytest_multihost.core.rank.recorder import Recorder, after_import

Select = Callable[..., Any]

_LOOP_NAMES = frozenset({"on_tick", "asyncio", "sleep"})
_TICK_NAMES = frozenset(
    {"time", "formatdate", "encode", "config", "date_header", "encoded_headers", "server_state"}
    | {"default_headers", "callback_notify", "last_notified", "timeout_notify", "should_exit"}
    | {"limit_max_requests", "total_requests", "logger", "info", "warning"}
)
"""The names that these two methods of uvicorn use, in all known releases."""

_DIGITS = string.digits + string.ascii_lowercase
_LENGTH = 4  # with `TICKS` the longest name of a thread


def mark_ticks(_: Recorder) -> None:
    """Mark such waits from now on, or once uvicorn is imported."""
    after_import("uvicorn.server", _wrap)


def _wrap(module: ModuleType) -> None:
    import asyncio

    main_loop, on_tick = module.Server.main_loop, module.Server.on_tick
    if not _uses_only(main_loop, _LOOP_NAMES) or not _uses_only(on_tick, _TICK_NAMES):
        return  # another release, whose turns may do something else

    def call(server: Any) -> Coroutine[Any, Any, None]:  # noqa: ANN401 - of uvicorn
        turns: Coroutine[Any, Any, None] = main_loop(server)
        if _is_plain(server, on_tick):
            with contextlib.suppress(AttributeError):  # another event loop, or release of Python
                loop, task = asyncio.get_running_loop(), asyncio.current_task()
                wrap_loop_polls(loop, _Turns(loop, task, turns, asyncio.sleep).marked)
        return turns

    module.Server.main_loop = update_wrapper(call, main_loop)


def _is_plain(server: Any, on_tick: object) -> bool:  # noqa: ANN401 - of uvicorn
    """Return whether a server's turns run no code of the program's."""
    is_own = getattr(server.on_tick, "__func__", None) is on_tick and "should_exit" in vars(server)
    return is_own and getattr(server.config, "callback_notify", None) is None


def _uses_only(method: Any, names: frozenset[str]) -> bool:  # noqa: ANN401
    return names.issuperset(method.__code__.co_names)


@dataclass(slots=True)
class _Turns:
    """The turns of one event loop.

    Attributes:
        task: The task in which the server looks whether it is to end.
        coroutine: The coroutine that does so; it has ended when the server is to end.
        sleep: The function in which it waits.
        others: How often the loop has done anything else.
    """

    loop: Any
    task: Task
    coroutine: Any
    sleep: Any
    others: int = 0

    def marked(self, select: Select) -> Select:
        """Return a function that waits as `select` does, and marks the thread if this is a turn."""

        def wait(timeout: float | None = None) -> object:
            if self._is_turn():
                name = rename_thread(f"{TICKS}{_short(self.others)}")
                try:
                    found = select(timeout)
                finally:
                    rename_thread(name)
            else:
                found = select(timeout)
            if found:
                self.others += 1
            return found

        return wait

    def _is_turn(self) -> bool:
        """Return whether a turn begins; count an action of the loop that does not end a turn."""
        with contextlib.suppress(Exception):  # another release of Python
            awaited = getattr(self.coroutine.cr_await, "cr_code", None)
            if awaited is self.sleep.__code__ and waits_for_one_timer(self.loop, self.task):
                return True
            if only_resumes(self.loop, self.task):
                return False
        self.others += 1
        return False


def _short(number: int) -> str:
    """Return the last digits of a number, which are enough to tell two moments apart."""
    found = ""
    for _ in range(_LENGTH):
        number, digit = divmod(number, len(_DIGITS))
        found = _DIGITS[digit] + found
    return found
