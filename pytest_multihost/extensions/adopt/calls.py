"""Adopts calls that start ranks in the middle of a test.

The test runs in pytest's process as before. Where it calls `torch.multiprocessing.spawn` or
`start_processes`, as accelerate's `debug_launcher` does, the ranks are forked from that process. A
call that cannot be adopted starts processes as before, and the run says why.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest

from pytest_multihost.core.cpython_private import get_frame
from pytest_multihost.core.pytest_plugin.calls import (
    HUNG_CALL,
    CallHungError,
    call_problems,
    call_ranks,
)
from pytest_multihost.core.rank import thread_variables
from pytest_multihost.core.services import ServiceKind
from pytest_multihost.extensions.adopt.background import Backgrounds
from pytest_multihost.extensions.adopt.groups import StartedProcesses
from pytest_multihost.extensions.adopt.refusals import Refusals
from pytest_multihost.extensions.adopt.session_pools import replacing

_MODULE = "torch.multiprocessing"
_ELASTIC = "torch.distributed.elastic"


def _caller() -> str:
    """Return the module that calls torch's function."""
    frame, module = get_frame(1), __name__
    while frame.f_back is not None and module.startswith((__name__, _MODULE)):
        frame = frame.f_back
        module = str(frame.f_globals.get("__name__", ""))
    return module


class AdoptedCalls:
    """The hooks of a run that adopts calls.

    Attributes:
        adopted: Number of calls that ran on ranks.
        refusals: Why others did not.
        groups: Processes that tests start and join.
        backgrounds: Ranks that run while the test goes on.
        pools: Pools that the suite keeps for all tests.
    """

    def __init__(self) -> None:
        self.adopted = 0
        self.refusals = Refusals()
        self.groups = StartedProcesses(self.refusals)
        self.backgrounds = Backgrounds()
        self._is_call = False
        self._pools = ExitStack()
        self.pools = self._pools.enter_context(replacing(self.refusals))

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
        if problems := [*self._why_not(join=join), *call_problems()]:
            self.refusals.add(f"{_MODULE}.start_processes", problems[0])
            return real(fn, args, nprocs, join, *others, **options)
        self.adopted += 1
        if not join:
            daemon = options.get("daemon", *others[:1] or (False,))
            return self.backgrounds.start(fn, args, nprocs, daemon=daemon)
        call_ranks(lambda rank: fn(rank, *args), nprocs)
        return None

    def _why_not(self, *, join: bool) -> Iterator[str]:
        """Yield why a call is not adopted, beside the reasons of all calls."""
        if why := self.backgrounds.problem():
            yield why
        if not join and not self._is_call:
            yield "join=False outside of the test's function, so other tests may use the processes"
        if not join and _caller().startswith(_ELASTIC):
            yield "torch's elastic agent looks at its processes from time to time"

    def pytest_multihost_services(self) -> Sequence[ServiceKind]:
        """Offer a service for a world whose test goes on."""
        return self.backgrounds.kinds()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self) -> Generator[None, object, object]:
        """End the ranks that still run when the test's function is over."""
        self._is_call, is_failed = True, False
        try:
            return (yield)
        except (Exception, pytest.fail.Exception):
            is_failed = True  # and it is not skipped or interrupted
            raise
        finally:
            self._is_call = False
            self.backgrounds.end(is_failed=is_failed)

    def pytest_unconfigure(self) -> None:
        """Restore the makers of pools."""
        self._pools.close()

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
            with self.groups.replacing():
                return (yield)
        finally:
            self.backgrounds.close()
            for home, real in kept:
                home.start_processes = real  # type: ignore[attr-defined]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Give a hang in a call its letter, also if the test has ended it by its own timeout."""
        report = yield
        has_hung = item.stash.get(HUNG_CALL, False) and call.when == "call"
        if has_hung or isinstance(getattr(call.excinfo, "value", None), CallHungError):
            report.is_multihost_hang = True  # type: ignore[attr-defined]
        return report

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say how many calls were adopted, and why others were not."""
        pooled = sum(each.adopted for each in self.pools)
        adopted, refused = self.adopted + self.groups.adopted + pooled, str(self.refusals)
        if adopted or refused:
            calls = "1 call" if adopted == 1 else f"{adopted} calls"
            line = f"multihost: {calls} ran on ranks of this plugin"
            terminalreporter.write_line(f"{line}; {refused}" if refused else line)


def pytest_configure(config: pytest.Config) -> None:
    """Begin to adopt calls."""
    if config.pluginmanager.get_plugin("multihost_calls") is None:
        config.pluginmanager.register(AdoptedCalls(), "multihost_calls")
