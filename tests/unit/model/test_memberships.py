"""The members of groups that torch numbers in its own way are found in the ranks' slot pages."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from builders import operation

from pytest_multihost.core.model.child import Child
from pytest_multihost.core.model.history import CallSite, History
from pytest_multihost.core.model.memberships import (
    Memberships,
    complete_key,
    creation_scope,
    find_memberships,
    member_key,
)
from pytest_multihost.core.model.operation import RUNTIME_SCOPE, GroupKey
from pytest_multihost.testing import FLIGHT_SCOPE, Operation, Operations, Scope

EARLY, LATE = "0001-2", "0002-0"


def key(*numbers: int, name: str = EARLY, ordinal: int = 0, kind: str = "") -> GroupKey:
    """Return the key of a group with numbers of its own."""
    return numbers, ordinal, Scope(kind, name)


def in_group(group: GroupKey, **changes: Any) -> Operation:  # noqa: ANN401
    """Return the first all_reduce in a group."""
    numbers, ordinal, scope = group
    return operation(**{"group": numbers, "ordinal": ordinal, "scope": scope, **changes})


def page(rank: int, number: int, *known: Operation, size: int = 2, name: str = EARLY) -> Operations:
    """Return the page of a rank that has declared its number and begun these operations."""
    entered = {each.group_key: each.sequence for each in known}
    return Operations(rank, known, {member_key(number, size, name): 0, **entered})


def resolved(*pages: Operations) -> list[Operations]:
    """Return the pages with ranks in place of numbers."""
    return [*map(find_memberships(pages).operations, pages)]


def test_numbers_become_the_ranks_that_have_declared_them() -> None:
    """The group's key is equal on all ranks, and that of an ordinary group."""
    waits = in_group(key(0, 1), root=1)
    one, two = resolved(page(3, 0, waits), page(2, 1, waits))
    (seen,) = one.recent
    assert (seen.group, seen.root, seen.scope) == ((2, 3), 2, RUNTIME_SCOPE)
    assert (seen.has_members, seen.group_size) == (True, None)
    assert one.entered == two.entered == {((2, 3), 0, RUNTIME_SCOPE): 1}


def test_the_peer_of_a_transfer_is_a_rank() -> None:
    """A number that nobody has declared is no rank."""
    sent = in_group(key(0, 1), name="send", kind="transfer", peer=1)
    known, _ = resolved(page(3, 0, sent), page(2, 1))
    (unknown,) = resolved(page(3, 0, sent))
    assert known.recent[0].peer == 2
    assert (unknown.recent[0].peer, unknown.recent[0].group_size) == (None, 2)


def test_a_number_that_nobody_has_declared_is_no_rank() -> None:
    """The member may be a child process. What is known stays known."""
    one, two, _ = resolved(
        page(0, 0, in_group(key(0, 1, 2)), size=3), page(4, 2, size=3), page(1, 0, name=LATE)
    )
    (seen,) = one.recent
    assert (seen.group, seen.group_size, seen.has_members) == ((0, 4), 3, False)
    assert two.entered == {}


def test_declarations_that_contradict_each_other_are_not_used() -> None:
    """Two ranks with one number, or a rank with two, do not say who it is."""
    waits = in_group(key(0, 1))
    for pages in (
        [page(0, 0, waits), page(1, 1), page(2, 1)],
        [page(0, 0, waits), page(1, 1), Operations(1, (), {member_key(0, 2, EARLY): 0})],
    ):
        (seen,) = resolved(*pages)[0].recent
        assert (seen.group, seen.group_size) == ((0,), 2)


def test_groups_of_the_same_ranks_stay_apart() -> None:
    """Those that torch numbers alike come first, then the others by the time of their names."""
    own = operation(group=(0, 1), ordinal=0)
    calls = [own, in_group(key(0, 1, name=LATE)), in_group(key(0, 1))]
    pages = [
        Operations(
            rank,
            tuple(calls),
            {
                **{each.group_key: 1 for each in calls},
                member_key(rank, 2, EARLY): 0,
                member_key(1 - rank, 2, LATE): 0,
            },
        )
        for rank in (0, 1)
    ]
    found = find_memberships(pages)
    assert [each.ordinal for each in found.operations(pages[0]).recent] == [0, 2, 1]


def test_the_flight_recorder_counts_the_same_group() -> None:
    """Its scope is another one, its group is the same."""
    pages = [page(rank, 1 - rank, in_group(key(0, 1))) for rank in (0, 1)]
    seen = in_group(key(0, 1, kind=FLIGHT_SCOPE.kind), sequence=4)
    told = Operations(0, (seen,), {seen.group_key: 4})
    found = find_memberships(pages).operations(told)
    assert found.recent[0].group_key == ((0, 1), 0, FLIGHT_SCOPE)
    assert found.entered == {((0, 1), 0, FLIGHT_SCOPE): 4}


def test_those_who_wait_for_a_group_to_be_made_are_its_known_members() -> None:
    """Only as long as they wait, and only where they meet."""
    comes, elsewhere = (
        operation(
            "init_process_group", group=(), ordinal=3, scope=creation_scope(where), sequence=2
        )
        for where in ("port 29500", "port 29501")
    )
    over = operation("TCPStore", group=(), ordinal=3, scope=comes.scope, ended_s=2.0, waited_s=None)
    pages = [
        Operations(rank, (each,), {each.group_key: 2})
        for rank, each in enumerate((comes, over, comes, elsewhere))
    ]
    waits, gone, too, alone = (each.recent[0] for each in resolved(*pages))
    assert waits.place == too.place
    assert (waits.group, waits.group_size, waits.sequence) == ((0, 2), 3, 0)
    assert (gone.group, alone.group) == ((1,), (3,))


def test_all_members_of_a_group_have_come() -> None:
    """Then they are known, although the group is not made yet."""
    comes = operation(group=(), ordinal=2, scope=creation_scope("port 29500"))
    pages = [Operations(rank, (comes,), {comes.group_key: 1}) for rank in (1, 3)]
    (found,) = resolved(*pages)[0].recent
    assert (found.group, found.group_size, found.has_members) == ((1, 3), None, True)


def test_the_sequence_of_a_wait_stays() -> None:
    """It tells one wait from the next."""
    waits = operation("store.get", kind="wait", group=(), ordinal=2, sequence=7)
    (found,) = resolved(Operations(1, (waits,), {waits.group_key: 0}))
    assert (found.recent[0].group, found.recent[0].sequence) == ((1,), 7)


def test_histories_have_ranks_where_all_are_known() -> None:
    """A history of which a member is unknown shows no parting."""
    found = find_memberships([page(3, 0, in_group(key(0, 1))), page(2, 1)])
    site = CallSite("broadcast", root=0)
    history = History(3, key(0, 1), sites=(site,), order=(0,), times_s=(1.0,))
    plain = History(3, ((0, 1), 0, RUNTIME_SCOPE))
    told = [*found.histories([history, plain])]
    assert [each.group[0] for each in told] == [(2, 3), (0, 1)]
    assert told[0].sites[0].root == 3
    assert [*Memberships().histories([history, plain])] == [plain]


def test_pages_without_such_groups_stay_the_same() -> None:
    """Nearly all worlds are of this kind."""
    plain = Operations(0, (operation(),), {((0, 1, 2), 0, RUNTIME_SCOPE): 1})
    assert find_memberships([plain]).operations(plain) is plain


def complete(found: Operations, size: int = 2, name: str = EARLY) -> Operations:
    """Return the page of a rank that has met all members of its group."""
    return replace(found, entered={**found.entered, complete_key(size, name): 0})


OVER = in_group(key(0, 1), ended_s=2.0, waited_s=None, failed=True)


def test_what_fails_in_a_complete_group_with_one_rank_is_its_own() -> None:
    """Its other member is no rank. Another rank may help that process to end a wait."""
    failed, waits = resolved(complete(page(3, 0, OVER, in_group(key(0, 1), sequence=2))))[0].recent
    assert (failed.group, failed.group_size, failed.is_of_one) == ((3,), None, True)
    assert (waits.group, waits.group_size, waits.is_of_one) == ((3,), 2, False)


def test_a_group_whose_other_member_may_be_a_rank_is_nobodys_own() -> None:
    """It is not complete, another rank is in it, or who is in it is contradictory."""
    for pages in (
        [page(3, 0, OVER)],
        [complete(page(3, 0, OVER), name=LATE), page(2, 0, name=LATE)],
        [complete(page(3, 0, OVER)), page(2, 1)],
        [complete(page(3, 0, OVER)), complete(page(2, 0, OVER))],
    ):
        assert not resolved(*pages)[0].recent[0].is_of_one


def child(pid: int, number: int, group: GroupKey, *, thread: int = 0, rank: int = 0) -> Operations:
    """Return the page of a rank's child whose main thread waits in a group, if no other does."""
    waits = in_group(group, child=Child(pid), thread=thread or pid, waited_s=1.0)
    return page(rank, number, waits, size=3)


PAIR, OTHER = key(0, 1), key(0, 1, ordinal=1)


@pytest.mark.parametrize(
    ("pages", "is_circle"),
    [
        ([child(10, 0, PAIR), child(11, 1, OTHER)], True),
        ([child(10, 0, PAIR), child(11, 1, OTHER, rank=1)], False),
        ([child(10, 0, PAIR), child(11, 1, OTHER, thread=12)], False),
        ([child(10, 0, PAIR), page(0, 1, size=3)], False),
        ([child(10, 0, PAIR)], False),
        ([child(10, 0, PAIR), child(11, 1, key(1, 2)), page(0, 2, size=3)], False),
        ([child(10, 0, PAIR), child(11, 1, key(1, 2)), child(12, 2, key(0, 2))], True),
        ([child(10, 0, PAIR), child(11, 1, key(1, 2)), child(12, 2, key(0, 2), rank=1)], False),
    ],
    ids=[
        *("two groups", "another rank's child", "its main thread works", "it does not wait"),
        *("unknown", "one waits for a third", "three groups", "a third of another rank"),
    ],
)
def test_children_of_one_rank_that_wait_for_each_other_wait_for_no_rank(
    pages: list[Operations], *, is_circle: bool
) -> None:
    """All members of their groups are known, and each of them waits in such a group."""
    seen = resolved(*pages)[0].recent[0]
    assert seen.is_of_one is is_circle
