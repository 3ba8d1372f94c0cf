"""Requests to the flight recorders of a world's ranks: sent to all at once, and answered once.

64 ranks on two processors take a tenth of a second to answer, so the answers are awaited only when
they are used.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pytest_multihost.core.model.history import History
from pytest_multihost.core.model.memberships import Memberships
from pytest_multihost.core.model.operation import Operations
from pytest_multihost.core.slots import FlightMailbox

_FLIGHT_S = 0.2
"""How long a rank may take to begin its answer; it needs a few milliseconds."""

_HISTORIES_S = 1.0
"""How long it may take to send its histories, once it has begun to answer."""

_POLL_S = 0.002


@dataclass(frozen=True, slots=True)
class FlightRequests:
    """Requests to ranks.

    Attributes:
        since_s: When they were sent, on the monotonic clock.
        mailboxes: Those of the ranks that can answer, in order.
        memberships: The members of groups that have numbers of their own in the answers.
    """

    since_s: float
    mailboxes: tuple[FlightMailbox, ...] = ()
    memberships: Memberships = field(default_factory=Memberships)

    @classmethod
    def send(cls, scratch: Path, ranks: Iterable[int], memberships: Memberships) -> FlightRequests:
        """Ask ranks of a world that is over for their operations and histories."""
        since_s = time.monotonic()
        asked = (FlightMailbox(scratch, rank) for rank in ranks)
        mailboxes = tuple(each for each in asked if each.ask(for_histories=True))
        return cls(since_s, mailboxes, memberships)

    def operations(self) -> Mapping[int, Operations]:
        """Return, by rank, the operations that only flight recorders have; waits for them."""
        found: dict[int, Operations] = {}
        waiting = self.mailboxes
        while waiting:
            answers = {each.rank: each.read(since_s=self.since_s) for each in waiting}
            found |= {
                rank: self.memberships.operations(answer)
                for rank, answer in answers.items()
                if answer is not None
            }
            waiting = tuple(each for each in waiting if each.rank not in found)
            if time.monotonic() > self.since_s + _FLIGHT_S:
                break
            time.sleep(_POLL_S if waiting else 0.0)
        return found

    def histories(self) -> Sequence[History]:
        """Return the histories of all groups of all ranks; waits for them."""
        waiting, found = self.mailboxes, list[History]()
        while waiting:
            now_s = time.monotonic()
            answers = [(each, each.read_histories(since_s=self.since_s)) for each in waiting]
            found += [history for _, answer in answers for history in answer or ()]
            waiting = tuple(each for each, answer in answers if answer is None)
            if now_s > self.since_s + _FLIGHT_S:
                begun = (each.read(since_s=self.since_s) is not None for each in waiting)
                waiting = tuple(each for each, has in zip(waiting, begun, strict=True) if has)
            if now_s > self.since_s + _HISTORIES_S:
                break
            time.sleep(_POLL_S if waiting else 0.0)
        return tuple(self.memberships.histories(found))
