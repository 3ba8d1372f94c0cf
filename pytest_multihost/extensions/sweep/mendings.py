"""Lists the patterns that remove weaknesses; ``multihost pattern`` shows each with code."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_multihost.extensions.sweep.own_kinds import words_of
from pytest_multihost.extensions.sweep.result import DisturbedRun


@dataclass(frozen=True, slots=True)
class Mending:
    """A pattern that removes a kind of weakness."""

    anchor: str
    advice: str

    @property
    def page(self) -> str:
        """The section of the guide that describes it, with an example."""
        return f"docs/patterns.md#{self.anchor}"

    @property
    def command(self) -> str:
        """The command that prints this section."""
        return f"multihost pattern {self.anchor}"


AGREE_ON_ERRORS = Mending(
    "agree-on-errors",
    "Let all ranks exchange whether they failed before they wait, so that each one raises.",
)
BROADCAST_DECISIONS = Mending(
    "broadcast-decisions",
    "Let one rank decide and broadcast the decision, so that all take the same branch.",
)
SORT_LISTINGS = Mending(
    "sort-listings",
    "Sort the listing, or let one rank list and broadcast the result.",
)
JOIN_UNEVEN_INPUTS = Mending(
    "join-uneven-inputs",
    "Agree before each step whether every rank has data, so that all stop together.",
)
WAIT_BY_AN_OPERATION = Mending(
    "wait-by-an-operation",
    "Wait for another rank's file with a barrier or broadcast, then look for it once.",
)
LAUNCH_IN_ONE_ORDER = Mending(
    "launch-in-one-order",
    "Launch in an order that is the same on all ranks, and from one thread for each group.",
)
LOST_RANKS = Mending(
    "lost-ranks",
    "Run under a launcher that ends all ranks when one dies; no code of the others can.",
)

MENDINGS = {
    each.anchor: each
    for each in (
        AGREE_ON_ERRORS,
        BROADCAST_DECISIONS,
        SORT_LISTINGS,
        JOIN_UNEVEN_INPUTS,
        WAIT_BY_AN_OPERATION,
        LAUNCH_IN_ONE_ORDER,
        LOST_RANKS,
    )
}
"""All patterns, by their section."""


def mending_of_kind(run: DisturbedRun) -> Mending:
    """Return the pattern that removes the usual weakness of the run's kind of fault.

    If no rank waits for a file, but each goes on with its own view, to wait longer is not a cure.
    Files are broken by errors of which the other ranks do not know.
    """
    if run.wrong_by == "files":
        return AGREE_ON_ERRORS
    if run.outcome == "wrong":
        return BROADCAST_DECISIONS
    return MENDINGS.get(words_of(run.disturbance).mending, BROADCAST_DECISIONS)
