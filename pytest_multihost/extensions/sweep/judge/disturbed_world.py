"""The facts about a disturbed world: its fault, its ranks, and its remains."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass

from pytest_multihost.core.blame import Judgement
from pytest_multihost.core.model.event import FaultChanged, HoldEnded, PointsPassed, RaisedError
from pytest_multihost.core.model.stack import Frame
from pytest_multihost.core.model.verdict import Place
from pytest_multihost.core.outcome import RankFinding
from pytest_multihost.core.outcome.agreement import Disagreement
from pytest_multihost.core.outcome.fault_progress import firings
from pytest_multihost.core.outcome.symptoms import is_closed_connection, is_unanswered
from pytest_multihost.extensions.sweep.judge.unreported import Unreported
from pytest_multihost.extensions.sweep.order import Clash
from pytest_multihost.extensions.sweep.remains import FoundErrors
from pytest_multihost.extensions.sweep.result import Disturbance, RunOutcome

FAILED = ("crashed", "error", "failed", "killed_as_planned")
"""Outcomes of ranks that failed by themselves."""


@dataclass(frozen=True, slots=True)
class DisturbedWorld:
    """A disturbed world while it is judged, and the facts about its ranks and its fault.

    Attributes:
        differences: The values in which the ranks differ that have passed, except those in which
            the ranks of the undisturbed run differ too.
        found: The errors in the world's remains.
    """

    disturbance: Disturbance
    judged: Judgement
    usual_s: float
    differences: Sequence[Disagreement]
    found: FoundErrors

    @property
    def rank(self) -> int:
        """The disturbed rank; for a fault of the first rank at a point, the rank that was first."""
        index = self.index()
        if not self.disturbance.fault.is_first or index is None:
            return self.disturbance.passed.rank
        return next(iter(firings(self.judged.result, index)), self.disturbance.passed.rank)

    @property
    def ranks(self) -> Sequence[RankFinding]:
        """The findings of all ranks."""
        return self.judged.finding.ranks

    def unreported(self, outcome: RunOutcome) -> Unreported:
        """Return the possible errors that no rank has reported.

        Args:
            outcome: The outcome by the exceptions of ranks.
        """
        return Unreported(
            fault=self.disturbance.fault,
            index=self.index(),
            rank=self.rank,
            judged=self.judged,
            found=self.found,
            has_passed=outcome == "survived",
            was_pressed=bool(self.was_pressed()),
        )

    def clash(self) -> Clash | None:
        """Return the first collectives that cannot match, unless a rank had failed before.

        A rank that raises an error of its own may enter a collective on its way out of the test. So
        all ranks there must have ended well, or with the error of a collective.
        """
        found = next(iter(self.found.clashes), None)
        is_clear = found is not None and not any(map(self.has_own_error, found.ranks))
        return found if is_clear else None

    def has_own_error(self, rank: int) -> bool:
        """Return whether a rank failed, and not because an operation of the runtime did.

        gloo ends the process of a rank that receives more than it has room for.
        """
        found = self.ranks[rank]
        if found.outcome not in FAILED:
            return False
        error = raised(found)
        if error is None:
            is_abort = found.facts.exit is not None and found.facts.exit.signal == signal.SIGABRT
            return not (is_abort and self.judged.result.last_operations(rank).open)
        texts = [f"{error.type.rpartition('.')[2]}: {error.message}", *error.causes]
        recent = self.judged.result.last_operations(rank).recent
        errors = [each.error for each in recent if each.failed and each.error]
        return not any(text.startswith(each) for text in texts for each in errors)

    def index(self) -> int | None:
        """Return the index of the disturbance's fault among the world's; the test may have some."""
        fault = self.disturbance.fault
        found = [
            index
            for index, each in enumerate(self.judged.result.spec.faults)
            if (each.kind, each.at, each.ranks) == (fault.kind, fault.at, fault.ranks)
        ]
        return found[-1] if found else None

    def has_happened(self) -> bool:
        """Return whether the fault has happened."""
        index = self.index()
        return index is not None and bool(firings(self.judged.result, index))

    def is_still_held(self) -> bool:
        """Return whether the fault itself still stops the rank."""
        if self.disturbance.fault.kind != "hold" or self.judged.result.ending != "overrun":
            return False
        return self.held_until_s() is None

    def held_until_s(self) -> float | None:
        """Return when the rank was last released; None if it was not, or was never held."""
        index = self.index()
        changes = [
            event
            for event in self.judged.result.history
            if isinstance(event.body, FaultChanged) and event.body.index == index
        ]
        last = changes[-1] if changes else None
        ended = (
            isinstance(last.body, FaultChanged) and last.body.phase == "ended" if last else False
        )
        return last.at_s if last is not None and ended else None

    def has_passed_again(self) -> bool | None:
        """Return whether the rank passed the point again after the fault; None if unknown."""
        at = self.disturbance.fault.at
        for event in self.judged.result.history:
            if event.rank == self.rank and isinstance(event.body, PointsPassed):
                counts = {each[:3]: each[3] for each in event.body.passed}
                count = counts.get((at.point, at.name, at.call))
                return None if count is None else count > at.nth
        return None

    def was_pressed(self) -> bool | None:
        """Return whether others polled while the rank was held, or had timeouts of seconds.

        None if the rank was not held.
        """
        index = self.index()
        ends = [
            event.body
            for event in self.judged.result.history
            if isinstance(event.body, HoldEnded) and event.body.index == index
        ]
        if not ends:
            return None
        return any(each.is_pressed or each.reason in ("others poll", "max_s") for each in ends)

    def unfinished(self) -> tuple[int, ...]:
        """Return the ranks that did not end by themselves."""
        return tuple(
            each.facts.rank
            for each in self.ranks
            if each.outcome in ("hung", "collateral") and each.at_s is None
        )

    def has_timed_out(self) -> bool:
        """Return whether a timeout ended a wait for something that would never have come.

        A wait for a rank that was held at that time does not count: that rank would have come.
        """
        at_s = [each.at_s for each in self.ranks if each.at_s is not None and self.timed_out(each)]
        if not at_s:
            return False
        if self.disturbance.fault.kind != "hold":
            return True
        released_s = self.held_until_s()
        return released_s is not None and min(at_s) > released_s

    def timed_out(self, found: RankFinding) -> bool:
        """Return whether a rank failed because it waited for another rank in vain.

        A closed connection or the harness's own barrier does not count: either reports the failure
        to the rank.
        """
        error = raised(found)
        if error is None or error.is_harness_symptom or is_closed_connection(error):
            return False
        if found.outcome == "collateral":
            return True
        return found.facts.rank != self.rank and is_unanswered(error)

    def place(self, frame: Frame | None) -> Place | None:
        """Return the place of a frame; None without one."""
        return self.judged.context.place(frame) if frame is not None else None


def raised(found: RankFinding) -> RaisedError | None:
    """Return the exception with which a rank failed; None if it did not, or not with one."""
    failure = found.facts.failure
    return failure.error if failure is not None else None
