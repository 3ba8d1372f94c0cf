"""A kind of hang: all that the judgement and the reports need to know of it, in one object."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from pytest_multihost.core.blame.cause import Cause
from pytest_multihost.core.model.result import WorldResult
from pytest_multihost.core.model.verdict import Kind, Sentence
from pytest_multihost.core.outcome import Finding

ShownBy = Literal["waits", "failure", "process", "operations", "nothing"]
"""The evidence that a world hangs in this way.

* waits: other ranks wait for the culprit, whose own state is nothing unusual
* failure: the culprit has died, or raised
* process: the culprit's process is held
* operations: the operations in which the ranks are
* nothing: no rank is seen to wait for another one
"""

Culprit = Literal["still", "busy", "gone", "held", "none"]
"""The state of the culprits: alive and still, alive and busy, gone from the test, held.

"none" stands for kinds that no state of one rank explains.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class HangKind:
    """A kind of hang. No attribute has a default, so mypy finds one left out of a new kind.

    Attributes:
        name: Its word in verdict.json.
        meaning: The page's explanation of such a hang.
        next_step: The page's advice.
        sentence: Returns the headline, unless a fault has frozen the culprits.
        shown_by: The evidence of such a hang.
        culprit: The state of the culprits.
        is_momentary: Whether it describes one instant, so that only time or a proof shows that the
            state is permanent.
        is_certain_alone: Whether the culprit's state proves it, whichever ranks wait.
        is_one_event: Whether each cause of this kind is an event of its own. Causes of other kinds
            are one cause if ranks wait in the same operation.
        is_of_absent_ranks: Whether ranks wait for ranks that are not there, so that an earlier
            mistake of the waiting ranks may explain it.
        is_explained_by_cut: Whether no rank is to blame if the network is cut.
        is_vague: Whether more observations might give a more precise diagnosis.
        may_be_slow: Whether a rank that only takes long looks alike.
        has_line_of_waiting: Whether the headline ends with the line at which the others wait,
            because the culprits have none.
        includes_errors: Whether the exceptions of its culprits are part of it.
    """

    name: Kind
    meaning: str
    next_step: str
    sentence: Callable[[Cause, Finding, WorldResult], Sentence]
    shown_by: ShownBy
    culprit: Culprit
    is_momentary: bool
    is_certain_alone: bool
    is_one_event: bool
    is_of_absent_ranks: bool
    is_explained_by_cut: bool
    is_vague: bool
    may_be_slow: bool
    has_line_of_waiting: bool
    includes_errors: bool

    @property
    def is_alive(self) -> bool:
        """Whether the culprits are alive, and do something of their own."""
        return self.culprit in ("still", "busy")

    @property
    def is_absence(self) -> bool:
        """Whether the culprits did not come to an operation in which others wait."""
        return self.shown_by in ("waits", "failure", "process")
