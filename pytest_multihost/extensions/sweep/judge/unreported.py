"""Finds errors in a disturbed run that no rank has reported.

A saved file is damaged, or an assertion of the test itself failed while the program raised
no error. The possible effects on a robust program do not count.
"""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from dataclasses import dataclass

from pytest_multihost.core.blame import Judgement
from pytest_multihost.core.model.fault import FIELD_ERRORS, Fault
from pytest_multihost.extensions.sweep.judge.assertions import (
    OwnAssertion,
    assertion_of,
    looks_itself,
)
from pytest_multihost.extensions.sweep.judge.decisions import meetings
from pytest_multihost.extensions.sweep.remains import FoundErrors
from pytest_multihost.extensions.sweep.saved import Damage
from pytest_multihost.faults.kind import error_number
from pytest_multihost.intercept.files import matcher

_SILENT = frozenset({"hold", "stale_files", "shuffled_listing", "clock_skew", "hash_seed"})
"""Faults that inject no error, and nothing that a test may rightly expect not to happen."""

_UNMET = frozenset({"hold", "hash_seed"})
"""Those of them that no line of code meets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unreported:
    """The possible unreported errors of a run.

    Attributes:
        index: The fault's index among the world's faults; None if it has none.
        found: The errors in the world's remains.
        was_pressed: Whether others polled, or had timeouts of seconds, while the rank was held.
    """

    fault: Fault
    index: int | None
    rank: int
    judged: Judgement
    found: FoundErrors
    has_passed: bool
    was_pressed: bool

    def damage(self) -> Sequence[Damage]:
        """Return the saved files that are wrong.

        If a rank has reported anything, only those count that another file says are good, and a
        file that has replaced a good one. That nothing was saved counts only after an error that
        no rank has reported: a program whose time is over, or that finds no data, rightly saves
        nothing.
        """
        if self.judged.result.ending != "self":
            return ()
        is_silent = self.has_passed and not self._reports_error()
        has_hidden_error = is_silent and injected_error(self.fault) is not None
        return [
            each
            for each in self.found.damage
            if (has_hidden_error if each.is_absence else is_silent)
            or each.is_vouched
            or (self.found.overwrites and self._is_of_fault(each))
        ]

    def assertions(self) -> Sequence[OwnAssertion]:
        """Return the assertions of the test itself with which ranks failed, if all did so.

        None if the test may be to blame, or the disturbance itself:

        * A rank was held while others had timeouts, or polled: they may have given up rightly.
        * A rank reported the error that was injected.
        * The assertion itself met the fault, say because it looked for a file.
        * The clock of a rank jumped by hours, and only this rank noticed: a time was over for it.
        """
        result, context = self.judged.result, self.judged.context
        is_silent = self.fault.kind in _SILENT or injected_error(self.fault) is not None
        if result.ending != "self" or not is_silent or self._reports_error() or self.was_pressed:
            return ()
        neutral = ("passed", "skipped", "collateral")
        found = [
            assertion_of(each.facts, result.spec.nodeid, context.root, context.lines_of)
            for each in self.judged.finding.ranks
            if each.outcome not in neutral
        ]
        known = [each for each in found if each is not None]
        if len(known) < len(found):
            return ()
        return [each for each in known if each.rank != self.rank or self._shows_program(each)]

    def _reports_error(self) -> bool:
        """Return whether ranks may have reported an error that the fault has injected."""
        return injected_error(self.fault) is not None and self.found.is_said

    def _is_of_fault(self, damage: Damage) -> bool:
        """Return whether the fault was at this file."""
        at = self.fault.at
        return at.point == "io" and matcher(at.name)(f"/{damage.path}")

    def _shows_program(self, assertion: OwnAssertion) -> bool:
        """Return whether the disturbed rank's assertion shows an action of the program."""
        if self.fault.kind in _UNMET:
            return True
        if self.fault.kind == "clock_skew" or self.index is None:
            return False
        operations = self.judged.result.last_operations(self.rank).recent
        met = meetings(self.judged.result, self.index, self.rank)
        return not looks_itself(assertion, met, [each.since_s for each in operations])


def injected_error(fault: Fault) -> type[BaseException] | None:
    """Return the class of the error that a fault raises; None if it raises none."""
    if fault.kind == "fails" and fault.at.point == "io":
        number = error_number(fault.params.get("error", FIELD_ERRORS.get(fault.at.call, "EIO")))
        return type(OSError(number, ""))
    if fault.kind in ("fails", "raise_at"):
        found = getattr(builtins, str(fault.params.get("error", "RuntimeError")), None)
        is_error = isinstance(found, type) and issubclass(found, BaseException)
        return found if is_error else Exception
    return None
