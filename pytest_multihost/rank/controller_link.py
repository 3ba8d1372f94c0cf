"""A rank's link to the controller: events go out, gates come back."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_multihost.launch.wire import Channel
from pytest_multihost.model.clock import now
from pytest_multihost.model.event import Gate, RankEventBody, event_header
from pytest_multihost.model.messages import FaultPerformed, Release


@dataclass(slots=True)
class ControllerLink:
    """Sends events with the time at which they happened, and waits for the controller's answers."""

    channel: Channel

    def send(self, body: RankEventBody, at_s: float | None = None) -> None:
        """Send an event that has happened at `at_s`, or now."""
        self.channel.send(event_header(body, now() if at_s is None else at_s))

    def await_gate(self, gate: Gate) -> None:
        """Wait until the controller opens `gate`."""
        self.channel.receive(lambda message: message == Release(gate))

    def await_performed(self, index: int) -> str:
        """Wait until a fault has been performed from outside; return what went wrong."""
        found = self.channel.receive(
            lambda message: isinstance(message, FaultPerformed) and message.index == index
        ).message
        return found.error if isinstance(found, FaultPerformed) else ""
