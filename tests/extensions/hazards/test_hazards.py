"""Each rule on hand-made records: guilty ones, and innocent ones that look guilty."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pytest

from pytest_multihost.core.model.acceptance import Acceptance
from pytest_multihost.core.model.operation import (
    PROGRAM_START,
    Operation,
    Scope,
    program_scope,
    read_start_number,
    start_number,
)
from pytest_multihost.core.model.stack import Frame, SourceContext
from pytest_multihost.extensions.hazards.find import accept_hazards, find_hazards, suspected_faults
from pytest_multihost.extensions.hazards.model import Launch, RankRecord
from pytest_multihost.extensions.hazards.rules import (
    Found,
    buffered,
    order,
    programs,
    racing,
    skipped,
    threads,
    unwaited,
)

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


def test_threads_with_groups_of_their_own_are_another_rules() -> None:
    """One of the groups is often on the CPU, where the test cannot show it."""
    rows = two(
        lambda rank: rank.launch().launch(group=TRIO, thread=2),
        lambda rank: rank.launch(group=TRIO, thread=2).launch(),
    )
    assert list(order(rows)) == []
    assert [each.rule for each in racing(rows)] == ["racing"]


def test_threads_that_launch_in_one_order_do_not_race() -> None:
    """Whatever orders them."""
    rows = two(
        lambda rank: rank.launch().launch(group=TRIO, thread=2),
        lambda rank: rank.launch().launch(group=TRIO, thread=2),
    )
    assert list(racing(rows)) == []


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


# buffered

ISEND = {"name": "send", "waited": False}


def test_two_ranks_that_send_before_they_receive_are_told() -> None:
    """Each receive waits for its turn behind a send that waits for the other's receive."""
    [found] = buffered(
        two(
            lambda rank: rank.launch(**ISEND, peer=1).launch("recv", peer=1).wait(0),
            lambda rank: rank.launch(**ISEND, peer=0).launch("recv", peer=0).wait(0),
        )
    )
    names = [[each.operation.name for each in launches] for _, launches in found.sides]
    assert names == [["send", "recv"]] * 2


def test_a_send_that_waits_at_once_is_told() -> None:
    """The ranks do not come to their receives."""
    found = buffered(
        two(
            lambda rank: rank.launch("send", peer=1).launch("recv", peer=1),
            lambda rank: rank.launch("send", peer=0).launch("recv", peer=0),
        )
    )
    assert len(list(found)) == 1


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (
            lambda rank: rank.launch("send", peer=1).launch("recv", peer=1),
            lambda rank: rank.launch("recv", peer=0).launch("send", peer=0),
        ),
        (
            lambda rank: (
                rank.launch(**ISEND, peer=1, is_batched=True)
                .launch("recv", peer=1, is_batched=True)
                .wait(0)
            ),
            lambda rank: (
                rank.launch(**ISEND, peer=0, is_batched=True)
                .launch("recv", peer=0, is_batched=True)
                .wait(0)
            ),
        ),
        (
            lambda rank: rank.launch("send", peer=1).launch("recv"),
            lambda rank: rank.launch("send", peer=0).launch("recv", peer=0),
        ),
        (
            lambda rank: rank.launch("send", peer=1).launch("recv", peer=1),
            lambda rank: rank.launch("send", peer=0),
        ),
    ],
    ids=["in turn", "in a batch", "from anybody", "a receive that is not recorded"],
)
def test_sends_that_meet_their_receives_are_no_hazard(
    one: Callable[[Recorded], object], other: Callable[[Recorded], object]
) -> None:
    """A receive from anybody makes it unclear which send it takes."""
    assert list(buffered(two(one, other))) == []


def test_a_ring_of_three_has_a_stream_for_each_pair() -> None:
    """All send to the right first, and receive from the left, which is another stream."""
    rows = [
        Recorded(rank)
        .launch(**ISEND, group=TRIO, peer=(rank + 1) % 3)  # type: ignore[arg-type]
        .launch("recv", TRIO, peer=(rank - 1) % 3)
        .wait(0)
        for rank in TRIO
    ]
    assert list(buffered(records(*rows))) == []


def test_messages_that_are_received_in_another_order_do_not_hang() -> None:
    """A stream of NCCL knows no tags: the first send meets the first receive."""
    found = buffered(
        two(
            lambda rank: rank.launch(**ISEND, peer=1, tag=1).launch("send", peer=1, tag=2).wait(0),
            lambda rank: rank.launch("recv", peer=0, tag=2).launch("recv", peer=0, tag=1),
        )
    )
    assert list(found) == []


# what is told


def found_in(rows: Rows, *, rules: Sequence[str] = ("order", "unwaited")) -> object:
    """Return what rules find."""
    context = SourceContext("/root", lambda _, line: f"line {line}")
    return find_hazards(rows, rules, size=3, place_of=context.place)  # type: ignore[arg-type]


def test_the_same_lines_are_told_once_with_how_often_they_were_seen() -> None:
    """A loop is one hazard."""
    row = Recorded(0)
    for _ in range(5):
        row.launch(waited=None, line=7)
    [hazard] = found_in(records(row)).found  # type: ignore[attr-defined]
    assert hazard.count == 5
    assert "seen 5 times" in hazard.text
    assert "train.py:7" in hazard.text


def test_a_hazard_is_accepted_by_its_rule_and_lines() -> None:
    """In the file that has the accepted weaknesses of sweeps."""
    hazards = found_in(records(Recorded(0).launch(waited=None, line=7)))
    entry = Acceptance(test="t", culprit="train.py:line 7", reason="known", hazard="unwaited")
    accepted = accept_hazards(hazards, [entry], nodeid="t")  # type: ignore[arg-type]
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
    accepted = accept_hazards(hazards, [replace(entry, **change)], nodeid="t")  # type: ignore[arg-type]
    assert len(accepted.open) == 1


# how it is tried


def test_a_hazard_of_order_is_tried_once_for_all_ranks() -> None:
    """However many there are, the streams are the same."""
    opposite = two(
        lambda rank: rank.launch(line=3).launch(group=TRIO, line=4),
        lambda rank: rank.launch(group=TRIO, line=8).launch(line=7),
    )
    [tried] = suspected_faults(found_in(opposite), size=3)  # type: ignore[arg-type]
    assert (tried.kind, tried.ranks) == ("stream_order", (0, 1, 2))


def test_programs_in_different_orders_are_tried_in_streams() -> None:
    """Each start waits there for the other processes, as it may on GPUs."""
    rows = (
        jax_rank(0, started(0, 3, 1), started(0, 5, 2)),
        jax_rank(1, started(1, 5, 1), started(1, 3, 2)),
    )
    [tried] = suspected_faults(
        found_in({each.rank: each for each in rows}, rules=("programs",)),  # type: ignore[arg-type]
        size=2,
    )
    assert (tried.kind, tried.ranks) == ("stream_order", (0, 1))


def test_of_two_threads_the_first_one_is_held() -> None:
    """At the very operation that it began first."""
    row = Recorded(1).launch(lasts_s=5).launch("barrier", thread=2)
    launches = tuple(replace(each, nth=4) for each in row.launches)
    found = found_in({1: RankRecord(1, launches)}, rules=("threads",))
    [tried] = suspected_faults(found, size=2)  # type: ignore[arg-type]
    assert (tried.kind, tried.ranks) == ("hold", (1,))
    assert (tried.at.name, tried.at.nth) == ("all_reduce", 4)


def test_what_cannot_be_tried_or_is_accepted_is_not() -> None:
    """Nobody can make a work hang that nobody waits for."""
    hazards = found_in(records(Recorded(0).launch(waited=None, line=7)))
    assert suspected_faults(hazards, size=2) == {}  # type: ignore[arg-type]


# programs of jax


def started(rank: int, line: int, since_s: float, group: tuple[int, ...] = PAIR) -> Launch:
    """Return the start of a program."""
    operation = Operation(
        name=PROGRAM_START,
        kind="collective",
        group=group,
        scope=program_scope("/job/train.py", line),
        sequence=1,
        since_s=since_s,
    )
    return Launch(rank, int(since_s * 10), 1, Frame("/job/train.py", line, ""), operation)


def jax_rank(rank: int, *programs: Launch, meets_s: float = 0.0, thread: int = 7) -> RankRecord:
    """Return what a process has started, with a barrier of the coordination service."""
    row = Recorded(rank)
    if meets_s:
        row.launch("wait_at_barrier", thread=thread, scope=Scope("barrier", "saved"))
        [launch] = row.launches
        row.launches = [
            replace(launch, operation=replace(launch.operation, since_s=meets_s), thread=thread)
        ]
    return RankRecord(rank, tuple(row.launches), main_thread=7, programs=programs)


def programs_in(*rows: RankRecord) -> list[Found]:
    """Return what the rule finds."""
    return list(programs({each.rank: each for each in rows}))


def test_programs_that_start_in_opposite_orders_are_told() -> None:
    """With the lines that start them."""
    [found] = programs_in(
        jax_rank(0, started(0, 3, 1), started(0, 5, 2)),
        jax_rank(1, started(1, 5, 1), started(1, 3, 2)),
    )
    lines = [[each.frame.line for each in launches] for _, launches in found.sides]  # type: ignore[union-attr]
    assert (found.rule, lines) == ("programs", [[3, 5], [5, 3]])


def test_a_barrier_before_a_program_on_one_process_alone_is_told() -> None:
    """The other one starts the program first."""
    [found] = programs_in(
        jax_rank(0, started(0, 3, 2), meets_s=1), jax_rank(1, started(1, 3, 1), meets_s=2)
    )
    names = [each.operation.name for each in found.sides[0][1]]  # type: ignore[union-attr]
    assert names == ["wait_at_barrier", PROGRAM_START]


@pytest.mark.parametrize(
    "rows",
    [
        (
            jax_rank(0, started(0, 3, 1), started(0, 5, 2)),
            jax_rank(1, started(1, 3, 8), started(1, 5, 9)),
        ),
        (
            jax_rank(0, started(0, 3, 1), started(0, 5, 2, TRIO)),
            jax_rank(1, started(1, 5, 1, TRIO)),
        ),
        (
            jax_rank(0, started(0, 3, 2), meets_s=1, thread=8),
            jax_rank(1, started(1, 3, 1), meets_s=2, thread=8),
        ),
        (jax_rank(0, meets_s=1), jax_rank(1, started(1, 3, 1), meets_s=2)),
    ],
    ids=["in one order", "one in common", "a barrier in another thread", "no programs"],
)
def test_programs_that_meet_are_no_hazard(rows: tuple[RankRecord, RankRecord]) -> None:
    """How late a process is does not matter."""
    assert programs_in(*rows) == []


@pytest.mark.parametrize("now_s", [5.0, 214_748.3647, 300_000.25])
@pytest.mark.parametrize("is_main", [True, False])
def test_the_count_of_a_start_says_when_it_was(now_s: float, is_main: bool) -> None:
    """Also on a machine that has been up for days, and by which thread."""
    number = start_number(now_s, 0, is_main=is_main)
    at_s, was_main = read_start_number(number, now_s - 60)
    assert (abs(at_s - now_s) < 0.001, was_main) == (True, is_main)


def test_counts_of_starts_grow_within_a_tick() -> None:
    """The last start has the highest count."""
    first = start_number(5.0, 0, is_main=True)
    assert start_number(5.0, first, is_main=False) > first
