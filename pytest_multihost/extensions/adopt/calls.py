"""Adopts calls that start ranks in the middle of a test.

The test runs in pytest's process as before. Where it calls `torch.multiprocessing.spawn` or
`start_processes`, as accelerate's `debug_launcher` does, the ranks are forked from that process. A
call that cannot be adopted starts processes as before, and the run says why.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Any

import pytest

from pytest_multihost.core.pytest_plugin.calls import CallHungError, call_problems, call_ranks
from pytest_multihost.core.rank import thread_variables

_MODULE = "torch.multiprocessing"


class Calls:
    """The hooks of a run that adopts calls.

    Attributes:
        adopted: Number of calls that ran on ranks.
        refused: Why others did not, and how often.
    """

    def __init__(self) -> None:
        self.adopted = 0
        self.refused: Counter[str] = Counter()

    def start_processes(
        self,
        real: Callable[..., Any],
        fn: Callable[..., object],
        args: Sequence[Any] = (),
        nprocs: int = 1,
        join: bool = True,  # noqa: FBT001, FBT002 - torch's signature
        *others: Any,  # noqa: ANN401
        **options: Any,  # noqa: ANN401
    ) -> Any:  # noqa: ANN401
        """Take the place of `torch.multiprocessing.start_processes`."""
        __tracebackhide__ = True
        why = [] if join else ["join=False: the test goes on while they run"]
        if problems := why or call_problems():
            self.refused[problems[0]] += 1
            return real(fn, args, nprocs, join, *others, **options)
        self.adopted += 1
        call_ranks(lambda rank: fn(rank, *args), nprocs)
        return None

    def pytest_collection_finish(self) -> None:
        """Give libraries one thread, as in ranks: with a pool of threads, nothing can be forked."""
        import threadpoolctl

        if variables := thread_variables(os.environ):  # the user has not set them
            os.environ.update(variables)
            threadpoolctl.threadpool_limits(1)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self) -> Generator[None, object, object]:
        """Replace torch's functions while a test runs."""
        homes = [sys.modules.get(name) for name in (_MODULE, f"{_MODULE}.spawn")]
        kept = [(each, each.start_processes) for each in homes if each is not None]
        for home, real in kept:
            home.start_processes = partial(self.start_processes, real)  # type: ignore[attr-defined]
        try:
            return (yield)
        finally:
            for home, real in kept:
                home.start_processes = real  # type: ignore[attr-defined]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Give a hang in a call its letter."""
        report = yield
        if call.excinfo is not None and isinstance(call.excinfo.value, CallHungError):
            report.is_multihost_hang = True  # type: ignore[attr-defined]
        return report

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say how many calls were adopted, and why others were not."""
        if self.adopted or self.refused:
            line = f"multihost: {self.adopted} calls ran on ranks of this plugin"
            if self.refused:
                why = ", ".join(f"{each} ({count})" for each, count in self.refused.most_common())
                line += f"; {self.refused.total()} started processes: {why}"
            terminalreporter.write_line(line)


def pytest_configure(config: pytest.Config) -> None:
    """Begin to adopt calls."""
    if config.pluginmanager.get_plugin("multihost_calls") is None:
        config.pluginmanager.register(Calls(), "multihost_calls")
