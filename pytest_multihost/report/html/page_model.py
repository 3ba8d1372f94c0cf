"""The data of the page of one attempt."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Literal

from pytest_multihost.blame import Judgement
from pytest_multihost.model.operation import Operation, group_by_value
from pytest_multihost.model.result import RankSnapshot
from pytest_multihost.model.stack import Frame, NativeThread
from pytest_multihost.model.verdict import Place, RankError, Verdict
from pytest_multihost.outcome import RankFinding
from pytest_multihost.report.activity import rank_activity, rank_places
from pytest_multihost.report.logs import LogExcerpt

Role = Literal["culprit", "waiting", ""]
"""The role of a rank in a diagnosis."""

ROLE_ORDER: Mapping[Role, int] = {"culprit": 0, "waiting": 1, "": 2}


@dataclass(frozen=True, kw_only=True)  # no slots: cached_property needs a dictionary
class PageModel:
    """One attempt of one test.

    Attributes:
        judged: The judged world.
        verdict: The same for programs.
        logs: The output of each rank, cut to a readable size.
        source_lines: Numbered lines around the culprit's place.
        files: Names of the files beside the page.
    """

    judged: Judgement
    verdict: Verdict
    logs: Sequence[LogExcerpt] = ()
    source_lines: Sequence[tuple[int, str]] = ()
    files: Sequence[str] = ()

    @cached_property
    def place(self) -> Callable[[Frame], Place]:
        """Convert a frame to a place; cached, because the ranks of a world share most frames."""
        return cache(self.judged.context.place)

    @cached_property
    def places(self) -> Mapping[int, Place]:
        """Where each rank is."""
        return rank_places(self.judged)

    @cached_property
    def last_seen(self) -> Mapping[int, RankSnapshot]:
        """The last snapshot of each rank."""
        return self.judged.result.last_seen

    @cached_property
    def in_calls(self) -> Mapping[int, Operation]:
        """What ranks are in, in threads for others that the diagnosis is about."""
        return self.judged.in_calls

    @cached_property
    def parked(self) -> frozenset[int]:
        """Ranks that had left the test and waited for the harness, which their stacks show."""
        return frozenset(e.facts.rank for e in self.judged.finding.ranks if e.facts.waits_at_gate)

    def native_threads(self, rank: int) -> Sequence[NativeThread]:
        """Return the native stacks of a rank, if they were read."""
        return self.last_seen[rank].native if rank in self.last_seen else ()

    def role(self, rank: int) -> Role:
        """Return the role of a rank in the diagnosis."""
        if self.judged.diagnosis is None:
            return ""
        if rank in self.judged.diagnosis.culprits or rank in self.judged.diagnosis.cycle:
            return "culprit"
        return "waiting" if rank in self.judged.diagnosis.waiting else ""

    def roles(self, ranks: Iterable[int]) -> set[Role]:
        """Return the roles of some ranks."""
        return {self.role(rank) for rank in ranks}


@dataclass(frozen=True, slots=True)
class RankGroup:
    """Ranks with the same outcome at the same place.

    Attributes:
        ranks: The members.
        role: Their role; without a diagnosis, the rank that failed counts as the culprit.
        state: One or two words, such as ``waiting`` or ``killed as planned``.
        doing: Details of the state.
        place: Where they are.
        error: What was raised.
    """

    ranks: tuple[int, ...]
    role: Role
    state: str
    doing: str
    place: Place | None
    error: RankError | None


def rank_groups(page: PageModel) -> list[RankGroup]:
    """Return the ranks grouped by what happened to them: culprits first, then waiting ranks."""
    alike = group_by_value(
        (_group_of_one(each, page), each.facts.rank) for each in page.judged.finding.ranks
    )
    groups = [replace(group, ranks=tuple(ranks)) for group, ranks in alike.items()]
    return sorted(groups, key=lambda each: (ROLE_ORDER[each.role], len(each.ranks), each.ranks))


def _group_of_one(finding: RankFinding, page: PageModel) -> RankGroup:
    """Return the group of one rank, without its number so that equal groups compare equal."""
    rank = finding.facts.rank
    seen, result = page.last_seen.get(rank), page.judged.result
    state, details = rank_activity(finding.outcome, seen, result, page.in_calls.get(rank))
    if not details and finding.summary != finding.outcome:
        details = finding.summary
    is_headline = page.judged.diagnosis is None and rank == page.judged.finding.headline
    return RankGroup(
        ranks=(),
        role="culprit" if is_headline else page.role(rank),
        state=state.replace("_", " "),
        doing=details,
        place=None if rank in page.parked or finding.error else page.places.get(rank),
        # pytest's representation of an error differs between ranks, at least in addresses.
        error=replace(finding.error, text="") if finding.error else None,
    )
