"""Stop a rank in the debugger, on the controller's terminal.

A rank is in a session of its own, which has no terminal, and its standard streams are its log. It
opens the controller's terminal by name instead. The kernel applies job control only to processes of
the terminal's own session, so the rank may read while pytest is in the foreground.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from pytest_multihost.core.launch.wire import Channel
from pytest_multihost.core.model.event import TerminalReturned, TerminalWanted, event_header, now
from pytest_multihost.core.model.messages import TerminalLent
from pytest_multihost.core.model.spec import MACHINE, RankSpec

_STREAMS = (0, 1, 2)

_NO_TERMINAL = (
    "the debugger in a rank needs a terminal, and the standard input of this run is not one."
    " Run pytest in a terminal, without -n."
)
_SEVERAL_MACHINES = (
    "the debugger works in ranks that pytest starts itself, and another launcher has"
    " started this rank."
)
_FORKED = "the debugger works in a rank, and this process was forked by one"


class NoTerminalError(RuntimeError):
    """The debugger was started in a rank that cannot get a terminal."""


@dataclass(slots=True)
class RankDebugger:
    """The debugger of this rank, which shares one terminal with the others."""

    spec: RankSpec
    channel: Channel
    _is_lent: bool = False
    _is_stepping: bool = False
    _quits: bool = False

    @property
    def may_stop(self) -> bool:
        """Whether this rank may stop: not if the user has named another one."""
        debugger = self.spec.world.debugger
        return debugger is None or debugger.rank in (None, self.spec.rank)

    @property
    def is_post_mortem(self) -> bool:
        """Whether this rank stops when it fails."""
        debugger = self.spec.world.debugger
        is_wanted = debugger is not None and debugger.is_post_mortem
        return is_wanted and self.may_stop and not self._why_none()

    def adapt(self, debugger: Any) -> None:  # noqa: ANN401 - pdb.Pdb, or the class of --pdbcls
        """Make a new debugger use the terminal whenever it stops, and name the rank.

        Raises:
            NoTerminalError: This rank cannot get a terminal.
        """
        if not self.may_stop:
            debugger.set_trace = lambda *_, **__: None
            debugger.runcall = lambda function, *args, **kwargs: function(*args, **kwargs)
            return
        if why := self._why_none():
            raise NoTerminalError(why)
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

    def _why_none(self) -> str:
        """Return why this process cannot get the terminal; empty if it can."""
        if self.spec.world.debugger is None:
            return _NO_TERMINAL
        if self.spec.host.kind == MACHINE:
            return _SEVERAL_MACHINES
        return "" if self.channel.is_ours else _FORKED

    def _ask(self, *, is_post_mortem: bool) -> bool:
        """Wait for the terminal; return whether this rank got it."""
        self.channel.send(event_header(TerminalWanted(is_post_mortem), now()))
        answer = self.channel.receive(lambda message: isinstance(message, TerminalLent)).message
        self._is_lent = isinstance(answer, TerminalLent) and not answer.is_refused
        return self._is_lent

    def _return(self) -> None:
        self._is_lent = False
        steps = self._is_stepping and not self._quits
        returned = TerminalReturned(steps=steps, quits=self._quits)
        self.channel.send(event_header(returned, now()))

    @contextlib.contextmanager
    def _streams(self) -> Iterator[None]:
        """Replace the descriptors only: `input` uses readline if 0 and 1 are a terminal."""
        debugger = self.spec.world.debugger
        path = debugger.terminal if debugger is not None else os.devnull
        descriptor = os.open(path, os.O_RDWR | os.O_NOCTTY)
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
