"""Mark waits of torch's data loaders that are one wait in turns.

A loader waits for its worker processes, and these wait for work, in turns of five seconds. After
each turn it only checks whether the other side is alive. From outside such a wait looks as if it
were about to end. So the main thread has a name of its own in the kernel during a turn, which the
watchdog reads together with the thread's state.

A loader with a timeout gives up after one turn; that wait is not marked.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

from pytest_multihost.core.cpython_private import wrap_poll
from pytest_multihost.core.launch.libc import rename_thread
from pytest_multihost.core.model.process import IN_TURNS
from pytest_multihost.core.rank.recorder.calls import replace_function
from pytest_multihost.core.rank.recorder.imports import after_import
from pytest_multihost.core.rank.recorder.torch_groups import Function
from pytest_multihost.core.torch_private import (
    LOADER_LOOP,
    LOADER_PROCESS,
    MAKE_LOADER_ITERATOR,
    loader_iterator_class,
    queue_of_batches,
    queue_of_indices,
)

Poll = Callable[..., bool]


def mark_data_loaders() -> None:
    """Mark such waits from now on, or once torch's modules are imported.

    A worker process inherits this if it is forked, but not if it is spawned.
    """
    after_import(LOADER_PROCESS, _wrap_loop)
    after_import("torch.utils.data.dataloader", _wrap_iterator)


def _wrap_loop(module: ModuleType) -> None:
    replace_function(module, LOADER_LOOP, partial(_then, queue_of_indices, is_before=True))


def _wrap_iterator(module: ModuleType) -> None:
    iterator = loader_iterator_class(module)
    replace_function(
        iterator, MAKE_LOADER_ITERATOR, partial(_then, queue_of_batches, is_before=False)
    )


def _then(queue_of: Callable[..., Any], original: Function, *, is_before: bool) -> Function:
    """Wrap a function so that the waits for a queue are marked, before or after it runs.

    Args:
        queue_of: Returns the queue, given the function's arguments; None for none.
    """

    def mark(*args: object, **kwargs: object) -> None:
        with contextlib.suppress(Exception):  # another version of torch
            queue = queue_of(*args, **kwargs)
            if queue is not None:
                wrap_poll(queue, _marked)

    def wrapped(*args: object, **kwargs: object) -> object:
        __tracebackhide__ = True
        if is_before:
            mark(*args, **kwargs)
        result = original(*args, **kwargs)
        if not is_before:
            mark(*args, **kwargs)
        return result

    return wrapped


def _marked(poll: Poll) -> Poll:
    """Return a function that waits for a queue's data, with its thread marked meanwhile."""

    def wait(*args: object) -> bool:
        if threading.current_thread() is not threading.main_thread():
            return poll(*args)
        name = rename_thread(IN_TURNS)
        try:
            return poll(*args)
        finally:
            rename_thread(name)

    return wait
