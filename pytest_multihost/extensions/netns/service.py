"""The service "netns" of a world: the network between its hosts, and that network's faults."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pytest_multihost.core.model.event import Event, FaultAnswered, FaultChanged
from pytest_multihost.core.model.messages import UndoFaults
from pytest_multihost.core.model.spec import WorldSpec
from pytest_multihost.core.outcome import RankFacts
from pytest_multihost.core.services import Action, Opening, Service, ServiceKind
from pytest_multihost.extensions.netns.effects import effect_of
from pytest_multihost.extensions.netns.kind_of_hosts import NAME, NETNS
from pytest_multihost.extensions.netns.kinds import NETWORK_KINDS, disturbs_network


@dataclass(slots=True)
class NetworkOfWorld:
    """The controller's state of one world's network.

    Attributes:
        is_asked: Whether the server has been asked to undo all faults.
        is_restored: Whether no fault disturbs the network any more.
    """

    spec: WorldSpec
    is_asked: bool = False
    is_restored: bool = False

    def on_event(self, event: Event) -> Event:
        """Return an event with the effect of its fault, if that is a fault of the network."""
        body = event.body
        if not (isinstance(body, FaultChanged) and body.fault in NETWORK_KINDS):
            return event
        effect = effect_of(self.spec.faults[body.index], self.spec)
        return replace(event, body=replace(body, service=NAME, effect=effect))

    def after(self, event: Event, facts: Sequence[RankFacts]) -> Sequence[Action]:
        """Undo all faults once the test bodies are over, because none may disturb the teardown."""
        match event.body:
            case FaultAnswered(service=service, index=None) if service == NAME:
                self.is_restored = True
        if self.is_asked or not all(each.is_past_body for each in facts):
            return ()
        self.is_asked = True
        return [Action(to_server=(UndoFaults(NAME),))]


def _open(opening: Opening) -> Service | None:
    if not disturbs_network(opening.spec.faults):
        return None
    network = NetworkOfWorld(opening.spec)
    return Service(
        name=NAME,
        on_event=network.on_event,
        after=network.after,
        may_end=lambda: network.is_restored,
    )


NETWORK_SERVICE = ServiceKind(name=NAME, open=_open, part=NETNS.services()[NAME])
