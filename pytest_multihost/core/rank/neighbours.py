"""Adapt hypothesis, tqdm and coverage.py in a rank; none is imported here."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from pytest_multihost.core.rank.recorder import after_import

Function = Any
"""A test function, perhaps wrapped by a tool."""


def share_hypothesis_examples(
    test: Function, seed: int, fail: Callable[[BaseException], object]
) -> None:
    """Make a hypothesis test draw the same examples in all ranks; leave any other alone.

    A rank that shrinks or replays alone would run its test body when the others do not, and each
    collective in it would meet a wrong one. So nothing is shrunk, and the first failure ends the
    rank. The deadline is removed because a collective takes as long as the slowest rank, and the
    database because ranks would read and write it at different times.

    Args:
        test: The test function or bound method.
        fail: Reports the exception that an example raised, and does not return.
    """
    function: Function = getattr(test, "__func__", test)
    if not getattr(function, "is_hypothesis_test", False):
        return
    hypothesis: Any = sys.modules["hypothesis"]
    own = getattr(function, "_hypothesis_internal_use_settings", None)
    phases = (hypothesis.Phase.explicit, hypothesis.Phase.generate)
    function._hypothesis_internal_use_settings = hypothesis.settings(  # noqa: SLF001
        own or hypothesis.settings.default,
        deadline=None,
        database=None,
        phases=phases,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    function._hypothesis_internal_use_seed = seed  # noqa: SLF001
    handle = function.hypothesis
    body = handle.inner_test

    @functools.wraps(body)
    def run(*args: object, **kwargs: object) -> object:
        try:
            return body(*args, **kwargs)
        except Exception as error:
            if type(error).__module__.startswith("hypothesis."):  # raised by assume(), for example
                raise
            named = (f"{name}={value!r}" for name, value in kwargs.items())
            error.add_note(f"Falsifying example: {', '.join((*map(repr, args), *named))}")
            fail(error)
            raise

    handle.inner_test = run


def stop_tqdm_monitor() -> None:
    """Keep tqdm from starting a thread that monitors its progress bars.

    Seen from outside, this thread may do anything when it wakes up every ten seconds, so no hang
    could be proven until ten seconds before the deadline. It only refreshes bars of slow loops.
    """

    def without_monitor(module: ModuleType) -> None:
        module.tqdm.monitor_interval = 0

    after_import("tqdm.std", without_monitor)


def save_coverage() -> None:
    """Write the data of a running coverage.py measurement.

    coverage.py writes in an exit handler, but a rank leaves by `os._exit`. A forked rank inherits
    the controller's data file name, so it gets a separate one; pytest-cov combines all files.
    """
    module: Any = sys.modules.get("coverage")
    measurement: Any = module.Coverage.current() if module is not None else None
    if measurement is None:
        return
    measurement.stop()
    data: Any = measurement._data  # noqa: SLF001 - get_data() would write to the old name
    if data is not None:
        data._suffix = f"rank-{os.getpid()}"  # noqa: SLF001
        data._choose_filename()  # noqa: SLF001
    measurement.save()
