"""What a page is made from, and what it says of each group of ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

from pytest_multihost.model.diagnosis import Diagnosis, Place
from pytest_multihost.model.result import WorldResult
from pytest_multihost.model.snapshot import RankSnapshot
from pytest_multihost.model.stack import Frame
from pytest_multihost.model.user_code import SourceContext
from pytest_multihost.model.verdict import RankError
from pytest_multihost.outcome.judge import Finding, RankFinding
from pytest_multihost.report.html.clean import Log
from pytest_multihost.report.html.timeline import role
from pytest_multihost.report.stack_tree import merge_stacks, walk
from pytest_multihost.report.text.page import doing, last_look


@dataclass(frozen=True, kw_only=True)  # no slots: cached_property needs a dictionary
class Story:
    """One attempt of one test, as far as a page can tell of it.

    Attributes:
        result: What was observed.
        finding: What was found.
        diagnosis: Why it hung or broke, where that is known.
        verdict: The same for programs: `verdict.json`.
        context: Root directory and source lines.
        logs: What the ranks have printed, cut to a size that can be read.
        excerpt: Lines around the place where the culprit is, with their numbers.
        files: Names of the files beside the page.
    """

    result: WorldResult
    finding: Finding
    diagnosis: Diagnosis | None
    verdict: Mapping[str, Any]
    context: SourceContext
    logs: Sequence[Log] = ()
    excerpt: Sequence[tuple[int, str]] = ()
    files: Sequence[str] = ()

    @cached_property
    def place(self) -> Callable[[Frame], Place]:
        """What returns a frame as the reader knows it; a world has the same few over and over."""
        return cache(self.context.place)

    @cached_property
    def places(self) -> Mapping[int, Place]:
        """Where the main thread of each rank was: the innermost frame that is of interest."""
        found = {}
        for _, node in walk(merge_stacks(self.result.dumps)):
            at = self.place(node.frames[-1])
            found.update(dict.fromkeys(node.ranks, at))  # children come later: the innermost stays
        return found

    @cached_property
    def seen(self) -> Mapping[int, RankSnapshot]:
        """The last look at each rank."""
        return last_look(self.result)

    @cached_property
    def parked(self) -> frozenset[int]:
        """Ranks that had left the test and waited for us; their stacks are ours."""
        return frozenset(e.facts.rank for e in self.finding.ranks if e.facts.waits_at_gate)


@dataclass(frozen=True, slots=True)
class Row:
    """Ranks that did the same.

    Attributes:
        ranks: Who.
        role: ``culprit``, ``waiting`` or nothing.
        state: One word.
        doing: What that was about.
        place: Where.
        error: What was raised.
    """

    ranks: tuple[int, ...]
    role: str
    state: str
    doing: str
    place: Place | None
    error: RankError | None


def rows(story: Story) -> list[Row]:
    """Return the ranks in groups that did the same: who is to blame first, then who waits."""
    groups: dict[tuple[Any, ...], list[int]] = {}
    for each in story.finding.ranks:
        groups.setdefault(_sort(each, story), []).append(each.facts.rank)
    found = [Row(tuple(ranks), *key) for key, ranks in groups.items()]
    order = {"culprit": 0, "waiting": 1}
    return sorted(found, key=lambda row: (order.get(row.role, 2), len(row.ranks), row.ranks))


def _sort(
    finding: RankFinding, story: Story
) -> tuple[str, str, str, Place | None, RankError | None]:
    rank = finding.facts.rank
    state, about = doing(finding.outcome, story.seen.get(rank), story.result)
    at = None if rank in story.parked or finding.error else story.places.get(rank)
    if not about and finding.summary != finding.outcome:
        about = finding.summary
    return _role(finding, story), state, about, at, _without_text(finding.error)


def _role(finding: RankFinding, story: Story) -> str:
    if story.diagnosis is None and finding.facts.rank == story.finding.headline:
        return "culprit"
    return role(finding.facts.rank, story.diagnosis)


def _without_text(error: RankError | None) -> RankError | None:
    """Return an error without its representation, which differs from rank to rank."""
    if error is None:
        return None
    return RankError(error.type, error.message, error.file, error.line, "", error.function)


def lane_words(story: Story) -> dict[int, tuple[str, str]]:
    """Return the state of each rank, and in a few words what it does where."""
    found = {}
    for row in rows(story):
        at = row.place
        where = (
            (at.source or at.function, f"{at.file}:{at.line}") if at is not None else (row.doing,)
        )
        words = " · ".join(part for part in (row.state.replace("_", " "), *where) if part)
        found.update(dict.fromkeys(row.ranks, (row.state.replace("_", " "), words)))
    return found
