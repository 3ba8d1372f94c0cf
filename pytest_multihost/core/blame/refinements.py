"""The refinements that make a cause more precise, in order.

`causes` sees only the waits of ranks for each other. A refinement knows one more fact of the world,
and returns the cause that follows from it, or the cause as it was. To add one, write its file and a
line here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from pytest_multihost.core.blame.cause import Cause
from pytest_multihost.core.blame.children import as_family, with_child
from pytest_multihost.core.blame.lock_deadlocks import as_lock_across, as_lock_cycle
from pytest_multihost.core.blame.other_members import as_other_members
from pytest_multihost.core.blame.other_programs import as_other_program
from pytest_multihost.core.blame.partition_blame import as_cut
from pytest_multihost.core.blame.payloads import as_other_payload
from pytest_multihost.core.blame.planned_freeze import as_late
from pytest_multihost.core.blame.size_complaint import as_doubtful
from pytest_multihost.core.blame.unmatched_transfers import as_wrong_partner
from pytest_multihost.core.blame.wait_graph import States
from pytest_multihost.core.model.result import WorldResult
from pytest_multihost.core.outcome import Finding


@dataclass(frozen=True, slots=True)
class Observed:
    """The observations of a world.

    Attributes:
        states: The state of each rank that was seen.
    """

    states: States
    result: WorldResult
    finding: Finding


Refinement = Callable[[Cause, Observed], Cause]

BY_STATES: Final[tuple[Refinement, ...]] = (
    lambda cause, world: as_late(cause, world.result),
    lambda cause, world: as_cut(cause, world.states, world.result),
    lambda cause, world: as_lock_cycle(cause, world.result),
    lambda cause, world: as_lock_across(cause, world.result),
    lambda cause, world: as_doubtful(cause, world.finding),
    # The children come last: which of its processes a culprit is, whatever the kind has become.
    lambda cause, world: as_family(cause, world.states),
    lambda cause, world: with_child(cause, world.states),
)
"""Refinements by the states of ranks at the end, for worlds of all outcomes."""

BY_EARLIER_MISTAKES: Final[tuple[Refinement, ...]] = (
    lambda cause, _: as_other_program(cause),
    lambda cause, world: as_other_payload(cause, world.states),
    lambda cause, world: as_other_members(cause, world.result.partings, world.states),
    lambda cause, world: as_wrong_partner(cause, world.states),
)
"""Refinements by the ranks' earlier operations, for worlds that hang: why they do not match."""


def refined(
    causes: Sequence[Cause], refinements: Sequence[Refinement], observed: Observed
) -> tuple[Cause, ...]:
    """Return the causes after all refinements, each applied to the result of the one before."""
    for refine in refinements:
        causes = tuple(refine(each, observed) for each in causes)
    return tuple(causes)
