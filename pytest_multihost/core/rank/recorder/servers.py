"""Mark waits for requests that servers of Python's `socketserver` make in turns.

`HTTPServer.serve_forever` waits for a request for half a second, checks whether another thread
wants it to shut down, and waits again. From outside such a wait looks as if it were about to end.
So the thread has a name of its own in the kernel during a turn; see `torch_data`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from types import ModuleType
from typing import Any

from pytest_multihost.core.cpython_private import wrap_server_polls
from pytest_multihost.core.launch.libc import rename_thread
from pytest_multihost.core.model.process import SERVES_IN_TURNS
from pytest_multihost.core.rank.recorder.imports import after_import

Select = Callable[..., Any]


def mark_servers() -> None:
    """Mark such waits from now on, or once the module is imported."""
    after_import("socketserver", _wrap)


def _wrap(module: ModuleType) -> None:
    with contextlib.suppress(AttributeError):  # another version of Python
        wrap_server_polls(module, _marked)


def _marked(select: Select) -> Select:
    def wait(*args: object) -> object:
        name = rename_thread(SERVES_IN_TURNS)
        try:
            return select(*args)
        finally:
            rename_thread(name)

    return wait
