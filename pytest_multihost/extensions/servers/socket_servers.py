"""Mark waits for requests that servers of Python's `socketserver` make in turns.

`HTTPServer.serve_forever` waits for a request for half a second, checks whether another thread
wants it to shut down, and waits again. From outside such a wait looks as if it were about to end.
So the thread has a name of its own in the kernel during a turn; see `torch_data`.

While a thread is in `shutdown()`, no wait is marked: the end of the turn lets that thread go on.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import update_wrapper
from pathlib import Path
from types import ModuleType
from typing import Any

from pytest_multihost.core import files
from pytest_multihost.core.cpython_private import wrap_server_polls
from pytest_multihost.core.launch.libc import rename_thread
from pytest_multihost.core.model.process import SERVES_IN_TURNS
from pytest_multihost.core.rank.recorder import Recorder, after_import

Select = Callable[..., Any]


@dataclass(slots=True)
class _ThreadTurns:
    """The turns in which threads of this process wait.

    Attributes:
        names: For each thread that waits, its kernel id, the name that it has otherwise.
        shutdowns: The calls of `shutdown` that have not returned.
    """

    names: dict[int, str] = field(default_factory=dict)
    shutdowns: list[object] = field(default_factory=list)

    def marked(self, select: Select) -> Select:
        """Return a function that waits as `select` does, in a marked turn."""

        def wait(*args: object) -> object:
            thread = threading.get_native_id()
            name = self.names[thread] = rename_thread(SERVES_IN_TURNS)
            try:
                if self.shutdowns:  # it may have begun before this thread was renamed
                    rename_thread(name)
                return select(*args)
            finally:
                del self.names[thread]
                rename_thread(name)

        return wait

    def shutting_down(self, shutdown: Callable[[object], None]) -> Callable[[object], None]:
        """Return a function that calls `shutdown`, and meanwhile no turn is marked."""

        def call(server: object) -> None:
            __tracebackhide__ = True
            self.shutdowns.append(server)
            try:
                for thread, name in self.names.copy().items():
                    with contextlib.suppress(OSError):  # it has ended
                        files.put(Path(f"/proc/self/task/{thread}/comm"), name)
                shutdown(server)
            finally:
                self.shutdowns.remove(server)

        return update_wrapper(call, shutdown)


def mark_servers(_: Recorder) -> None:
    """Mark such waits from now on, or once the module is imported."""
    after_import("socketserver", _wrap)


def _wrap(module: ModuleType) -> None:
    turns = _ThreadTurns()
    with contextlib.suppress(AttributeError):  # another version of Python
        shutdown = module.BaseServer.shutdown
        wrap_server_polls(module, turns.marked)
        module.BaseServer.shutdown = turns.shutting_down(shutdown)
