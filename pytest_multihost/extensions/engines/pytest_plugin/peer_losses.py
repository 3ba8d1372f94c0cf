"""Ends a run that has lost a peer, or whose peer was stopped by a signal."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest

from pytest_multihost.core.launch.ending_signals import ENDING
from pytest_multihost.core.model.printable import printable
from pytest_multihost.extensions.engines.attach import Peer


@dataclass(slots=True, eq=False)  # a plugin must be hashable: pluggy keeps them in sets
class PeerLosses:
    """A plugin of the process that controls peers.

    Attributes:
        lost: A description of each peer that is gone; also why, unless an error says that.
        process: The process that controls them. Ranks that are forked from it have this plugin,
            too, but no connections to peers.
    """

    peers: Mapping[int, Peer]
    lost: dict[int, str] = field(default_factory=dict)
    process: int = field(default_factory=os.getpid)

    def take_signals(self) -> None:
        """Let signals that end a run interrupt it, unless they have a handler already."""
        for number in ENDING:
            if signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, self._interrupt)

    def _interrupt(self, number: int, _: object) -> None:
        """Interrupt the run, which then reports where the ranks were.

        Does nothing if a process is lost, because that is being reported already.
        """
        if not self._note():
            raise KeyboardInterrupt(signal.Signals(number).name)

    def _note(self) -> list[str]:
        """Check which peers are gone; return a description of each."""
        for rank, peer in self.peers.items():
            peer.note_arrived()
            if peer.stream.ended is not None and rank not in self.lost:
                happened = f"{peer.name} is gone: {peer.stream.ended}"
                why = "" if peer.is_loss_reported else peer.why_lost()
                self.lost[rank] = "\n".join(filter(None, (happened, why)))
        return list(self.lost.values())

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> None:
        """End the run if a process is lost or was interrupted, because it starts no more ranks."""
        if call.when != "teardown" or os.getpid() != self.process:
            return
        if lost := self._note():
            happened = lost[0].partition("\n")[0]
            item.session.shouldfail = f"multihost: {happened}; no world can be started any more"
        for peer in self.peers.values():
            if why := peer.interruption:
                item.session.shouldstop = f"multihost: interrupted by {why}"

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Report the lost processes; if there are none, why a peer was interrupted."""
        lost = "\n".join(self.lost.values())
        for words in (*lost.splitlines(), *self._why_interrupted().splitlines()):
            terminalreporter.write_line(f"multihost: {printable(words)}", red=True)

    def _why_interrupted(self) -> str:
        """Return why a peer was interrupted; empty if none was, or that is unknown."""
        if self.lost:
            return ""
        signalled = (each.why_lost() for each in self.peers.values() if each.interruption)
        return next(signalled, "")
