"""See when roles are ready, let the ranks start that wait for this, and end services.

A role is ready when a TCP port listens. To connect to the port would show that as well, but a
server may take the connection for its client. So the socket table of the rank's host is read.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from pytest_multihost.core.model.event import Event, ProgramReady, ReadyWhen
from pytest_multihost.core.model.messages import EndService, RankReady
from pytest_multihost.core.model.role import RoleSpec
from pytest_multihost.core.model.spec import ServicePart
from pytest_multihost.core.outcome import RankFacts
from pytest_multihost.core.services.service import Action, Opening, Service, ServiceKind, Turn
from pytest_multihost.core.watch.kernel import LISTEN, inet_sockets_from

NAME = "role_order"

_INTERVAL_S, _LONGEST_S = 0.02, 0.25
_LOOKS = 50
"""After so many looks the time between two is twice as long, and so on."""


@dataclass(slots=True)
class RoleOrder:
    """The ranks of a world that are not ready yet, and its services.

    Attributes:
        starting: For each rank, the ranks that start after it.
        services: The ranks that serve the others.
    """

    starting: Mapping[int, tuple[int, ...]]
    services: frozenset[int] = frozenset()
    _have_ended: bool = False
    _looks: int = 0
    _unready: dict[int, tuple[int, int]] = field(default_factory=dict)

    def interval_s(self) -> float:
        """Return the longest time to the next look at the ports."""
        between_s = _INTERVAL_S * (1 + self._looks / _LOOKS)
        return min(between_s, _LONGEST_S) if self._unready else math.inf

    def after(self, event: Event, facts: Sequence[RankFacts]) -> Sequence[Action]:
        """Begin to look for a rank's port once it says which one; forget ranks that are gone."""
        rank, pid = event.rank, facts[event.rank].pid
        if isinstance(event.body, ReadyWhen) and pid is not None:
            self._unready[rank] = pid, event.body.port
        elif facts[rank].is_gone:
            self._unready.pop(rank, None)
        return self._end_services(event.at_s, facts)

    def _end_services(self, now: float, facts: Sequence[RankFacts]) -> Sequence[Action]:
        """End the services once all other ranks have returned from the test."""
        others = (each for each in facts if each.rank not in self.services)
        if self._have_ended or not self.services or not all(e.is_past_body for e in others):
            return ()
        self._have_ended = True
        ended = tuple((rank, EndService()) for rank in sorted(self.services))
        return [Action(to_ranks=ended, moves_at_s=now)]

    def due(self, turn: Turn) -> Sequence[Action]:
        """Return the actions that record which ranks are ready, and start those after them."""
        self._looks += 1
        return [self._ready(rank, turn.now) for rank in self._listening()]

    def _ready(self, rank: int, now: float) -> Action:
        starting = self.starting.get(rank, ())
        return Action(
            perform=lambda _: self._forget(rank),
            events=((rank, ProgramReady()),),
            to_ranks=tuple((each, RankReady(rank)) for each in starting),
            moves_at_s=now if starting else None,
            is_certain=True,
        )

    def _forget(self, rank: int) -> None:
        self._unready.pop(rank, None)

    def permits_proof(self, _deadline_s: float) -> bool:
        """Return whether no rank has become ready since the last look."""
        return not self._listening()

    def _listening(self) -> list[int]:
        """Return the ranks whose ports listen now, and did not before."""
        ports = {pid: listening_ports(pid) for pid, _ in set(self._unready.values())}
        return [rank for rank, (pid, port) in self._unready.items() if port in ports[pid]]


def listening_ports(pid: int) -> frozenset[int]:
    """Return the TCP ports that listen in the network namespace of a process."""
    return frozenset(
        each.local.port
        for name in ("tcp", "tcp6")
        for each in inet_sockets_from(_table(pid, name))
        if each.state == LISTEN
    )


def _table(pid: int, name: str) -> str:
    with suppress(OSError):  # it is gone, or there is no IPv6
        return Path(f"/proc/{pid}/net/{name}").read_text("ascii")
    return ""


def order_part(roles: Sequence[RoleSpec]) -> dict[str, ServicePart]:
    """Return the part of this service in a world's spec, if its roles need it."""
    needs = ("ready='tcp:...' of a role", "roles without ready= and after=")
    if any(each.ready for each in roles):
        return {NAME: ServicePart(one_machine=needs)}
    return {NAME: ServicePart()} if any(each.is_service for each in roles) else {}


def _open(opening: Opening) -> Service:
    roles = opening.spec.roles
    found = RoleOrder(
        {
            rank: tuple(each for other in roles if role.name in other.after for each in other.ranks)
            for role in roles
            for rank in role.ranks
        },
        frozenset(rank for role in roles if role.is_service for rank in role.ranks),
    )
    return Service(
        name=NAME,
        interval_s=found.interval_s,
        after=found.after,
        due=found.due,
        only_observes=True,
        permits_proof=found.permits_proof,
    )


ROLE_ORDER = ServiceKind(name=NAME, open=_open)
