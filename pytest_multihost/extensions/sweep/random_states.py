"""States whether a rank has restored the state of its random numbers, at the end of a swept test.

A resumed run restores them from a checkpoint. A rank that cannot read its own goes on from its
seed, mostly with no more than a line in a log, and then draws other numbers than the saved run.
Only calls outside of torch, numpy and Python count: these restore states for purposes of their own.
A rank that has set a seed at two lines of the user's counts as well: the second may be instead.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import PurePath
from types import FrameType, ModuleType
from typing import Any, Final

from pytest_multihost.core.cpython_private import get_frame
from pytest_multihost.core.model.event import ValueStated
from pytest_multihost.core.rank.digest import digest
from pytest_multihost.core.rank.recorder import after_import, user_frames

NAME: Final = "the state of random numbers"

_STATES = (
    ("random", "setstate"),
    ("numpy.random", "set_state"),
    ("torch.random", "set_rng_state"),
    ("torch", "set_rng_state"),
)
_SEEDS = (
    ("random", "seed"),
    ("numpy.random", "seed"),
    ("torch.random", "manual_seed"),
    ("torch", "manual_seed"),
)
"""Functions that set the state of random numbers, and such that make one from a number."""

_OWN_PURPOSES = frozenset({"torch", "numpy", "random.py"})
"""Packages and files that set states for purposes of their own, as `torch.random.fork_rng`."""


@dataclass(slots=True)
class RandomStates:
    """The calls of this rank that set the state of its random numbers.

    Attributes:
        is_restored: Whether it has restored a state.
        seeded_at: The user's lines at which it has set a seed.
    """

    is_restored: bool = False
    seeded_at: set[tuple[str, int]] = field(default_factory=set)

    def watch(self) -> None:
        """Note from now on each call that sets a state or a seed."""
        for names, note in ((_STATES, self._restore), (_SEEDS, self._seed)):
            for module, name in names:
                after_import(module, functools.partial(_wrap, name=name, note=note))

    def values(self) -> Iterable[ValueStated]:
        """Yield the value that all ranks are to have."""
        is_set = self.is_restored or len(self.seeded_at) > 1
        text = "restored it" if is_set else "not restored it"
        yield ValueStated(NAME, 0, digest(text), text, is_asked=False)

    def _restore(self, _frame: FrameType) -> None:
        self.is_restored = True

    def _seed(self, frame: FrameType) -> None:
        self.seeded_at |= {(each.file, each.line) for each in user_frames(frame)[:1]}


def _wrap(module: ModuleType, *, name: str, note: Callable[[FrameType], None]) -> None:
    """Let a function of a module note its calls from outside of its package."""
    original: Callable[..., Any] = getattr(module, name)

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - of any library
        __tracebackhide__ = True
        result = original(*args, **kwargs)
        frame = get_frame(1)
        if _OWN_PURPOSES.isdisjoint(PurePath(frame.f_code.co_filename).parts):
            note(frame)
        return result

    setattr(module, name, call)
