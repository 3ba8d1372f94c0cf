"""Stop a rank in the debugger, on the controller's terminal.

A rank is in a session of its own, which has no terminal, and its standard streams are its log. It
opens the controller's terminal by name instead. The kernel applies job control only to processes of
the terminal's own session, so the rank may read while pytest is in the foreground.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from pytest_multihost.core.model.event import SentToService
from pytest_multihost.core.model.json_values import from_json, to_json
from pytest_multihost.core.model.spec import RankSpec
from pytest_multihost.core.pytest_private import (
    check_interactive_exception,
    post_mortem,
    register_tracing,
)
from pytest_multihost.core.rank.services import NoTerminalError, RankPart, RankTest
from pytest_multihost.extensions.debugger.messages import (
    NAME,
    Debugger,
    TerminalLent,
    TerminalReturned,
    TerminalWanted,
)
from pytest_multihost.hookspecs import hookimpl

if TYPE_CHECKING:
    import pytest

_STREAMS = (0, 1, 2)

_FORKED = "the debugger works in a rank, and this process was forked by one"


@dataclass(slots=True, eq=False)  # a plugin must be hashable
class RankDebugger:
    """The debugger of this rank, which shares one terminal with the others; a plugin of pytest."""

    spec: RankSpec
    debugger: Debugger
    pid: int = field(default_factory=os.getpid)
    _tests: list[RankTest] = field(default_factory=list)
    _is_past_body: bool = False
    _is_lent: bool = False
    _is_stepping: bool = False
    _quits: bool = False

    def start(self, test: RankTest) -> None:
        """Take part in the test that is about to begin."""
        self._tests.append(test)
        if self.debugger.is_post_mortem and self.may_stop:
            test.plugins.register(self, "multihost_debugger_in_rank")
        if self.debugger.is_tracing:
            register_tracing(test.plugins)

    def over(self) -> None:
        """Note that the test's body is over."""
        self._is_past_body = True

    @hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Show an exception before it is reported, because the other ranks are ended soon then."""
        report = yield
        is_of_subtest = report.when == "call" and not self._is_past_body
        if not is_of_subtest and check_interactive_exception(call, report):
            self.examine(partial(post_mortem, item, call, report))
        return report

    @property
    def may_stop(self) -> bool:
        """Whether this rank may stop: not if the user has named another one."""
        return self.debugger.rank in (None, self.spec.rank)

    def adapt(self, debugger: Any) -> None:  # noqa: ANN401 - pdb.Pdb, or the class of --pdbcls
        """Make a new debugger use the terminal whenever it stops, and name the rank.

        Raises:
            NoTerminalError: This process is not the rank itself.
        """
        if not self.may_stop:
            debugger.set_trace = lambda *_, **__: None
            debugger.runcall = lambda function, *args, **kwargs: function(*args, **kwargs)
            return
        if os.getpid() != self.pid:
            raise NoTerminalError(_FORKED)
        interact: Callable[..., None] = debugger.interaction

        def interaction(*args: object, **kwargs: object) -> None:
            with self._terminal() as is_lent:
                if not is_lent:
                    debugger.set_continue()
                    return
                try:
                    interact(*args, **kwargs)
                finally:
                    self._quits = bool(debugger.quitting)
                    # `continue` and `quit` set no line to stop at.
                    self._is_stepping = debugger.stoplineno != -1

        debugger.interaction = interaction
        debugger.prompt = f"(Pdb rank {self.spec.rank}) "

    @contextlib.contextmanager
    def _terminal(self) -> Iterator[bool]:
        """Use the terminal as standard streams, once no other rank has it; yield whether it may.

        It is refused once the user has quit the debugger in another rank.
        """
        if self._is_lent:  # to examine an exception
            yield True
            return
        if not self._ask(is_post_mortem=False):
            yield False
            return
        try:
            with self._streams():
                yield True
        finally:
            self._return()

    def examine(self, show: Callable[[], None]) -> None:
        """Show an exception in the debugger, unless another rank has done so."""
        if not self._ask(is_post_mortem=True):
            return
        try:
            with self._streams():
                show()
        finally:
            self._is_stepping = False
            self._return()

    def _ask(self, *, is_post_mortem: bool) -> bool:
        """Wait for the terminal; return whether this rank got it."""
        answer = self._tests[-1].ask(NAME, to_json(TerminalWanted(is_post_mortem)))
        self._is_lent = not from_json(TerminalLent, answer).is_refused
        return self._is_lent

    def _return(self) -> None:
        self._is_lent = False
        steps = self._is_stepping and not self._quits
        returned = TerminalReturned(steps=steps, quits=self._quits)
        self._tests[-1].send(SentToService(NAME, to_json(returned)))

    @contextlib.contextmanager
    def _streams(self) -> Iterator[None]:
        """Replace the descriptors only: `input` uses readline if 0 and 1 are a terminal."""
        descriptor = os.open(self.debugger.terminal, os.O_RDWR | os.O_NOCTTY)
        kept = [os.dup(each) for each in _STREAMS]
        try:
            for each in _STREAMS:
                os.dup2(descriptor, each)
            if not self._is_stepping:
                os.write(1, f"\n>>> rank {self.spec.rank} of {self.spec.world.size}\n".encode())
            yield
        finally:
            sys.stdout.flush()
            for each, own in zip(_STREAMS, kept, strict=True):
                os.dup2(own, each)
            for each in (descriptor, *kept):
                os.close(each)


def join(spec: RankSpec) -> RankPart:
    """Return the part in this rank."""
    rank = RankDebugger(spec, Debugger.of(spec.world))
    return RankPart(start=rank.start, over=rank.over, debug=rank.adapt)
