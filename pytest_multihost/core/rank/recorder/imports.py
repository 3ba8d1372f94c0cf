"""Call back as soon as a module has been imported."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from types import ModuleType

Callback = Callable[[ModuleType], object]


def after_import(name: str, callback: Callback) -> None:
    """Call `callback` with the module called `name` as soon as its import is complete.

    If the module has already been imported, it is called at once. It is called only once, even if
    another import makes a new module under the same name. Its exceptions are suppressed, so that
    the user's import ends as it would have ended without it.

    Args:
        name: Full name, such as ``jax.experimental.multihost_utils``.
    """
    module = sys.modules.get(name)
    if module is not None:
        with contextlib.suppress(Exception):
            callback(module)
        return
    if _FINDER not in sys.meta_path:
        sys.meta_path.insert(0, _FINDER)
    _FINDER.awaited.setdefault(name, []).append(callback)


@dataclass(slots=True, eq=False)
class _CallingFinder:
    """A finder that lets another finder find the module, and makes its loader call back.

    The loader is not wrapped, because `importlib.resources` and `inspect` use more of it than
    `exec_module`. Only this object's `exec_module` is replaced, until it is called.
    """

    awaited: dict[str, list[Callback]] = field(default_factory=dict)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in self.awaited:
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None) if finder is not self else None
            spec: ModuleSpec | None = find(name, path, target) if find is not None else None
            if spec is not None:
                loader = spec.loader
                if loader is not None and not isinstance(loader, type):  # modules share a class
                    with contextlib.suppress(Exception):  # a loader that takes no attributes
                        self._call_when_run(loader, name)
                return spec
        return None

    def _call_when_run(self, loader: Loader, name: str) -> None:
        run = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            with contextlib.suppress(AttributeError):
                del loader.exec_module
            run(module)
            for callback in self.awaited.pop(name, ()):
                with contextlib.suppress(Exception):
                    callback(module)

        loader.exec_module = exec_module  # type: ignore[method-assign]


_FINDER = _CallingFinder()
