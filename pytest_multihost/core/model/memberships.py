"""Finds the ranks that are members of groups which torch numbers in its own way.

A test may make a torch world of a part of its ranks, or a group between two such worlds. A rank
knows only its own number there. So the members agree on a name for the group, each of them declares
its number in its slot page, and this module joins the pages. A number that no rank has declared may
belong to any process, also to one outside the world.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pytest_multihost.core.model.history import History
from pytest_multihost.core.model.operation import (
    FLIGHT_SCOPE,
    RUNTIME_SCOPE,
    GroupKey,
    Operation,
    Operations,
    Scope,
)

_MEMBER = "member"
_COMPLETE = "complete"
_CREATION = "creation"
_NUMBERED = frozenset({RUNTIME_SCOPE.kind, FLIGHT_SCOPE.kind, "new_group"})
"""Kinds of scopes whose groups may have numbers in place of ranks."""

Ranks = tuple[int, ...]


def member_key(number: int, size: int, name: str) -> GroupKey:
    """Return the key by which a rank declares its number in a group.

    Args:
        size: How many members the group has.
        name: The name that its members have agreed on. Names sort by the time of the agreement.
    """
    return (number,), size, Scope(_MEMBER, name)


def complete_key(size: int, name: str) -> GroupKey:
    """Return the key by which a rank records that all members of a group have met.

    By then each member that is a rank has declared its number under the name that all agreed on.
    """
    return (), size, Scope(_COMPLETE, name)


def creation_scope(where: str) -> Scope:
    """Return the scope of operations in which processes wait until a group is complete.

    The group of such an operation is empty, and its ordinal is how many members there will be.

    Args:
        where: Where they meet: the port of a store, a file.
    """
    return Scope(_CREATION, where)


@dataclass(frozen=True, slots=True)
class Memberships:
    """The members of all groups with numbers of their own.

    Attributes:
        members: By the name of a group, its ranks by their numbers; empty if the declarations
            contradict each other.
        ordinals: The ordinal of each group, by its numbers, its ordinal among the groups with these
            numbers, and its name.
        coming: By the key of their operation, the ranks that wait until a group is complete.
        circles: Groups of children of one rank that wait for each other, by name and numbers.
        apart: Names of complete groups in which one rank has met only processes that are not ranks.
    """

    members: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    ordinals: Mapping[tuple[Ranks, int, str], int] = field(default_factory=dict)
    coming: Mapping[GroupKey, Ranks] = field(default_factory=dict)
    circles: frozenset[tuple[str, Ranks]] = frozenset()
    apart: frozenset[str] = frozenset()

    def operations(self, found: Operations) -> Operations:
        """Return the operations of a rank, with ranks in place of numbers."""
        if not self.members and not any(map(_is_foreign, found.entered)):
            return found  # without a look at a thousand operations
        recent = tuple(self._operation(each, found.rank) for each in found.recent)
        entered: dict[GroupKey, int] = {}
        for key, sequence in found.entered.items():
            if not _is_foreign(key):
                entered[key] = max(sequence, entered.get(key, 0))
            elif self._is_numbered(key):
                known, _ = self._resolved(key, found.rank)
                entered[known] = max(sequence, entered.get(known, 0))
        return replace(found, recent=recent, entered=entered)

    def histories(self, found: Iterable[History]) -> Iterator[History]:
        """Yield the histories of groups whose members are known, with ranks in place of numbers."""
        for each in found:
            if not _is_foreign(each.group):
                yield each
            elif self._is_numbered(each.group):
                key, is_complete = self._resolved(each.group, each.rank)
                if is_complete:
                    ranks = self.members[each.group[2].name]
                    sites = tuple(replace(s, root=_rank_of(s.root, ranks)) for s in each.sites)
                    yield replace(each, group=key, sites=sites)

    def _is_numbered(self, key: GroupKey) -> bool:
        return key[2].kind in _NUMBERED and key[2].name in self.members

    def _resolved(self, key: GroupKey, rank: int) -> tuple[GroupKey, bool]:
        """Return a group's key with ranks in place of numbers, and whether all are known."""
        numbers, ordinal, scope = key
        ranks = self.members[scope.name]
        # Two children of one rank may be members.
        known = tuple(sorted({ranks[each] for each in numbers if each in ranks})) or (rank,)
        ordinal = self.ordinals.get((numbers, ordinal, scope.name), ordinal)
        named = scope if scope.kind == "new_group" else Scope(scope.kind)
        return (known, ordinal, named), len(known) == len(numbers)

    def _operation(self, found: Operation, rank: int) -> Operation:
        key = found.group_key
        if self._is_numbered(key):
            (group, ordinal, scope), is_complete = self._resolved(key, rank)
            ranks = self.members[key[2].name]
            # No other rank can end a wait of children for each other: it is their rank's own.
            is_own = (key[2].name, found.group) in self.circles
            # A failed operation in a group without another rank is its own rank's, too; an open
            # operation may still end through a rank.
            is_own = is_own or (found.failed and key[2].name in self.apart)
            return replace(
                found,
                group=group,
                ordinal=ordinal,
                scope=scope,
                has_members=is_complete,
                group_size=None if is_complete or is_own else len(found.group),
                peer=_rank_of(found.peer, ranks),
                root=_rank_of(found.root, ranks),
            )
        if not _is_foreign(key):
            return found
        if found.group:  # the declarations are lost
            size = len(found.group)
            return replace(found, group=(rank,), has_members=False, group_size=size)
        coming = self.coming.get(key, ()) if found.is_open else ()
        size, is_creation = found.ordinal, found.scope.kind == _CREATION
        is_complete = len(coming) == size > 0
        return replace(
            found,
            group=coming or (rank,),
            ordinal=0,
            # Not all of them have waited there equally often before.
            sequence=0 if is_creation else found.sequence,
            has_members=is_complete,
            group_size=None if is_complete else size,
        )


def find_memberships(pages: Sequence[Operations]) -> Memberships:
    """Return the members of the groups that the slot pages of a world name."""
    if not any(_is_foreign(key) for page in pages for key in page.entered):
        return Memberships()
    members: dict[str, dict[int, int]] = {}
    contradictory: set[str] = set()
    for page in pages:
        own: dict[str, int] = {}
        for numbers, _, scope in page.entered:
            if scope.kind == _MEMBER and len(numbers) == 1:
                ranks = members.setdefault(scope.name, {})
                is_one = ranks.setdefault(numbers[0], page.rank) == page.rank
                if not is_one or own.setdefault(scope.name, numbers[0]) != numbers[0]:
                    contradictory.add(scope.name)
    known = {name: {} if name in contradictory else each for name, each in members.items()}
    return Memberships(
        known,
        _ordinals(pages, known),
        _coming(pages),
        _circles(pages, known),
        frozenset(_apart(pages, known)),
    )


def _apart(pages: Sequence[Operations], members: Mapping[str, Mapping[int, int]]) -> Iterator[str]:
    """Yield the names of complete groups that have only one rank as a member."""
    for _, _, scope in {key for page in pages for key in page.entered}:
        ranks = {*members.get(scope.name, {}).values()}
        if scope.kind == _COMPLETE and len(ranks) == 1:
            yield scope.name


def _circles(
    pages: Sequence[Operations], members: Mapping[str, Mapping[int, int]]
) -> frozenset[tuple[str, Ranks]]:
    """Return the groups of children of one rank, all of which wait in such groups.

    Then only these children can end the waits, and none of them will.
    """
    numbers = [
        {(scope.name, each[0]) for each, _, scope in page.entered if scope.kind == _MEMBER}
        for page in pages
    ]
    awaited = [{*_awaited_groups(page)} for page in pages]

    def takes_part(group: tuple[str, Ranks], index: int) -> bool:
        return any((group[0], each) in numbers[index] for each in group[1])

    circles = {
        (name, group)
        for name, group in set[tuple[str, Ranks]]().union(*awaited)
        if members.get(name, {}).keys() >= {*group}
        and len({members[name][each] for each in group}) == 1
    }
    while True:
        open_ended = {
            group
            for group in circles
            for index in range(len(pages))
            if takes_part(group, index) and circles.isdisjoint(awaited[index])
        }
        if not open_ended:
            return frozenset(circles)
        circles -= open_ended


def _awaited_groups(page: Operations) -> Iterator[tuple[str, Ranks]]:
    """Yield the groups in whose operations the main thread of a rank's child waits."""
    for each in page.open:
        is_main = each.child is not None and each.thread == each.child.pid
        if is_main and each.waited_s is not None and each.scope.kind in _NUMBERED:
            yield each.scope.name, each.group


def _ordinals(
    pages: Sequence[Operations], members: Mapping[str, Mapping[int, int]]
) -> dict[tuple[Ranks, int, str], int]:
    """Return the ordinals of the named groups: after those of the same ranks without a name."""
    taken: defaultdict[Ranks, int] = defaultdict(int)
    named: set[tuple[str, int, Ranks]] = set()
    for ranks, ordinal, scope in {key for page in pages for key in page.entered}:
        if scope == RUNTIME_SCOPE:
            taken[ranks] = max(taken[ranks], ordinal + 1)
        elif scope.kind == RUNTIME_SCOPE.kind and scope.name in members:
            named.add((scope.name, ordinal, ranks))
    found = {}
    for name, ordinal, numbers in sorted(named):
        ranks = tuple(sorted({members[name][each] for each in numbers if each in members[name]}))
        found[numbers, ordinal, name] = taken[ranks]
        taken[ranks] += 1
    return found


def _coming(pages: Sequence[Operations]) -> dict[GroupKey, Ranks]:
    found: defaultdict[GroupKey, set[int]] = defaultdict(set)
    for page in pages:
        for each in page.open:
            if not each.group and each.scope.kind == _CREATION:
                found[each.group_key].add(page.rank)
    return {key: tuple(sorted(ranks)) for key, ranks in found.items()}


def _is_foreign(key: GroupKey) -> bool:
    """Return whether a key does not name the ranks of its group."""
    ranks, _, scope = key
    is_numbered = scope.kind in _NUMBERED and bool(scope.name)
    return not ranks or scope.kind == _MEMBER or is_numbered


def _rank_of(number: int | None, ranks: Mapping[int, int]) -> int | None:
    return ranks.get(number) if number is not None else None
