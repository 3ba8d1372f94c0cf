"""Each rule on hand-made records: guilty ones, and innocent ones that look guilty."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pytest

from pytest_multihost.extensions.hazards import pytest_multihost_hazard_rules
from pytest_multihost.extensions.hazards.accept import accept_hazards
from pytest_multihost.extensions.hazards.find import find_hazards
from pytest_multihost.extensions.hazards.model import Hazards, Launch, RankRecord
from pytest_multihost.extensions.hazards.rule import Found, HazardRule
from pytest_multihost.extensions.hazards.rules import chosen_rules
from pytest_multihost.testing import (
    Acceptance,
    Frame,
    Names,
    Operation,
    Scope,
    SourceContext,
)

pytestmark = pytest.mark.unit

BUILT_IN_RULES = tuple(pytest_multihost_hazard_rules())
RULES = {rule.name: rule for rule in BUILT_IN_RULES}
order, threads, unwaited, skipped = (rule.find for rule in BUILT_IN_RULES)

PAIR, TRIO = (0, 1), (0, 1, 2)
SENT = {"send": "transfer", "recv": "transfer"}


@dataclass
class Recorded:
    """A rank's record in the making: each operation begins a second after the one before."""

    rank: int
    launches: list[Launch] = field(default_factory=list)
    now_s: float = 0.0

    def launch(
        self,
        name: str = "all_reduce",
        group: tuple[int, ...] = PAIR,
        *,
        sequence: int = 0,
        ordinal: int = 0,
        waited: bool | None = True,
        lasts_s: float = 0.5,
        thread: int = 1,
        line: int = 0,
        **more: object,
    ) -> Recorded:
        """Add an operation; `waited`: at once; False: later; None: never."""
        self.now_s += 1
        given = {"peer": more.get("peer"), "tag": more.get("tag", 0)}
        key = (group, ordinal, name if name in SENT else "", *given.values())
        same = [each for each in self.launches if _key(each) == key]
        operation = Operation(
            name=name,
            kind=SENT.get(name, "collective"),  # type: ignore[arg-type]
            group=group,
            ordinal=ordinal,
            sequence=sequence or len(same) + 1,
            since_s=self.now_s,
            waited_s=self.now_s if waited else None,
            ended_s=self.now_s + lasts_s,
            thread=thread,
            **more,  # type: ignore[arg-type]
        )
        frame = Frame("/job/train.py", line or len(self.launches) + 1, "step")
        launch = Launch(self.rank, len(self.launches) + 1, thread, frame, operation)
        self.launches.append(launch)
        return self

    def wait(self, index: int = -1) -> Recorded:
        """Wait now for an operation that was launched before."""
        self.now_s += 1
        launch = self.launches[index]
        waited = replace(launch.operation, waited_s=self.now_s, ended_s=self.now_s + 0.5)
        self.launches[index] = replace(launch, operation=waited)
        return self


def _key(launch: Launch) -> tuple[object, ...]:
    operation = launch.operation
    name = operation.name if operation.name in SENT else ""
    return operation.group, operation.ordinal, name, operation.peer, operation.tag


def records(*ranks: Recorded) -> Mapping[int, RankRecord]:
    """Return what the ranks have recorded."""
    return {each.rank: RankRecord(each.rank, tuple(each.launches)) for each in ranks}


Rows = Mapping[int, RankRecord]


def two(one: Callable[[Recorded], object], other: Callable[[Recorded], object]) -> Rows:
    """Return the record of two ranks."""
    ranks = Recorded(0), Recorded(1)
    one(ranks[0])
    other(ranks[1])
    return records(*ranks)


# order


def test_two_groups_launched_in_opposite_orders_are_told_with_both_lines() -> None:
    """The operations of each side are in the order in which that rank launched them."""
    found = list(
        order(
            two(
                lambda rank: rank.launch(line=3).launch(group=TRIO, line=4),
                lambda rank: rank.launch(group=TRIO, line=8).launch(line=7),
            )
        )
    )
    lines = [[each.frame.line for each in launches] for _, launches in found[0].sides]
    assert lines == [[3, 4], [8, 7]]


def test_one_order_on_all_ranks_is_no_hazard() -> None:
    """However the groups alternate."""
    rows = [Recorded(rank).launch().launch(group=TRIO).launch(group=TRIO).launch() for rank in PAIR]
    assert list(order(records(*rows))) == []


def test_groups_with_one_rank_in_common_have_no_order() -> None:
    """Each rank is in its own pairs, as in a pipeline."""
    one = Recorded(0).launch(group=(0, 1)).launch(group=(0, 2))
    other = Recorded(1).launch(group=(1, 3)).launch(group=(0, 1))
    assert list(order(records(one, other))) == []


def test_an_operation_that_the_other_rank_has_not_entered_has_no_order() -> None:
    """That is another rule's."""
    found = order(
        two(
            lambda rank: rank.launch().launch(group=TRIO),
            lambda rank: rank.launch(group=TRIO),
        )
    )
    assert list(found) == []


def test_groups_that_ask_for_gloo_by_name_have_no_order_with_others() -> None:
    """They stay on the CPU when the others go to GPUs."""
    found = order(
        two(
            lambda rank: rank.launch().launch(group=TRIO, is_for_cpu=True),
            lambda rank: rank.launch(group=TRIO, is_for_cpu=True).launch(),
        )
    )
    assert list(found) == []


def test_a_cycle_of_three_ranks_is_told_though_no_two_share_two_groups() -> None:
    """Each launches the operation with its next neighbour first."""
    rows = [
        Recorded(0).launch(group=(0, 1)).launch(group=(0, 2)),
        Recorded(1).launch(group=(1, 2)).launch(group=(0, 1)),
        Recorded(2).launch(group=(0, 2)).launch(group=(1, 2)),
    ]
    [found] = order(records(*rows))
    assert {rank for rank, _ in found.sides} == {0, 1, 2}


def test_neighbours_in_one_direction_are_no_cycle() -> None:
    """The groups have an order that all ranks follow."""
    rows = [
        Recorded(0).launch(group=(0, 1)).launch(group=(0, 2)),
        Recorded(1).launch(group=(0, 1)).launch(group=(1, 2)),
        Recorded(2).launch(group=(0, 2)).launch(group=(1, 2)),
    ]
    assert list(order(records(*rows))) == []


def test_two_groups_of_the_same_members_are_two() -> None:
    """Communicators are told apart by the order in which they were made."""
    found = order(
        two(
            lambda rank: rank.launch(ordinal=1).launch(ordinal=2),
            lambda rank: rank.launch(ordinal=2).launch(ordinal=1),
        )
    )
    assert len(list(found)) == 1


def test_threads_with_groups_of_their_own_have_no_order() -> None:
    """One of the groups is often on the CPU, where the test cannot show it."""
    rows = two(
        lambda rank: rank.launch().launch(group=TRIO, thread=2),
        lambda rank: rank.launch(group=TRIO, thread=2).launch(),
    )
    assert list(order(rows)) == []


# threads


def test_two_threads_in_one_group_at_a_time_are_told() -> None:
    """The second began before the first had returned."""
    row = Recorded(0).launch(lasts_s=5).launch("barrier", thread=2)
    [found] = threads(records(row))
    assert [each.thread for each in found.sides[0][1]] == [1, 2]


def test_threads_that_call_the_same_are_no_hazard() -> None:
    """Either call matches the other's."""
    row = Recorded(0).launch(lasts_s=5).launch(thread=2)
    assert list(threads(records(row))) == []


def test_threads_that_take_turns_are_no_hazard() -> None:
    """A lock, a queue or a join may order them."""
    row = Recorded(0).launch().launch("barrier", thread=2).launch()
    assert list(threads(records(row))) == []


def test_threads_with_groups_of_their_own_are_no_hazard() -> None:
    """That is what groups are made for."""
    row = Recorded(0).launch(lasts_s=5).launch("barrier", thread=2, ordinal=1)
    assert list(threads(records(row))) == []


def test_work_that_is_still_open_orders_nothing_and_accuses_nobody() -> None:
    """Its call had returned, and its thread may have told the other one to go on."""
    row = Recorded(0).launch(waited=False, lasts_s=9).launch("barrier", thread=2).wait(0)
    assert list(threads(records(row))) == []


# unwaited


def test_work_that_nobody_waits_for_is_told() -> None:
    """Also if it is complete by now."""
    [found] = unwaited(records(Recorded(0).launch(waited=None)))
    assert found.sides[0][1][0].operation.name == "all_reduce"


@pytest.mark.parametrize(
    "more",
    [
        {"is_handed_on": True},
        {"failed": True},
        {"group": (0,)},
        {"scope": Scope("rpc", "0")},
    ],
    ids=["its future is waited for", "it failed", "alone in its group", "rpc"],
)
def test_work_that_may_be_known_to_have_ended_is_no_hazard(more: Mapping[str, object]) -> None:
    """Nobody has to wait for it, or it is waited for unseen."""
    assert list(unwaited(records(Recorded(0).launch(waited=None, **more)))) == []  # type: ignore[arg-type]


def test_work_that_is_waited_for_later_is_no_hazard() -> None:
    """Whatever came between."""
    row = Recorded(0).launch(waited=False).launch("barrier").wait(0)
    assert list(unwaited(records(row))) == []


# skipped


def test_a_member_that_did_not_enter_the_last_collective_is_told() -> None:
    """With what the others entered, and its own last one."""
    found = list(
        skipped(
            two(
                lambda rank: rank.launch().launch("broadcast", waited=None),
                lambda rank: rank.launch(),
            )
        )
    )
    [((ahead, (missed,)), (behind, (last,)))] = [each.sides for each in found]
    assert (ahead, missed.operation.name) == (0, "broadcast")
    assert (behind, last.operation.name) == (1, "all_reduce")


def test_a_member_that_entered_nothing_is_told() -> None:
    """It has nothing to show."""
    row = Recorded(0).launch("broadcast", waited=None)
    found = list(skipped({**records(row), 1: RankRecord(1)}))
    assert found[0].sides[1] == (1, ())


@pytest.mark.parametrize(
    "rows",
    [
        [Recorded(0).launch().launch(), Recorded(1).launch().launch("broadcast")],
        [Recorded(0).launch().launch(failed=True), Recorded(1).launch()],
        [Recorded(0).launch().launch(waited=None, is_handed_on=True), Recorded(1).launch()],
        [Recorded(0).launch("send", peer=2).launch(), Recorded(1).launch()],
        [Recorded(0).launch(group=(0, 2)), Recorded(1)],
    ],
    ids=[
        "all entered",
        "one failed",
        "its end is known",
        "transfers",
        "a rank of no world",
    ],
)
def test_members_that_entered_alike_are_no_hazard(rows: Sequence[Recorded]) -> None:
    """An operation that failed says nothing of who should have entered it."""
    assert list(skipped(records(*rows))) == []


def test_a_record_that_is_cut_off_shows_nobody_skipping() -> None:
    """The operations may be in what is not kept."""
    one, other = Recorded(0).launch().launch(), Recorded(1).launch()
    rows = records(one, other)
    assert list(skipped({**rows, 1: replace(rows[1], is_truncated=True)})) == []


def test_a_send_that_nobody_receives_is_told() -> None:
    """Its receiver has received the one before."""
    found = skipped(
        two(
            lambda rank: rank.launch("send", peer=1).launch("send", peer=1, waited=None),
            lambda rank: rank.launch("recv", peer=0),
        )
    )
    assert [rank for each in found for rank, _ in each.sides] == [0, 1]


def test_a_receive_from_anybody_may_be_the_one_that_is_missing() -> None:
    """So nobody is told of."""
    found = skipped(two(lambda rank: rank.launch("send", peer=1), lambda rank: rank.launch("recv")))
    assert list(found) == []


# what is told


CONTEXT = SourceContext("/root", lambda _, line: f"line {line}")


def found_in(rows: Rows, *, rules: Sequence[str] = ("order", "unwaited")) -> Hazards:
    """Return what rules find."""
    return find_hazards(
        rows, [RULES[name] for name in rules], names=Names(3), place_of=CONTEXT.place
    )


def test_the_same_lines_are_told_once_with_how_often_they_were_seen() -> None:
    """A loop is one hazard."""
    row = Recorded(0)
    for _ in range(5):
        row.launch(waited=None, line=7)
    [hazard] = found_in(records(row)).found
    assert hazard.count == 5
    assert "seen 5 times" in hazard.text
    assert "train.py:7" in hazard.text


def test_a_hazard_is_accepted_by_its_rule_and_lines() -> None:
    """In the file that has the accepted weaknesses of sweeps."""
    hazards = found_in(records(Recorded(0).launch(waited=None, line=7)))
    entry = Acceptance(test="t", culprit="train.py:line 7", reason="known", hazard="unwaited")
    accepted = accept_hazards(hazards, [entry], nodeid="t")
    assert accepted.found[0].accepted == "known"
    assert accepted.open == ()


@pytest.mark.parametrize(
    "change",
    [{"hazard": None}, {"hazard": "order"}, {"culprit": "train.py:line 8"}, {"test": "other"}],
    ids=["of a sweep", "another rule", "another line", "another test"],
)
def test_an_entry_for_something_else_accepts_no_hazard(change: Mapping[str, str]) -> None:
    """Each part of it must fit."""
    hazards = found_in(records(Recorded(0).launch(waited=None, line=7)))
    entry = Acceptance(test="t", culprit="train.py:line 7", reason="known", hazard="unwaited")
    accepted = accept_hazards(hazards, [replace(entry, **change)], nodeid="t")
    assert len(accepted.open) == 1


# a rule of one's own


def _broadcasts(rows: Rows) -> list[Found]:
    return [
        Found(((rank, (each,)),), each.operation.group)
        for rank, record in rows.items()
        for each in record.launches
        if each.operation.name == "broadcast"
    ]


def test_a_rule_of_ones_own_is_one_object_with_its_own_words() -> None:
    """It says which operations it finds, how these are reported, and when they hang."""
    rule = HazardRule(
        name="casts",
        find=_broadcasts,
        summarize=lambda seen: f"{seen.ranks} used {seen.operation} in the {seen.group}",
        when="It hangs on Sundays.",
    )
    rows = records(*(Recorded(rank).launch("broadcast", line=7) for rank in PAIR))
    hazards = find_hazards(rows, [RULES["order"], rule], names=Names(2), place_of=CONTEXT.place)
    [hazard] = hazards.found
    assert hazards.rules == ("order", "casts")
    assert hazard.text.splitlines() == [
        "casts: ranks 0,1 used broadcast in the world group",
        "  rank 0: broadcast #1 (world group) at /job/train.py:7",
        "  seen 2 times in this run",
        "  It hangs on Sundays.",
    ]


def test_a_rule_is_applied_by_default_only_if_it_says_so() -> None:
    """Else only where it is named, or all are asked for."""
    rule = HazardRule(name="casts", find=_broadcasts, summarize=str, when="Never.")
    rules = {**RULES, "casts": rule}
    assert chosen_rules(rules, ()) == BUILT_IN_RULES
    assert chosen_rules(rules, ("casts",)) == (rule,)
    assert chosen_rules(rules, ("all",)) == (*BUILT_IN_RULES, rule)
