"""Defines hazard rules and their findings.

A new rule is one `HazardRule` in a file of its own, offered by the hook
`pytest_multihost_hazard_rules`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from pytest_multihost.core.model.operation import group_name
from pytest_multihost.core.model.rank_names import Names
from pytest_multihost.extensions.hazards.model import Launch
from pytest_multihost.extensions.hazards.records import Records


@dataclass(frozen=True, slots=True)
class Found:
    """One finding of a rule.

    Attributes:
        sides: Each rank concerned with its operations in launch order; a rank that launched no such
            operation has none. The first side has at least one operation.
        group: The members of the group concerned; empty if the finding is about several groups.
    """

    sides: tuple[tuple[int, tuple[Launch, ...]], ...]
    group: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Occurrences:
    """All findings of one rule with the same operations at the same lines, reported as one hazard.

    Attributes:
        found: At least one finding, in the order of the run.
    """

    found: tuple[Found, ...]
    names: Names

    @property
    def first(self) -> Found:
        """The first finding, whose sides the report shows."""
        return self.found[0]

    @property
    def ranks(self) -> str:
        """The ranks of all sides, such as "ranks 0,1"."""
        return self.names.of(rank for each in self.found for rank, _ in each.sides)

    @property
    def group(self) -> str:
        """The group's name, such as "world group"; empty if the finding is about several groups."""
        return group_name(self.first.group, self.names) if self.first.group else ""

    @property
    def operation(self) -> str:
        """The name of the first operation of the first side."""
        _, launches = self.first.sides[0]
        return launches[0].operation.name


@dataclass(frozen=True, slots=True, kw_only=True)
class HazardRule:
    """One way in which a program that passes here can hang elsewhere.

    The functions are pure. A rule that is not certain finds nothing, because a warning about a
    correct program is worse than a missed hazard.

    Attributes:
        name: One word. Users write it in `--multihost-hazard-rules`, and as `hazard` in the
            project's file of accepted hazards.
        find: Gets the operations that each rank launched, by rank; yields findings.
        summarize: Gets all findings at the same lines; returns a summary, one sentence without a
            full stop.
        when: When the program hangs, in one sentence.
        is_default: Whether the rule applies if the user names no rules. Set it only for rules that
            have never reported a correct program.
        judges_plain_runs: Whether the rule can find something in a plain run: all ranks launched
            the same collectives in the same order, each rank from one thread, and waited for each
            at once. If no applied rule can, plain runs are not read; reading is most of the cost
            of hazards.
    """

    name: str
    find: Callable[[Records], Iterable[Found]]
    summarize: Callable[[Occurrences], str]
    when: str
    is_default: bool = False
    judges_plain_runs: bool = True
