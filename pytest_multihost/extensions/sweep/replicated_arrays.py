"""States the jax arrays that claim to be replicated, and whose processes have given them own data.

Where a program makes an array from the data of each process, or gives a number or an array of each
process to a function that runs on all of them, jax believes that they are equal. The results need
no check: they are equal if the inputs are. `jax.device_put` compares the values itself. An array
of jax never changes, so it can be digested at the end of the test; others are copied.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import PurePath
from types import ModuleType
from typing import Any, Final

from pytest_multihost.core.cpython_private import get_frame
from pytest_multihost.core.jax_private import (
    ARRAY_MAKERS,
    ARRAYS,
    PROGRAMS,
    TAKE_ARRAYS,
    TAKE_OTHERS,
)
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
    """An array or a number that claims to be replicated.

    Attributes:
        what: The word for it, before the words for its line.
        nth: How many others were noted at its line before.
    """

    what: str
    array: Array
    nth: int
    frame: Frame

    @property
    def name(self) -> str:
        """Its name, which is the same in all processes."""
        return f"{self.what} {PurePath(self.frame.file).name}:{self.frame.line}"

    @property
    def own(self) -> Array:
        """This process's part of it."""
        is_of_jax = hasattr(self.array, "addressable_data")
        return self.array.addressable_data(0) if is_of_jax else self.array


class _MakingThread(threading.local):
    """Whether this thread is in a function that makes an array, and may call another."""

    is_inside = False


@dataclass(slots=True)
class ReplicatedArrays:
    """The parts of replicated arrays that this process has given."""

    made: list[_Made] = field(default_factory=list)
    _counts: Counter[Frame] = field(default_factory=Counter)
    _bytes: int = 0
    _thread: _MakingThread = field(default_factory=_MakingThread)

    def watch(self) -> None:
        """Note each array from now on, as soon as jax is imported."""
        after_import(ARRAYS, self._wrap_makers)
        for name, function in ((ARRAYS, TAKE_ARRAYS), (PROGRAMS, TAKE_OTHERS)):
            after_import(name, functools.partial(self._wrap, name=function, wrap=self._taking))

    def _wrap_makers(self, module: ModuleType) -> None:
        for name in ARRAY_MAKERS:
            self._wrap(module, name=name, wrap=self._noting)

    def _wrap(self, module: ModuleType, *, name: str, wrap: Callable[[Function], Function]) -> None:
        if (function := getattr(module, name, None)) is not None:
            replace_code(function, wrap)

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

    def _taking(self, original: Function) -> Function:
        def take(values: Iterable[Array], shardings: Iterable[Any], *others: object) -> Array:
            __tracebackhide__ = True
            if not self._thread.is_inside:
                with contextlib.suppress(Exception):  # of another version
                    for each in _only_said_to_be_replicated(values, shardings):
                        self._add("input of a jax program at", each, user_frames(get_frame(1))[0])
            return original(values, shardings, *others)

        return take

    def _note(self, array: Array, frame: Frame) -> None:
        if not array.is_fully_addressable and array.is_fully_replicated:
            self._add("jax array of", array, frame)

    def _add(self, what: str, array: Array, frame: Frame) -> None:
        nth, size = self._counts[frame], int(array.nbytes)
        self._counts[frame] += 1
        if len(self.made) < MOST_ARRAYS and self._bytes + size <= MOST_BYTES:
            self._bytes += size
            is_of_jax = hasattr(array, "addressable_data")
            self.made.append(_Made(what, array if is_of_jax else array.copy(), nth, frame))

    def values(self) -> Iterable[ValueStated]:
        """Yield this process's part of each array that still exists."""
        for each in self.made:
            with contextlib.suppress(Exception):  # its buffers were given away
                mine = each.own
                text = short_text(mine)
                yield ValueStated(
                    each.name, each.nth, digest(mine), text, each.frame, is_asked=False
                )


def _only_said_to_be_replicated(
    values: Iterable[Array], shardings: Iterable[Any]
) -> Iterator[Array]:
    """Yield the values of this process that other processes are to have as well."""
    for value, sharding in zip(values, shardings, strict=True):
        is_everywhere = not sharding.is_fully_addressable and sharding.is_fully_replicated
        if is_everywhere and getattr(value, "is_fully_addressable", True):
            yield value if hasattr(value, "nbytes") else sys.modules["numpy"].asarray(value)
