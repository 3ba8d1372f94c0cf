"""States the jax arrays that claim to be replicated, and whose processes have given them own data.

Where a program makes an array from the data of each process, jax believes that they are equal. The
results of its programs need no check: they are equal if their inputs are. An array never changes,
so it can be digested at the end of the test.
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import PurePath
from types import ModuleType
from typing import Any, Final

from pytest_multihost.core.cpython_private import get_frame
from pytest_multihost.core.jax_private import ARRAY_MAKERS, ARRAYS
from pytest_multihost.core.model.event import ValueStated
from pytest_multihost.core.model.stack import Frame
from pytest_multihost.core.rank.digest import digest, short_text
from pytest_multihost.core.rank.recorder import after_import, user_frames
from pytest_multihost.core.rank.recorder.calls import replace_code

MOST_ARRAYS: Final = 256
MOST_BYTES: Final = 64 << 20
"""The maximum of arrays that are kept, and of their bytes on one device."""

Array = Any
"""An array of jax."""

Function = Callable[..., Array]


@dataclass(frozen=True, slots=True)
class _Made:
    """An array, how many others were made at its line before, and that line."""

    array: Array
    nth: int
    frame: Frame


class _Thread(threading.local):
    """Whether this thread is in a function that makes an array, and may call another."""

    is_inside = False


@dataclass(slots=True)
class ReplicatedArrays:
    """The replicated arrays that this process has made from its own data."""

    made: list[_Made] = field(default_factory=list)
    _counts: Counter[Frame] = field(default_factory=Counter)
    _bytes: int = 0
    _thread: _Thread = field(default_factory=_Thread)

    def watch(self) -> None:
        """Note each array from now on, as soon as jax is imported."""
        after_import(ARRAYS, self._wrap)

    def _wrap(self, module: ModuleType) -> None:
        for name in ARRAY_MAKERS:
            if (function := getattr(module, name, None)) is not None:
                replace_code(function, self._noting)

    def _noting(self, original: Function) -> Function:
        def make(*args: object, **kwargs: object) -> Array:
            __tracebackhide__ = True
            if self._thread.is_inside:
                return original(*args, **kwargs)
            self._thread.is_inside = True
            try:
                array = original(*args, **kwargs)
            finally:
                self._thread.is_inside = False
            with contextlib.suppress(Exception):  # a tracer, or an array of another version
                self._note(array, user_frames(get_frame(1))[0])
            return array

        return make

    def _note(self, array: Array, frame: Frame) -> None:
        if array.is_fully_addressable or not array.is_fully_replicated:
            return
        nth, size = self._counts[frame], int(array.nbytes)
        self._counts[frame] += 1
        if len(self.made) < MOST_ARRAYS and self._bytes + size <= MOST_BYTES:
            self._bytes += size
            self.made.append(_Made(array, nth, frame))

    def values(self, *, is_asked: bool) -> Iterable[ValueStated]:
        """Yield what this process has of each array that still exists.

        Args:
            is_asked: Whether the test fails if processes differ.
        """
        for each in self.made:
            name = f"jax array of {PurePath(each.frame.file).name}:{each.frame.line}"
            with contextlib.suppress(Exception):  # its buffers were given away
                mine = each.array.addressable_data(0)
                text = short_text(mine)
                yield ValueStated(name, each.nth, digest(mine), text, each.frame, is_asked)
