"""What a hazard rule is, and what it finds.

`HazardRule` is complete: to add a rule is to write one in a file of its own, and to offer it over
the hook `pytest_multihost_hazard_rules`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from pytest_multihost.core.model.fault import Fault
from pytest_multihost.core.model.operation import group_name, rank_set
from pytest_multihost.extensions.hazards.model import Hazard, Launch
from pytest_multihost.extensions.hazards.records import Records


@dataclass(frozen=True, slots=True)
class Found:
    """One finding of a rule.

    Attributes:
        sides: For each rank concerned its operations, in the order in which it launched them; none
            for a rank that did nothing of the kind. The first side has at least one.
        group: Members of the group that the finding is about; empty if it is about several.
    """

    sides: tuple[tuple[int, tuple[Launch, ...]], ...]
    group: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Occurrences:
    """All findings of one rule with the same operations at the same lines, reported as one hazard.

    Attributes:
        found: At least one, in the order of the run.
        size: Ranks of the world.
    """

    found: tuple[Found, ...]
    size: int

    @property
    def first(self) -> Found:
        """The first finding, whose sides the report shows."""
        return self.found[0]

    @property
    def ranks(self) -> str:
        """The ranks of all sides, in words: "ranks 0,1"."""
        return rank_set(rank for each in self.found for rank, _ in each.sides)

    @property
    def group(self) -> str:
        """The group in words, such as "world group"; empty if the finding is about several."""
        return group_name(self.first.group, self.size) if self.first.group else ""

    @property
    def operation(self) -> str:
        """The name of the first operation of the first side."""
        _, launches = self.first.sides[0]
        return launches[0].operation.name


def _no_faults(_hazard: Hazard, _size: int) -> Iterable[Fault]:
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class HazardRule:
    """One way in which a program that passes here can hang elsewhere.

    The functions are pure. A rule that is not certain finds nothing: a warning about a program that
    is fine is worse than a hazard that was missed.

    Attributes:
        name: One word. Users write it for `--multihost-hazard-rules`, and as `hazard` in the file
            of what a project accepts.
        find: Gets what each rank has launched, by rank; yields findings.
        summarize: Gets all findings at the same lines; returns what was seen, in one sentence
            without a full stop.
        when: When it hangs, in one sentence.
        is_default: Whether the rule is applied where the user names no rules. Only rules that have
            never reported a program that is fine should be.
        judges_plain_runs: Whether the rule can find something in a run in which all ranks launched
            the same collectives in one order, each rank from one thread, and waited for each at
            once. If none of the rules to apply can, such a run is not even read, which is most of
            the cost of hazards.
        disturb: Gets a hazard that the rule has found, and the number of ranks; yields faults, each
            of which may make the program hang on this machine. They name their ranks by number. A
            sweep tries them.
    """

    name: str
    find: Callable[[Records], Iterable[Found]]
    summarize: Callable[[Occurrences], str]
    when: str
    is_default: bool = False
    judges_plain_runs: bool = True
    disturb: Callable[[Hazard, int], Iterable[Fault]] = _no_faults
