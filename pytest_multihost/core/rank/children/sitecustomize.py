"""Prepare an interpreter that a rank has started, directly or through others.

Python runs this file at the start of each interpreter whose PYTHONPATH has this folder; ranks of
roles set it. Nothing of this package is imported until the child imports a module whose operations
are recorded, since most children never do. The child may be of another version of Python, without
this package, so nothing here may fail.
"""

from __future__ import annotations

import contextlib
import os
import sys

_VARIABLE = "PYTEST_MULTIHOST_CHILD"
_HERE = os.path.dirname(__file__)  # noqa: PTH120 - pathlib takes as long as the rest


class _Finder:
    """A finder that finds nothing: it records from the first import of a recorded module on."""

    def __init__(self, settings: dict[str, str], modules: list[str]) -> None:
        self.settings, self.modules = settings, modules

    def find_spec(self, name: str, *_: object) -> None:
        if name in self.modules and self in sys.meta_path:
            sys.meta_path.remove(self)
            with contextlib.suppress(Exception):
                from pytest_multihost.core.rank.recorder import record_in_child

                record_in_child(**self.settings)  # type: ignore[arg-type]


def _begin() -> None:
    import faulthandler
    import json
    import signal

    settings = json.loads(os.environ[_VARIABLE])
    stacks = os.open(settings.pop("stacks"), os.O_WRONLY | os.O_APPEND)  # never closed
    faulthandler.register(signal.SIGURG, file=stacks, all_threads=True, chain=False)
    sys.meta_path.insert(0, _Finder(settings, settings.pop("modules")))


def _run_the_next() -> None:
    """Run the `sitecustomize` that this file hides, if there is one."""
    import importlib.machinery
    import importlib.util

    others = [each for each in sys.path if each != _HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


if _VARIABLE in os.environ:
    with contextlib.suppress(Exception):
        _begin()
_run_the_next()
