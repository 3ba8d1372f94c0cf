"""Count the batches that a rank draws from its data loaders."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from functools import wraps
from typing import Any

from pytest_multihost.intercept.calls import replace_attribute, wrap_calls
from pytest_multihost.intercept.targets import load_loader

OnDraw = Callable[[], None]
"""Called before a batch is drawn; may raise StopIteration to end the data."""

MAX_LENGTH = 1_000
"""The draws of a longer list than this are not counted beyond, because each costs a microsecond."""


def count_batches(
    target: str, on_draw: OnDraw, undoing: ExitStack, *, more_modules: Iterable[object] = ()
) -> None:
    """Call `on_draw` before each batch that is drawn from data loaders.

    Args:
        target: Names a loader, a class of loaders, or a function that returns one, or a list or an
            array.
        on_draw: Called in the thread that draws.
        undoing: Undoes the replacements when it is closed.
        more_modules: Modules that are not in `sys.modules`.

    Raises:
        SettingError: The target does not exist, or cannot be replaced.
    """
    loader = load_loader(target)
    if isinstance(loader.found, type):
        _count_class(loader.found, on_draw, undoing, lambda _: True)
    elif loader.call is None:
        _count_object(loader.found, on_draw, undoing)
    else:

        def returned(made: object, *_: object, **__: object) -> object:
            if type(made) is list or _is_array(made):
                return _drawn_at_once(made, on_draw)
            if isinstance(made, Iterator):
                return CountedIterator(made, on_draw)
            _count_object(made, on_draw, undoing)
            return made

        wrap_calls(loader.call, _ignore, undoing, more_modules=more_modules, returned=returned)


class CountedIterator:
    """An iterator over the user's data that passes for the user's own iterator."""

    def __init__(self, iterator: Iterator[object], on_draw: OnDraw) -> None:
        self._iterator, self._on_draw, self._is_over = iterator, on_draw, False

    def __iter__(self) -> CountedIterator:
        return self

    def __next__(self) -> object:
        __tracebackhide__ = True
        if self._is_over:
            raise StopIteration
        try:
            self._on_draw()
            return next(self._iterator)
        except StopIteration:
            self._is_over = True
            raise

    def __getattr__(self, name: str) -> object:
        return getattr(self._iterator, name)

    @property  # type: ignore[misc]
    def __class__(self) -> type:  # isinstance() reads it
        return self._iterator.__class__


def _ignore(_when: str) -> None:
    """Do nothing before and after a call: only its result is counted."""


def _is_array(made: Any) -> bool:  # noqa: ANN401 - the user's
    """Return whether a value is an array or tensor with rows."""
    return hasattr(made, "dtype") and hasattr(made, "shape") and len(made.shape) > 0


def _drawn_at_once(batches: Any, on_draw: OnDraw) -> object:  # noqa: ANN401 - any library's array
    """Draw all batches of a list, or all rows of an array, and find its end.

    Nothing can be seen of the use of a list, so all its draws come when a function returns it.

    Returns:
        The list; a shorter one if the data end early.
    """
    for index in range(min(len(batches), MAX_LENGTH)):
        try:
            on_draw()
        except StopIteration:
            return batches[:index]
    with contextlib.suppress(StopIteration):  # the end that is there anyway
        on_draw()
    return batches


def _count_object(loader: object, on_draw: OnDraw, undoing: ExitStack) -> None:
    if type(loader).__module__ != "builtins":
        _count_class(type(loader), on_draw, undoing, lambda given: given is loader)


def _count_class(
    kind: type,
    on_draw: OnDraw,
    undoing: ExitStack,
    is_meant: Callable[[object], bool],
) -> None:
    """Count draws from the objects of a class for which `is_meant` is true.

    An object that is its own iterator keeps its state between loops, so each draw is intercepted.
    """
    name = "__next__" if hasattr(kind, "__next__") else "__iter__"
    original = getattr(kind, name)

    def draw(loader: object) -> object:
        __tracebackhide__ = True
        if is_meant(loader):
            on_draw()
        return original(loader)

    entered = set[tuple[int, int]]()  # grain's loaders call their own __iter__ again

    def iterate(loader: object) -> object:
        key = threading.get_ident(), id(loader)
        if key in entered or not is_meant(loader):
            return original(loader)
        entered.add(key)
        try:
            return CountedIterator(original(loader), on_draw)
        finally:
            entered.remove(key)

    wrapper = wraps(original)(draw if name == "__next__" else iterate)
    replace_attribute(kind, name, wrapper, undoing)
