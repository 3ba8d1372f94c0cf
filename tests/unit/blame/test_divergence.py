"""Where ranks parted: hand-made histories, and the first collective that was not alike."""

from __future__ import annotations

from dataclasses import replace

import pytest
from builders import collective, stands, world

from pytest_multihost.core.blame import divergence
from pytest_multihost.core.blame.cause import Cause
from pytest_multihost.core.blame.causes import find_causes
from pytest_multihost.core.blame.divergence import described, first_divergence, followed
from pytest_multihost.core.blame.partings import find_partings
from pytest_multihost.core.blame.rank_states import count_alike, with_histories
from pytest_multihost.testing import (
    FLIGHT_SCOPE,
    HARNESS_SCOPE,
    RUNTIME_SCOPE,
    CallSite,
    Frame,
    History,
    Parting,
    Side,
    SourceContext,
    make_dump,
)

CALLS = {
    "step": ("all_reduce", "f32[5]", 61),
    "eval": ("all_reduce", "f32[5]", 88),
    "gather": ("all_gather", "f32[1]", 90),
    "into": ("all_gather_into_tensor", "f32[1]", 91),
    "save": ("barrier", "", 70),
    "load": ("barrier", "", 72),
    "end": ("barrier", "", 99),
    "short": ("all_reduce", "f32[3]", 61),
}
"""Calls of a made-up trainer: operation, detail, line."""


def history(rank: int, calls: str, *, of: int = 3, first: int = 1, ordinal: int = 0) -> History:
    """Return what a rank has entered: names of `CALLS`, ``step*3`` for three steps."""
    names = [
        name
        for part in calls.split()
        for name, _, times in [part.partition("*")]
        for _ in range(int(times or 1))
    ]
    sites = dict.fromkeys(names)
    return History(
        rank,
        (tuple(range(of)), ordinal, RUNTIME_SCOPE),
        first,
        tuple(site(name) for name in sites),
        tuple(list(sites).index(name) for name in names),
        tuple(float(first + index) for index in range(len(names))),
    )


def site(name: str) -> CallSite:
    """Return a call of `CALLS`."""
    operation, detail, line = CALLS[name]
    return CallSite(operation, None, detail, (Frame("/t/trainer.py", line, name),))


def found(*calls: str, **more: int) -> Parting | None:
    """Return where the ranks with these histories parted."""
    histories = [history(rank, each, of=len(calls), **more) for rank, each in enumerate(calls)]
    partings = find_partings(histories, ())
    return partings[0] if partings else None


def sides(parting: Parting | None) -> list[tuple[tuple[int, ...], str]]:
    """Return who did what: names of calls."""
    assert parting is not None
    return [(each.ranks, each.frame.function if each.frame else "") for each in parting.sides]


def test_the_first_operation_that_cannot_match_is_where_ranks_parted() -> None:
    """Rank 1 evaluates; that it steps again later, and that others do, changes nothing."""
    parting = found("step*56 step", "step*56 gather step*9", "step*56 step*3")
    assert parting is not None
    assert (parting.common, parting.evidence, parting.minority) == (56, "operations", (1,))
    assert sides(parting) == [((1,), "gather"), ((0, 2), "step")]
    assert [each.count for each in parting.sides] == [1, 57]


def test_three_ranks_in_three_operations_at_the_end_parted_where_one_did() -> None:
    """What each does at last is a consequence."""
    parting = found("step*5 end", "gather step*4 gather", "step*5 step")
    assert parting is not None
    assert (parting.common, parting.minority) == (0, (1,))


def test_two_sides_as_large_have_no_minority() -> None:
    """To name one would be a guess."""
    parting = found("step gather", "step step")
    assert parting is not None
    assert parting.minority == ()


def test_ranks_that_entered_the_same_have_not_parted() -> None:
    """Nothing to tell."""
    assert found("step*3 end", "step*3 end", "step*3 end") is None


def test_variants_of_one_collective_are_the_same() -> None:
    """They match on every backend."""
    parting = found("gather step", "into step")
    assert parting is None


def test_a_branch_of_one_rank_with_the_same_operation_is_innocent() -> None:
    """`if rank == 0: save() else: load()`, with a barrier in each."""
    assert found("step save step", "step load step", "step load step") is None


def test_a_branch_of_one_rank_is_innocent_before_another_rank_goes_astray() -> None:
    """Rank 2 is the one, however often rank 0 came from another line."""
    loop = "step save step", "step load step", "step load step"
    parting = found(f"{loop[0]} save step", f"{loop[1]} load step", f"{loop[2]} load gather")
    assert sides(parting) == [((2,), "gather"), ((0, 1), "step")]


def test_a_branch_of_the_rank_that_goes_astray_is_not_where_it_did() -> None:
    """The lines of the branch are used by one side each."""
    parting = found("step save gather", "step load step", "step load step")
    assert sides(parting) == [((0,), "gather"), ((1, 2), "step")]


def test_lines_tell_it_earlier_where_the_operations_still_matched() -> None:
    """The all_reduce of an evaluation met that of a step, which both sides otherwise do."""
    parting = found("step*5 step gather", "step*5 eval end", "step*5 step gather")
    assert parting is not None
    assert (parting.common, parting.minority) == (5, (1,))
    assert sides(parting) == [((1,), "eval"), ((0, 2), "step")]


def test_one_operation_too_many_is_found_though_the_lines_agree_again() -> None:
    """From there on rank 1 repeats what the others have done, one later."""
    parting = found("step*5 step*3 gather", "step*5 eval step*2 end", "step*5 step*3 gather")
    assert parting is not None
    assert parting.common == 5
    assert sides(parting) == [((1,), "eval"), ((0, 2), "step")]


def test_a_rank_that_leaves_a_loop_early_has_done_one_step_less() -> None:
    """Both counts are told."""
    parting = found("step*57", "step*57", "step*56")
    assert parting is not None
    assert (parting.common, parting.evidence) == (56, "counts")
    assert [(each.ranks, each.count) for each in parting.sides] == [((2,), 56), ((0, 1), 57)]


def test_details_tell_only_of_the_last_operation() -> None:
    """Collectives of different shapes are done; the one that never ends is evidence."""
    assert found("short step", "step step") is None
    parting = found("step short", "step step")
    assert parting is not None
    assert parting.evidence == "details"


def test_where_ranks_parted_before_what_is_known_nothing_is_told() -> None:
    """The first difference that is known is not the first."""
    assert found("gather step", "step step", first=5) is None
    assert found("step gather", "step step", first=5) is not None


def test_the_flight_recorder_counts_where_only_it_has_all() -> None:
    """C++ code called ten collectives that the slot pages lack."""
    recorded = [history(rank, "save", of=2) for rank in range(2)]
    flight = [_flight(0, "step*10 save step"), _flight(1, "step*10 save gather")]
    [parting] = find_partings(recorded, flight)
    assert (parting.group[2], parting.common) == (FLIGHT_SCOPE, 11)


def test_the_flight_recorder_adds_stacks_where_the_counts_agree() -> None:
    """Then lines of libraries tell what the user's one line does not."""
    recorded = [
        replace(history(0, "step gather", of=2), sites=_at_one_line("step", "gather")),
        replace(history(1, "step step", of=2), sites=_at_one_line("step")),
    ]
    flight = [_flight(0, "step gather"), _flight(1, "step step")]
    [parting] = find_partings(recorded, flight)
    assert parting.group[2] == RUNTIME_SCOPE
    assert {each.frame.line for each in parting.sides if each.frame} == {3}
    assert {each.through.line for each in parting.sides if each.through} == {61, 90}


def test_a_library_that_calls_in_a_thread_of_its_own_has_no_line_of_the_users() -> None:
    """Its own lines, and the plugin's, are not shown as such."""
    inside = Frame(divergence.__file__, 165, "allgather"), Frame("/v/site-packages/s.py", 1, "save")
    recorded = [
        history(0, "step", of=2),
        replace(history(1, "gather", of=2), sites=(replace(site("gather"), frames=inside),)),
    ]
    [parting] = find_partings(recorded, ())
    assert [(e.ranks, e.frame and e.frame.line) for e in parting.sides] == [
        ((0,), 61),
        ((1,), None),
    ]


def _at_one_line(*names: str) -> tuple[CallSite, ...]:
    line = (Frame("/t/test_it.py", 3, "test"),)
    return tuple(replace(site(name), frames=line) for name in names)


def _flight(rank: int, calls: str) -> History:
    made = history(rank, calls, of=2)
    test, library = Frame("/t/test_it.py", 3, "test"), "/v/site-packages/trainer.py"
    stacks = tuple(
        replace(each, frames=(Frame(library, each.frames[0].line, each.frames[0].function), test))
        for each in made.sites
    )
    return replace(made, group=(*made.group[:2], FLIGHT_SCOPE), sites=stacks)


def test_collectives_of_the_harness_match_by_their_details() -> None:
    """Two barriers of different names are different ones."""
    group = ((0, 1), 0, HARNESS_SCOPE)
    one, two = (
        History(rank, group, 1, (CallSite("world.barrier", None, name),), (0,), (1.0,))
        for rank, name in enumerate("ab")
    )
    [parting] = find_partings((one, two), ())
    assert parting.evidence == "operations"


# What is told of a world


WORLD, PAIR = world(3), world(2)


def test_a_rank_that_finished_has_left_a_loop() -> None:
    """The page says how many steps each has done."""
    parting = found("step*57", "step*57", "step*56")
    assert parting is not None
    states = {0: stands(0, collective(57)), 1: stands(1, collective(57))}
    states[2] = stands(2, condition="finished", since_s=1.0)
    cause = Cause(kind="finished", confidence="certain", culprits=(2,), waiting=(0, 1))
    assert first_divergence([parting], cause, states) is parting
    told = described(parting, states, WORLD, SourceContext("/t", lambda *_: ""))
    assert told.summary == (
        "after 56 operations in common (world group),"
        " rank 2 returned from the test, having entered that all_reduce 56 times,"
        " where ranks 0,1 entered all_reduce from step(), trainer.py:61, for the 57th time"
    )


def told_of_finished(*calls: str) -> Parting | None:
    """Return what is told where rank 2 has finished, and the others wait in their last call."""
    histories = [history(rank, each, of=3) for rank, each in enumerate(calls)]
    last = histories[0].operation(histories[0].last)
    assert last is not None
    waiting = replace(last, ended_s=None, waited_s=last.since_s)
    states = {rank: stands(rank, waiting) for rank in (0, 1)}
    states[2] = stands(2, condition="finished", since_s=99.0)
    cause = Cause(kind="finished", confidence="certain", culprits=(2,), waiting=(0, 1))
    return first_divergence(find_partings(histories, ()), cause, states)


def test_a_rank_that_finished_left_where_its_last_barrier_met_another() -> None:
    """The barriers match: that they are not the same shows only in their lines."""
    parting = told_of_finished("step*3 save gather", "step*3 save gather", "step*3 end")
    assert parting is not None
    assert (parting.common, parting.evidence, parting.minority) == (3, "lines", (2,))
    assert sides(parting) == [((2,), "end"), ((0, 1), "save")]


@pytest.mark.parametrize(
    "calls",
    [
        ("save step gather", "save step gather", "load step"),
        ("step save gather", "step load gather", "step load"),
    ],
    ids=["the sides agree again", "others part otherwise"],
)
def test_lines_of_a_branch_are_not_where_a_rank_that_finished_left(calls: tuple[str, ...]) -> None:
    """That it did not enter the last operation is all that is known."""
    assert told_of_finished(*calls) is None


def test_a_branch_in_a_loop_is_not_where_a_rank_left_it_early() -> None:
    """It came from its own line each time, and has one turn less."""
    parting = told_of_finished("save*3", "save*3", "load*2")
    assert parting is None or parting.evidence == "counts"


@pytest.mark.parametrize("kind", ["straggler", "livelock", "died", "raised", "stopped", "gil_held"])
def test_a_rank_that_is_only_late_has_not_parted(kind: str) -> None:
    """That it has not entered what the others wait in is the diagnosis already."""
    parting = found("step*57", "step*57", "step*56")
    assert parting is not None
    states = {rank: stands(rank, collective(57)) for rank in (0, 1)}
    states[2] = stands(2)
    cause = Cause(kind=kind, confidence="certain", culprits=(2,), waiting=(0, 1))  # type: ignore[arg-type]
    assert first_divergence([parting], cause, states) is None


def test_of_two_groups_the_one_in_which_ranks_parted_first_is_told() -> None:
    """In the other it is a consequence."""
    late = [history(r, f"step*9 {last}", of=2) for r, last in enumerate(("end", "step"))]
    soon = [history(r, f"step {last}", of=2, ordinal=1) for r, last in enumerate(("end", "step"))]
    partings = find_partings([*late, *soon], ())
    cause = Cause(kind="mismatch", confidence="certain", waiting=(0, 1))
    parting = first_divergence(partings, cause, {})
    assert parting is not None
    assert parting.group[1] == 1


def test_ranks_that_wait_in_two_groups_for_each_other_have_parted() -> None:
    """The sides are what each waits in."""
    group = ((0, 1), 0, RUNTIME_SCOPE)
    other = collective(3, "barrier", group=(0, 1), ordinal=1, frame=Frame("/t/trainer.py", 9, "g"))
    states = {0: stands(0, collective(57, group=(0, 1))), 1: stands(1, other)}
    [parting] = find_partings([history(0, "step*57", of=2), history(1, "step*56", of=2)], ())
    cause = Cause(kind="deadlock", confidence="certain", waiting=(0, 1), cycle=(0, 1))
    assert first_divergence([parting], cause, states) is parting
    told = described(parting, states, PAIR, SourceContext("/t", lambda *_: ""))
    assert told.group == group[0]
    one, two = (each.text for each in told.sides)
    assert one == "entered all_reduce from step(), trainer.py:61, for the 57th time"
    assert two.startswith("went on to barrier #3 (2nd group 0,1) from g(), trainer.py:9")
    assert two.endswith("having entered that all_reduce 56 times")


def test_culprits_of_a_mismatch_follow_from_where_ranks_parted() -> None:
    """At the end rank 2 seems to be the odd one."""
    parting = found("step*5 end", "gather end*5", "step*5 step")
    cause = Cause(kind="mismatch", confidence="certain", culprits=(2,), waiting=(0, 1))
    mended = followed(cause, parting)
    assert (mended.culprits, mended.waiting) == ((1,), (0, 2))


def test_a_clear_cause_keeps_its_culprits() -> None:
    """Who died has died, wherever ranks had parted."""
    parting = found("step gather", "step step", "step step")
    cause = Cause(kind="died", confidence="certain", culprits=(2,), waiting=(0, 1))
    assert followed(cause, parting) == cause


def test_the_parting_decides_who_sent_what_did_not_fit() -> None:
    """The rank with the smaller tensor is ended; what another had entered before fitted."""
    parting = found("step gather step", "step step gather", "step step gather")
    cause = Cause(kind="died", confidence="likely", culprits=(2,), waiting=(0, 1))
    mended = followed(cause, parting, is_of_size=True)
    assert (mended.kind, mended.culprits, mended.waiting) == ("mismatch", (0,), (1, 2))
    assert mended.confidence == "likely"


def test_an_operation_that_all_entered_out_of_step_is_a_mismatch() -> None:
    """Nothing moves, because an earlier operation met another."""
    parting = found("step step step", "gather step step", "step step step")
    cause = Cause(kind="transport", confidence="likely", waiting=(0, 1, 2))
    mended = followed(cause, parting)
    assert (mended.kind, mended.culprits, mended.waiting) == ("mismatch", (1,), (0, 2))


# The two causes of a lost minority


def test_completed_operations_count_as_the_flight_recorder_counts_them() -> None:
    """Rank 0, the root, has passed the broadcast that the others' all_reduce met."""
    flight = collective(12, scope=FLIGHT_SCOPE)
    key = ((0, 1, 2), 0, FLIGHT_SCOPE)
    passed = replace(collective(2, "broadcast"), ended_s=3.0, waited_s=None)
    states = [
        replace(stands(0, collective(3, "barrier")), known=(passed, collective(3, "barrier"))),
        stands(1, flight),
        stands(2, flight),
    ]
    histories = [
        replace(history(0, "step*11 save end"), group=key),
        replace(history(1, "step*12"), group=key),
        replace(history(2, "step*12"), group=key),
    ]
    recorded = [history(rank, "save") for rank in range(3)]
    mended = count_alike(with_histories(states, find_partings(recorded, histories)))
    assert mended[0].pending[0].place == (key, 13)
    first = find_causes(mended)[0]
    assert (first.kind, first.culprits) == ("mismatch", (0,))


def test_a_minority_is_looked_for_among_all_ranks_that_entered() -> None:
    """Rank 2 has passed the broadcast as its root; only ranks 0 and 1 wait for each other."""
    broadcast = collective(1, "broadcast", root=2)
    passed = replace(broadcast, ended_s=2.0, waited_s=None)
    states = [
        stands(0, collective(1, "all_gather")),
        stands(1, broadcast),
        replace(stands(2, collective(2)), known=(passed, collective(2))),
    ]
    states[2] = replace(states[2], entered={collective(2).group_key: 2})
    assert find_causes(states)[0].culprits == (0,)


def test_stacks_tell_apart_ranks_that_wait_at_one_line() -> None:
    """A helper of the user's calls all collectives."""
    parting = found("step step", "step gather")
    assert parting is not None
    line = Frame("/t/trainer.py", 5, "meet")
    sides = tuple(replace(each, frame=line) for each in parting.sides)
    states = {0: stands(0, collective(2, group=(0, 1))), 1: stands(1, collective(2, group=(0, 1)))}
    test = "/t/test_it.py:{} test"
    dumps = tuple(make_dump(r, "/t/trainer.py:5 meet", test.format(r + 1)) for r in range(2))
    told = described(
        replace(parting, sides=sides),
        states,
        replace(PAIR, dumps=dumps),
        SourceContext("/t", lambda *_: ""),
    )
    assert [each.through.line for each in told.sides if each.through] == [1, 2]


def test_after_a_failure_ranks_may_do_what_they_like() -> None:
    """Those whose collective timed out handle that, and the late one never entered it."""
    parting = found("step step gather", "step step step", "step step step")
    failed = replace(collective(2), ended_s=2.5, waited_s=None, failed=True)
    states = {rank: replace(stands(rank), known=(failed,)) for rank in range(3)}
    cause = Cause(kind="straggler", confidence="certain", culprits=(0,), waiting=(1, 2))
    assert parting is not None
    assert first_divergence([parting], cause, states) is None


def test_a_ring_of_groups_has_no_divergence() -> None:
    """Each pair waits for another pair: no two ranks have these groups in common."""
    states = {
        0: stands(0, collective(1, group=(0, 1))),
        1: stands(1, collective(1, group=(1, 2))),
        2: stands(2, collective(1, group=(0, 2))),
    }
    entered = [(0, (0, 1)), (1, (1, 2)), (2, (0, 2))]
    histories = [
        replace(history(rank, "step"), group=(group, 0, RUNTIME_SCOPE)) for rank, group in entered
    ]
    partings = find_partings(histories, ())
    assert len(partings) == 3
    cause = Cause(kind="deadlock", confidence="certain", waiting=(0, 1, 2), cycle=(0, 1, 2))
    assert first_divergence(partings, cause, states) is None


def test_of_several_partings_the_hardest_evidence_is_told() -> None:
    """Operations before lines, lines before counts, the earliest of each."""
    group = ((0, 1), 0, RUNTIME_SCOPE)
    both = (Side((0,), collective(1)), Side((1,), collective(1)))
    made = {
        (evidence, at_s): Parting((group[0], number, group[2]), 3, evidence, at_s, both)
        for number, (evidence, at_s) in enumerate(
            [("counts", 1.0), ("lines", 3.0), ("lines", 2.0), ("operations", 5.0)]
        )
    }
    states = {0: stands(0, collective(1)), 1: stands(1, collective(1))}
    cause = Cause(kind="deadlock", confidence="certain", waiting=(0, 1), cycle=(0, 1))
    for expected in (("operations", 5.0), ("lines", 2.0), ("lines", 3.0), ("counts", 1.0)):
        assert first_divergence([*made.values()], cause, states) is made.pop(expected)
    assert first_divergence([], cause, states) is None


def test_a_rank_that_waits_elsewhere_has_parted_if_all_wait_for_each_other() -> None:
    """It has made no loop shorter; where it has finished, that says no more than the cause."""
    inside = (Side((0,), collective(57)), Side((1,), None))
    group = collective(57).group_key
    parting = Parting(group, 56, "counts", 1.0, inside)
    other = collective(1, ordinal=1)
    states = {0: stands(0, collective(57)), 1: stands(1, other)}
    cause = Cause(kind="deadlock", confidence="certain", waiting=(0, 1), cycle=(0, 1))
    assert first_divergence([parting], cause, states) is parting
    gone = {**states, 1: stands(1, condition="finished", since_s=1.0)}
    left = Cause(kind="finished", confidence="certain", culprits=(1,), waiting=(0,))
    assert first_divergence([parting], left, gone) is None


def test_the_flight_recorder_counts_no_collectives_of_the_harness() -> None:
    """Its groups have the same members, and other collectives."""
    group = ((0, 1), 0, HARNESS_SCOPE)
    recorded = [
        History(rank, group, 1, (CallSite("world.barrier", None, "a"),), (0,), (1.0,))
        for rank in range(2)
    ]
    flight = [_flight(0, "step*10 save"), _flight(1, "step*10 gather")]
    (parting,) = find_partings(recorded, flight)
    assert (parting.group[2], parting.common, parting.evidence) == (FLIGHT_SCOPE, 10, "operations")


def test_ranks_part_in_a_group_whose_collectives_only_c_code_enters() -> None:
    """As with DDP alone: one rank has made a step less."""
    (parting,) = find_partings([], [_flight(0, "step*3"), _flight(1, "step*5")])
    assert (parting.group[2], parting.common, parting.evidence) == (FLIGHT_SCOPE, 3, "counts")
    assert [(each.ranks, each.count) for each in parting.sides] == [((0,), 3), ((1,), 4)]


def test_alike_calls_of_c_code_part_no_ranks() -> None:
    """Nor does a rank whose flight recorder has not answered."""
    assert find_partings([], [_flight(0, "step*3"), _flight(1, "step*3")]) == ()
    assert find_partings([], [_flight(1, "step*5")]) == ()
