"""Declare the names that a rank gives to its children, for verdicts."""

from __future__ import annotations

import contextlib
from functools import update_wrapper
from types import ModuleType
from typing import Any

from pytest_multihost.core.model.child_names import child_key
from pytest_multihost.core.rank.recorder.imports import after_import
from pytest_multihost.core.rank.recorder.recorder import Recorder

_MAX_NAMES = 64
"""Each takes room for a group on the slot page, of which there is not much."""


def tell_names(recorder: Recorder) -> None:
    """Declare the name of each process that multiprocessing starts, in worlds with roles."""
    told = set[int]()

    def wrap(module: ModuleType) -> None:
        original = module.BaseProcess.start

        def start(process: Any) -> None:  # noqa: ANN401 - of any context
            __tracebackhide__ = True
            original(process)
            if recorder.role is not None and len(told) < _MAX_NAMES:
                with contextlib.suppress(Exception):  # a name may be anything
                    told.add(process.pid)
                    recorder.page.group(*child_key(recorder.rank, process.pid, process.name))

        module.BaseProcess.start = update_wrapper(start, original)

    after_import("multiprocessing.process", wrap)
