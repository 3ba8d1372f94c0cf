"""Whether ranks agree on the values that they have stated with `world.same`."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pytest_multihost.core.model.event import ValueStated
from pytest_multihost.core.model.rank_names import Names
from pytest_multihost.core.model.result import WorldResult
from pytest_multihost.core.model.stack import Frame, short_path
from pytest_multihost.core.outcome.finding import Finding
from pytest_multihost.core.outcome.rank_facts import RankFacts, fold_history

_DIGITS = 8


@dataclass(frozen=True, slots=True)
class EqualRanks:
    """Ranks with equal values.

    Attributes:
        text: The value, shortened; empty if these ranks have not stated it.
        digest: Distinguishes values whose texts are equal.
        frame: The line at which the first of them has stated it.
    """

    ranks: tuple[int, ...]
    text: str = ""
    digest: str = ""
    frame: Frame | None = None

    def words(self, root: str, names: Names, *, shows_digest: bool = False) -> str:
        """Return the side in words; files below `root` are relative to it."""
        verb = "has" if len(self.ranks) == 1 else "have"
        if not self.text:
            return f"{names.of(self.ranks)} {verb} not stated it"
        where = ""
        if self.frame is not None:
            where = f" ({short_path(root, self.frame.file)}:{self.frame.line})"
        text = f"{self.text}, digest {self.digest[:_DIGITS]}" if shows_digest else self.text
        return f"{names.of(self.ranks)} {verb} {text}{where}"


@dataclass(frozen=True, slots=True)
class Disagreement:
    """A value in which ranks differ.

    Attributes:
        nth: How often the ranks had stated a value of this name before.
        sides: At least two, that with the lowest rank first.
        is_asked: Whether the test has stated it.
    """

    name: str
    nth: int
    sides: tuple[EqualRanks, ...]
    is_asked: bool = True

    def words(self, root: str, names: Names) -> str:
        """Return the values of the ranks, in one sentence."""
        again = f" (value {self.nth + 1})" if self.nth else ""
        are_alike = len({each.text for each in self.sides}) < len(self.sides)
        sides = "; ".join(each.words(root, names, shows_digest=are_alike) for each in self.sides)
        return f"ranks differ in {self.name!r}{again}: {sides}"


def disagreements(result: WorldResult) -> tuple[Disagreement, ...]:
    """Return the values in which the ranks differ that have passed, in the order of stating."""
    stated: dict[tuple[str, int], dict[int, ValueStated]] = {}
    for event in result.history:
        if isinstance(event.body, ValueStated):
            stated.setdefault((event.body.name, event.body.nth), {})[event.rank] = event.body
    if not stated:  # nearly always
        return ()
    facts = fold_history(result.history, result.spec.size)
    stating = result.spec.testing_ranks
    passed = [rank for rank in stating if _has_passed(facts[rank])]
    found = []
    for (name, nth), by_rank in stated.items():
        sides: dict[str, list[int]] = {}
        for rank in passed:
            sides.setdefault(by_rank[rank].digest if rank in by_rank else "", []).append(rank)
        if len(sides) > 1:
            parts = tuple(_side(each, by_rank) for each in sides.values())
            is_asked = any(each.is_asked for each in by_rank.values())
            found.append(Disagreement(name, nth, parts, is_asked))
    return tuple(found)


def _has_passed(facts: RankFacts) -> bool:
    is_over = facts.parked_s is not None or facts.done_s is not None
    return is_over and facts.failure is None and not facts.is_skipped and not facts.has_died


def _side(ranks: list[int], stated: dict[int, ValueStated]) -> EqualRanks:
    first = stated.get(ranks[0])
    if first is None:
        return EqualRanks(tuple(ranks))
    return EqualRanks(tuple(ranks), first.text, first.digest, first.frame)


def require_agreement(finding: Finding, result: WorldResult, root: str) -> Finding:
    """Return `finding`, as failed if the test passed but ranks differ in a value of the test's.

    A test that did not pass keeps its own reason.
    """
    found = [each for each in disagreements(result) if each.is_asked]
    if finding.status == "passed" and found:
        reason = "; ".join(each.words(root, result.spec.names) for each in found)
        return replace(finding, outcome="failed", status="failed", reason=reason)
    return finding
