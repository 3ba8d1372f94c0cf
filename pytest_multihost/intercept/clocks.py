"""The clocks as the user's code reads them; libraries and this package read the real ones."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from types import FrameType
from typing import Any

from pytest_multihost.core.cpython_private import get_frame
from pytest_multihost.core.model.stack import is_library
from pytest_multihost.intercept.targets import replace_names

CLOCKS = ("monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "time", "time_ns")
"""Functions of `time` by which programs measure how much time has elapsed."""

OnRead = Callable[[FrameType], float]
"""Gets the user's frame that reads a clock; returns by how many seconds the clock is ahead."""


def replace_clocks(
    on_read: OnRead, undoing: ExitStack, more_modules: Iterable[object] = ()
) -> None:
    """Call `on_read` each time that the user's code reads a clock.

    Args:
        on_read: Called in the thread that reads.
        undoing: Puts the clocks back when it is closed, also where they have been imported since.
        more_modules: Modules of the user that are not in `sys.modules`.
    """
    more_modules = tuple(more_modules)
    pairs: list[tuple[object, object]] = []
    for name in CLOCKS:
        real = getattr(time, name)
        read = _as_read_by_the_user(real, on_read)
        pairs.append((real, read))
        setattr(time, name, read)
        undoing.callback(setattr, time, name, real)
    replace_names(pairs, more_modules, spares=is_library)
    back = [(new, old) for old, new in pairs]
    undoing.callback(replace_names, back, more_modules, spares=is_library)


def _as_read_by_the_user(real: Callable[[], Any], on_read: OnRead) -> Callable[[], Any]:
    per_second = 1_000_000_000 if isinstance(real(), int) else 1  # of monotonic_ns and its like

    @functools.wraps(real)
    def read() -> Any:  # noqa: ANN401 - a float or an int
        __tracebackhide__ = True
        frame = get_frame(1)
        if is_library(frame.f_code.co_filename):
            return real()
        ahead_s = on_read(frame)
        found = real()
        return found + type(found)(ahead_s * per_second)

    return read
