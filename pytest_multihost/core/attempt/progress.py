"""Describes in one line where the ranks of a running world are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pytest_multihost.core.blame import BlockingRanks
from pytest_multihost.core.model.rank_names import Names
from pytest_multihost.core.model.spec import Subject
from pytest_multihost.core.outcome import RankFacts
from pytest_multihost.core.report.live_line import blocking_text, progress_text
from pytest_multihost.core.watch.probes import PySpySampler

FindBlockingRanks = Callable[[Sequence[RankFacts]], BlockingRanks | None]
"""Returns the ranks that the others wait for, if they wait for any."""


@dataclass(slots=True)
class WorldProgress:
    """Describes in one line where the ranks of a running world are.

    If ranks wait for another, the line names that rank and its current line of code.
    """

    blocking_ranks: FindBlockingRanks
    names: Names
    subject: Subject = "test"
    _sampler: PySpySampler = field(default_factory=PySpySampler)
    _since: tuple[tuple[int, ...], float] = ((), 0.0)

    def close(self) -> None:
        """End the process that reads the stacks."""
        self._sampler.close()

    def text(self, seconds: float, facts: Sequence[RankFacts]) -> str:
        """Return the line for the time `seconds` after the start."""
        blocking = self.blocking_ranks(facts)
        if blocking is None:
            return progress_text(seconds, facts, self.names, self.subject)
        if self._since[0] != blocking.ranks:
            self._since = blocking.ranks, seconds
        where = self._sampler.user_frame(blocking.pid) if blocking.pid is not None else None
        for_s = seconds - self._since[1]
        return blocking_text(seconds, blocking, self.names, for_s=for_s, where=where)
