"""Collectives of one place that cannot match: from histories written by hand."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pytest_multihost.extensions.sweep.order import Clash, find_clashes
from pytest_multihost.testing import (
    HARNESS_SCOPE,
    RUNTIME_SCOPE,
    CallSite,
    Frame,
    History,
    Names,
    Scope,
    tensor_size,
    tensor_text,
)

pytestmark = pytest.mark.unit

RANKS = (0, 1, 2)
Made = tuple[str, str, int | None]
"""Name, detail and root of a collective."""


def made(name: str, detail: str = "", root: int | None = None) -> Made:
    """Return a collective."""
    return name, detail, root


SUM = made("all_reduce", "f32[4]")


def history(rank: int, *calls: Made, scope: Scope = RUNTIME_SCOPE, first: int = 1) -> History:
    """Return the history of a rank: its nth collective is at line n, in second n."""
    sites = [
        CallSite(name, root, detail, (Frame("/t/train.py", line, "train"),))
        for line, (name, detail, root) in enumerate(calls, first)
    ]
    order = tuple(range(len(sites)))
    times = tuple(float(each + first) + rank / 10 for each in order)
    return History(rank, (RANKS, 0, scope), first, tuple(sites), order, times)


def clashes(*calls: Sequence[Made]) -> tuple[Clash, ...]:
    """Return the clashes of ranks that have made these calls."""
    return find_clashes([history(rank, *each) for rank, each in enumerate(calls)])


@pytest.mark.parametrize(
    "other",
    [
        made("all_reduce", "f32[8]"),
        made("all_reduce", "i64[4]"),
        made("all_gather", "f32[4]"),
        made("barrier"),
    ],
    ids=["size", "type", "kind", "barrier"],
)
def test_a_rank_that_enters_something_else_clashes(other: Made) -> None:
    """The smaller side comes first, and says what it has entered, where and when."""
    (found,) = clashes([SUM, SUM], [SUM, other], [SUM, SUM])
    assert (found.sequence, found.at_s, found.ranks) == (2, 2.0, frozenset(RANKS))
    assert [each.ranks for each in found.sides] == [(1,), (0, 2)]
    odd = found.sides[0]
    assert (odd.name, odd.frame and odd.frame.line, odd.at_s) == (other[0], 2, 2.1)
    words = f"rank 1 entered {other[0]} {other[1]}".strip()
    assert found.text(Names(3)) == (
        f"{words}, ranks 0,2 entered all_reduce f32[4] as 2nd collective of the world group"
    )


def test_roots_that_differ_clash() -> None:
    """Two ranks send, and nobody receives from both."""
    one, two = made("broadcast", "f32[4]", 0), made("broadcast", "f32[4]", 1)
    (found,) = clashes([one], [two], [one])
    assert "broadcast f32[4] with root 1" in found.text(Names(3))


def test_what_comes_in_another_order_clashes_once() -> None:
    """The second of the two is no other clash."""
    other = made("all_gather", "f32[4]")
    assert len(clashes([SUM, other], [other, SUM], [SUM, other])) == 1


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (made("all_reduce", "f32[2,4]"), made("all_reduce", "f32[8]")),
        (made("all_gather", "f32[2]"), made("all_gather", "f32[3]")),
        (made("all_to_all_single", "f32[2]"), made("all_to_all_single", "f32[3]")),
        (made("gather", "f32[2]", 0), made("gather", "f32[3]", 0)),
        (made("all_reduce", "f32[2] +1"), made("all_reduce", "f32[3] +1")),
        (made("all_reduce", "f32[2]"), made("all_reduce")),
        (made("all_gather", "f32[2]"), made("all_gather_into_tensor", "f32[4]")),
        (made("sync_global_devices", "a"), made("sync_global_devices", "b")),
        (made("own thing", "f32[2]"), made("own thing", "f32[3]")),
    ],
    ids=["shape", "gathered", "split", "to a root", "several", "unknown", "form", "name", "own"],
)
def test_what_may_differ_rightly_does_not_clash(one: Made, other: Made) -> None:
    """Shapes of one size, sizes that need not agree, and what is not known."""
    assert clashes([one], [other], [one]) == ()


def test_fewer_collectives_are_no_clash() -> None:
    """A rank that has failed enters no more."""
    assert clashes([SUM, SUM], [SUM], [SUM, SUM]) == ()


@pytest.mark.parametrize("scope", [HARNESS_SCOPE, Scope("operation", "save")])
def test_only_the_runtimes_own_collectives_can_clash(scope: Scope) -> None:
    """The harness releases ranks from its barriers; the user's operations are his own."""
    calls = [SUM], [made("barrier")], [SUM]
    assert find_clashes([history(r, *each, scope=scope) for r, each in enumerate(calls)]) == ()


def test_what_follows_a_failed_operation_is_no_clash() -> None:
    """A rank whose collective timed out may do anything then."""
    histories = [history(0, SUM, SUM), history(1, SUM, made("barrier")), history(2, SUM, SUM)]
    assert find_clashes(histories, {1: [1.5]}) == ()
    assert len(find_clashes(histories, {1: [2.5]})) == 1  # it failed because of the clash


def test_what_is_not_known_of_all_ranks_is_not_compared() -> None:
    """Each rank remembers its last thousand collectives."""
    known = [history(0, SUM, SUM), history(1, SUM, first=2), history(2, SUM, SUM)]
    assert find_clashes(known) == ()


def test_a_detail_keeps_type_and_number_of_elements() -> None:
    """What a recorder writes can be compared."""
    assert tensor_size(tensor_text("f32", (2, 3))) == ("f32", 6)
    assert tensor_size(tensor_text("i64", ())) == ("i64", 1)
    assert tensor_size(tensor_text("f32", (2, 3), more=1)) is None
    assert tensor_size("tag=3 f32[2]") is None
