"""Looks for a proof that a world hangs, as closely as it must and as seldom as it can."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from pytest_multihost.analysis.proof import WINDOW_S, Moment, Search, stands_still
from pytest_multihost.model.operation import Operations
from pytest_multihost.model.process import Look
from pytest_multihost.watch.proc import ProcWatch


@dataclass(slots=True)
class Seeker:
    """Seeks a proof that one world hangs. Call `step` each second, or more often.

    Attributes:
        proc: Sees the world's processes.
        search: How far a proof has come; its blockers say what may end a wait.
        glances: The last two glances at the main threads, older first.
    """

    proc: ProcWatch
    search: Search = field(default_factory=Search)
    glances: tuple[Look, ...] = ()

    def step(
        self,
        now: float,
        operations: Sequence[Operations],
        *,
        deadline_s: float,
        planned: Sequence[str] = (),
    ) -> bool:
        """Look once more; return whether the world is now proven to hang.

        Between two looks of a proof nothing is done but wait for the window to pass.

        Args:
            now: The time.
            operations: What the ranks' slot pages hold now.
            deadline_s: When the world is ended in any case.
            planned: What the harness itself is still going to do to the world: one sentence each.
        """
        if self.search.last is not None and now < self.search.last.look.at_s + WINDOW_S:
            return self.search.is_proof
        glance = self.proc.glance()
        self.glances = (*self.glances[-1:], glance)
        told = tuple(operations)
        if stands_still(Moment(glance, told), deadline_s=deadline_s):
            look = Moment(self.proc.look(), told)
            self.search = self.search.after(look, deadline_s=deadline_s, planned=planned)
        else:
            self.search = Search()
        return self.search.is_proof
