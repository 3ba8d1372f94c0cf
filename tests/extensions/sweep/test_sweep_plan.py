"""What a sweep disturbs, in which order: from points written by hand."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from pytest_multihost.extensions.sweep.choices import MEASURED, Weight
from pytest_multihost.extensions.sweep.plan import plan_sweep
from pytest_multihost.extensions.sweep.rest import order_rest
from pytest_multihost.extensions.sweep.result import (
    Disturbance,
    DisturbedRun,
    LeftOut,
    RunOutcome,
    SweepPlan,
)
from pytest_multihost.extensions.sweep.run.sweeps import begin
from pytest_multihost.testing import ErrorPath, Place, Point, RecordedPoint

pytestmark = pytest.mark.unit

Points = Mapping[int, tuple[RecordedPoint, ...]]


def io(name: str, call: str = "stat", **more: Any) -> Point:  # noqa: ANN401
    """Return a point of a call on a file."""
    return Point("io", f"*/ckpt/{name}" if not name.startswith("/") else name, call=call, **more)


ALL_REDUCE = Point("collective", "all_reduce")
BATCH = Point("batch", "torch.utils.data:DataLoader")


def passed(rank: int, *points: Point | tuple[Point, int]) -> tuple[RecordedPoint, ...]:
    """Return what a rank passes: points, each on a line of its own or on a given one."""
    found: list[RecordedPoint] = []
    counts: dict[Point, int] = {}
    span = 0
    for index, each in enumerate(points):
        point, line = each if isinstance(each, tuple) else (each, 10 + index)
        counts[point] = nth = counts.get(point, 0) + 1
        where = Place("train.py", line, "train")
        found.append(RecordedPoint(rank, replace(point, nth=nth), span, where=where))
        span += point.point == "collective"
    return tuple(found)


def alike(size: int, *points: Point | tuple[Point, int]) -> Points:
    """Return the points of ranks that pass the same."""
    return {rank: passed(rank, *points) for rank in range(size)}


def primary_saves(size: int = 3) -> Points:
    """Return the points of a world whose primary alone writes what the others then look for."""
    first = passed(
        0, (ALL_REDUCE, 10), (io("done", "open"), 20), (io("done", "write"), 20), (ALL_REDUCE, 40)
    )
    others = {
        rank: passed(rank, (ALL_REDUCE, 10), (io("done"), 30), (ALL_REDUCE, 40))
        for rank in range(1, size)
    }
    return {0: first, **others}


def kinds(plan: SweepPlan) -> list[str]:
    """Return the kinds of faults of a plan, each once, in order."""
    return list(dict.fromkeys(each.fault.kind for each in plan.disturbances))


def of_kind(plan: SweepPlan, kind: str) -> list[Disturbance]:
    """Return the disturbances of one kind of fault."""
    return [each for each in plan.disturbances if each.fault.kind == kind]


# Roles


def test_ranks_that_pass_the_same_points_are_one_role() -> None:
    """The primary, which writes, is a role of its own."""
    assert plan_sweep(primary_saves(4), size=4).roles == ((0,), (1, 2, 3))


@pytest.mark.parametrize("form", ["shard-{}.pt", "rank_{:05}/data", "part{}of3", "w{}/step-7"])
def test_the_ranks_own_number_in_a_name_splits_no_role(form: str) -> None:
    """Each rank has a file of its own."""
    points = {rank: passed(rank, (io(form.format(rank), "open"), 10)) for rank in range(3)}
    assert plan_sweep(points, size=3).roles == ((0, 1, 2),)


def test_numbers_from_one_on_are_the_ranks_own_too() -> None:
    """Workers count from 1."""
    points = {rank: passed(rank, (io(f"worker-{rank + 1}"), 10)) for rank in range(3)}
    assert plan_sweep(points, size=3).roles == ((0, 1, 2),)


def test_another_number_in_a_name_is_not_the_ranks_own() -> None:
    """Both ranks pass all steps; rank 1 alone has no claim to step 1."""
    steps = [(io(f"step-{step}"), 10) for step in range(3)]
    assert plan_sweep(alike(3, *steps), size=3).roles == ((0, 1, 2),)


def test_ranks_that_use_different_files_are_different_roles() -> None:
    """One writes the metadata."""
    points = {0: passed(0, (io("meta"), 10)), 1: passed(1, (io("data"), 10))}
    assert plan_sweep(points, size=2).roles == ((0,), (1,))


def test_how_often_a_rank_polls_splits_no_role() -> None:
    """It depends on timing."""
    points = {
        0: passed(0, (ALL_REDUCE, 10)),
        1: passed(1, *[(io("done"), 20)] * 3, (ALL_REDUCE, 10)),
        2: passed(2, *[(io("done"), 20)] * 7, (ALL_REDUCE, 10)),
    }
    assert plan_sweep(points, size=3).roles == ((0,), (1, 2))


def test_a_rank_with_more_batches_is_another_role() -> None:
    """Uneven data are what hangs."""
    points = {0: passed(0, *[(BATCH, 10)] * 3), 1: passed(1, *[(BATCH, 10)] * 4)}
    assert plan_sweep(points, size=2).roles == ((0,), (1,))


# What is planned


def test_every_default_family_is_planned() -> None:
    """Late, fails and differs."""
    plan = plan_sweep(primary_saves(), size=3)
    assert {each.family for each in plan.disturbances} == {"late", "fails", "differs"}


def test_only_wanted_families_are_planned() -> None:
    """Whoever asks for late alone gets late alone."""
    plan = plan_sweep(primary_saves(), ["late"], size=3)
    assert kinds(plan) == ["hold"]


def test_every_disturbance_is_a_valid_fault_of_one_rank() -> None:
    """It can be run as it stands."""
    for each in plan_sweep(primary_saves(), size=3).disturbances:
        assert each.fault.problems() == []
        assert len(each.fault.ranks) == 1
        assert each.passed.rank in each.role


def test_a_call_on_a_file_fails_once_and_from_then_on() -> None:
    """Some programs try again."""
    found = of_kind(plan_sweep(primary_saves(), size=3), "fails")
    writes = [each.fault.at.onwards for each in found if each.fault.at.call == "write"]
    assert writes == [False, True]


def test_the_first_disturbances_are_at_the_file_that_one_writes_and_others_look_for() -> None:
    """Of all points of a test it is the likeliest to matter."""
    first, second, *_ = plan_sweep(primary_saves(), ["late"], size=3).disturbances
    assert {first.passed.point.name, second.passed.point.name} == {"*/ckpt/done"}


def test_a_rank_is_held_for_seconds_only_where_others_may_have_timeouts() -> None:
    """They poll for what it makes, or for a key; each such run takes seconds."""
    key = Point("collective", "store.set")
    points = {**primary_saves(), 0: (*primary_saves()[0], *passed(0, (key, 60)))}
    held = of_kind(plan_sweep(points, ["late"], size=3), "hold")
    longer = {each.passed.point.name for each in held if "min_s" in each.fault.params}
    assert longer == {"*/ckpt/done", "store.set"}


def held(points: Points, size: int) -> list[Disturbance]:
    """Return where ranks are held at files."""
    plan = plan_sweep(points, ["late"], size=size)
    return [each for each in of_kind(plan, "hold") if each.passed.point.point == "io"]


def test_a_rank_is_not_held_at_a_file_of_its_own() -> None:
    """Nobody sees whether it is late there or at its next operation."""
    points = {rank: passed(rank, (io(f"own-{rank}"), 10), (ALL_REDUCE, 20)) for rank in range(2)}
    assert held(points, 2) == []


def test_a_rank_that_shares_nothing_that_is_recorded_is_held_once() -> None:
    """It may talk by sockets of its own."""
    points = {rank: passed(rank, (io(f"own-{rank}"), 10), (io("b"), 11)) for rank in range(2)}
    assert [each.passed.point.name for each in held({0: points[0]}, 1)] == ["*/ckpt/own-0"]


def test_a_folder_that_another_rank_moves_concerns_who_reads_in_it() -> None:
    """The rename commits all that is below."""
    mover = passed(0, (io("step-1", "rename"), 10), (ALL_REDUCE, 40))
    reader = passed(1, (io("step-1/meta", "open"), 20), (ALL_REDUCE, 40))
    held = of_kind(plan_sweep({0: mover, 1: reader}, ["late"], size=2), "hold")
    assert {each.passed.point.point for each in held[:2]} == {"io"}


def test_what_one_rank_has_written_is_hidden_from_who_looks_for_it() -> None:
    """Not from the writer, and not what a rank has written itself."""
    found = of_kind(plan_sweep(primary_saves(), size=3), "stale_files")
    assert {each.fault.ranks for each in found} == {(2,)}
    assert {each.fault.params["path"] for each in found} == {"*/ckpt/done"}


def test_what_is_found_by_a_listing_is_hidden_too() -> None:
    """The folder is listed to see what others have written."""
    writer = passed(0, (io("step-1", "mkdir"), 10), (ALL_REDUCE, 40))
    lister = passed(1, (Point("io", "*/ckpt", call="listdir"), 20), (ALL_REDUCE, 40))
    plan = plan_sweep({0: writer, 1: lister}, size=2)
    assert [each.fault.params["path"] for each in of_kind(plan, "stale_files")] == ["*/ckpt/step-1"]
    assert [each.fault.params["path"] for each in of_kind(plan, "shuffled_listing")] == ["*/ckpt"]


def test_of_many_files_in_a_listed_folder_all_are_hidden_or_the_last() -> None:
    """To hide each alone would show the same again and again."""
    writer = passed(0, *[(io(f"part-{n}x", "write"), 10) for n in range(5)], (ALL_REDUCE, 40))
    lister = passed(1, (Point("io", "*/ckpt", call="listdir"), 20), (ALL_REDUCE, 40))
    plan = plan_sweep({0: writer, 1: lister}, size=2)
    hidden = [each.fault.params["path"] for each in of_kind(plan, "stale_files")]
    assert hidden == ["*/ckpt/*", "*/ckpt/part-4x"]


def test_data_are_one_batch_short_where_the_program_reads_them_to_the_end() -> None:
    """The last draw finds the end: the one before it is the last batch."""
    plan = plan_sweep(alike(2, *[(BATCH, 10)] * 4, (ALL_REDUCE, 20)), size=2)
    short = [each.fault.at.nth for each in of_kind(plan, "short_data")]
    assert short[0] == 3
    assert set(short) == {2, 3, 4}
    assert {each.fault.at.nth for each in of_kind(plan, "empty_data")} == {1}


def test_drawing_a_batch_does_not_fail() -> None:
    """Data in memory never fail; of data on disks the calls on files do."""
    points = alike(2, *[(BATCH, 10)] * 4, (ALL_REDUCE, 20))
    assert kinds(plan_sweep(points, ["fails"], size=2)) == []


@pytest.mark.parametrize(
    ("name", "ranks"), [("all_reduce", {(3,)}), ("broadcast", {(0,), (3,)}), ("send", {(0,), (3,)})]
)
def test_one_rank_of_a_role_is_enough_unless_one_may_be_another_than_the_rest(
    name: str, ranks: set[tuple[int, ...]]
) -> None:
    """The root of a broadcast decides, and the others compare; who sends has a number."""
    points = [io("a"), Point("collective", name), io("b")]
    plan = plan_sweep(alike(4, *points), ["differs"], size=4)
    assert {each.fault.ranks for each in of_kind(plan, "clock_skew")} == ranks


def test_the_clock_changes_in_the_middle() -> None:
    """A skew from the start on cancels out where times are compared."""
    plan = plan_sweep(alike(2, (io("a"), 10), (ALL_REDUCE, 20), (io("b"), 30)), size=2)
    first, *_ = of_kind(plan, "clock_skew")
    assert first.fault.at.name == "*/ckpt/b"


def test_fresh_interpreters_come_last() -> None:
    """They cost seconds each."""
    plan = plan_sweep(primary_saves(), size=3)
    assert plan.disturbances[-1].fault.kind == "hash_seed"
    assert kinds(plan)[-1] == "hash_seed"


def test_code_without_sets_gets_no_other_hashes() -> None:
    """Each seed needs an interpreter that imports everything again."""
    plan = plan_sweep(primary_saves(), size=3, has_hashes=False)
    assert not of_kind(plan, "hash_seed")
    assert plan.disturbances


def test_a_fault_of_hashes_names_their_seed() -> None:
    """So the token of a run that shows a weakness repeats it."""
    seeds = [each.fault.params["seed"] for each in of_kind(_hashes(), "hash_seed")]
    assert len(set(seeds)) == len(seeds) > 1


def _hashes() -> SweepPlan:
    return plan_sweep(primary_saves(), size=3)


def test_functions_are_disturbed_on_request_only() -> None:
    """What they mean, the user knows."""
    assert not of_kind(plan_sweep(primary_saves(), size=3), "returns")
    plan = plan_sweep(
        primary_saves(), size=3, decisions=["train:should_stop"], values=["train:loss"]
    )
    found = of_kind(plan, "returns")
    assert {each.fault.at.name for each in found} == {"train:should_stop", "train:loss"}
    assert {each.fault.ranks for each in found} == {(0,), (2,)}


@pytest.mark.parametrize(
    "path",
    [
        "/proc/self/status",
        "/dev/urandom",
        "/venv/lib/python3.12/site-packages/torch/version.py",
        "*/torchinductor_me/fx/a",
        "*/.pytest_multihost/x/rank-0.log",
        "*/train.py",
        "*/sockets/listener-m99usge7",
    ],
)
def test_what_is_not_the_tests_own_is_not_disturbed(path: str) -> None:
    """A failing import of torch says nothing about the test."""
    points = alike(2, (Point("io", path, call="open"), 10), (ALL_REDUCE, 20))
    plan = plan_sweep(points, size=2)
    assert path not in {each.passed.point.name for each in plan.disturbances}


def test_a_library_that_the_test_builds_is_disturbed() -> None:
    """It is no installed one, whatever its name ends with."""
    points = {
        0: passed(0, (io("extension.so", "open"), 10), (ALL_REDUCE, 20)),
        1: passed(1, (ALL_REDUCE, 20)),
    }
    plan = plan_sweep(points, size=2)
    assert "*/ckpt/extension.so" in {each.passed.point.name for each in plan.disturbances}


@pytest.mark.parametrize("path", ["/lib64/libm.so", "*/build/_ext.cpython-312-x86_64.so"])
def test_libraries_of_the_system_and_extension_modules_are_not(path: str) -> None:
    """They are opened at imports."""
    points = alike(2, (Point("io", path, call="open"), 10), (ALL_REDUCE, 20))
    names = {each.passed.point.name for each in plan_sweep(points, size=2).disturbances}
    assert path not in names


LOCK, BUILT = (io("lock", "open"), 10), (io("build.ninja", "open"), 20)


def test_what_the_holder_of_a_lock_does_is_disturbed_in_whoever_holds_it() -> None:
    """In another run that may be another rank; what all ranks do is bound to one of them."""
    points = {
        0: passed(0, LOCK, BUILT, (io("lock", "unlink"), 30), (ALL_REDUCE, 40)),
        **{rank: passed(rank, LOCK, (io("lock"), 15), (ALL_REDUCE, 40)) for rank in (1, 2)},
    }
    found = of_kind(plan_sweep(points, size=3), "fails")
    is_first = {(each.fault.at.name, each.fault.at.call): each.fault.is_first for each in found}
    assert is_first["*/ckpt/build.ninja", "open"]
    assert is_first["*/ckpt/lock", "unlink"]
    assert not is_first["*/ckpt/lock", "open"]
    assert {each.fault.ranks for each in found if each.fault.is_first} == {(0, 1, 2)}


def test_what_the_primary_does_without_a_lock_is_disturbed_in_the_primary() -> None:
    """Though it is the only one: who it is does not vary."""
    faults_of = of_kind(plan_sweep(primary_saves(), size=3), "fails")
    assert not any(each.fault.is_first for each in faults_of)


# Order and number


def many(count: int, size: int = 4) -> Points:
    """Return ranks that pass so many points, all on lines of their own."""
    points = [ALL_REDUCE if index % 5 == 4 else io(f"f{index}x", "open") for index in range(count)]
    return alike(size, *points)


def test_a_test_with_50_points_fits_a_budget_of_a_minute() -> None:
    """At five runs a second."""
    plan = plan_sweep(many(50), ["late"], size=4)
    assert 0 < len(plan.disturbances) <= 300
    assert len(plan_sweep(many(50), size=4).disturbances) <= 400


def test_a_plan_is_a_small_part_of_brute_force() -> None:
    """Roles and classes save most runs of a test that saves shards in a loop."""
    shards = [(io(f"s{index}", "write"), 10) for index in range(40)]
    plan = plan_sweep(alike(4, *shards, (ALL_REDUCE, 20)), size=4)
    early = [each for each in plan.disturbances if each.passed.point.nth == 1]
    assert plan.brute_force > 4 * 40 * 3
    assert len(early) < plan.brute_force


def test_each_line_has_its_first_disturbance_before_any_has_its_second() -> None:
    """A small budget covers broadly."""
    loop = [(io(f"s{index}", "write"), 10) for index in range(20)]
    points = alike(2, *loop, (ALL_REDUCE, 20), (io("meta", "open"), 30), (ALL_REDUCE, 40))
    lines = [
        each.passed.where.line
        for each in plan_sweep(points, ["fails"], size=2).disturbances
        if each.passed.where
    ]
    assert set(lines[:2]) == {10, 30}


# Failures that take the same way


def failing(points: Points, size: int = 2) -> list[tuple[str, str]]:
    """Return which calls fail once, by the names and calls of their points."""
    found = of_kind(plan_sweep(points, ["fails"], size=size), "fails")
    points_ = [each.fault.at for each in found if not each.fault.at.onwards]
    return [(each.name.removeprefix("*/ckpt/"), each.call) for each in points_]


def on_its_way(points: Points, *paths: str, rank: int = 0, is_main: bool = True) -> Points:
    """Return points of which those of a rank meet handlers, in order."""
    mine = [
        replace(each, error_path=ErrorPath.parse(path), is_main=is_main)
        for each, path in zip(points[rank], paths, strict=True)
    ]
    return {**points, rank: tuple(mine)}


def two_writes(*paths: str, is_main: bool = True) -> Points:
    """Return a rank that writes two files of its own at two lines, and meets another."""
    first = passed(0, (io("a", "write"), 10), (io("b", "write"), 11), (ALL_REDUCE, 20))
    points = {0: first, 1: passed(1, (ALL_REDUCE, 20))}
    return on_its_way(points, *paths, "", is_main=is_main)


def test_failures_that_take_the_same_way_are_one() -> None:
    """The same handler is called in the same way; nobody else sees either file."""
    assert failing(two_writes("save+10 7f", "save+10 7f")) == [("a", "write")]


def test_one_failure_names_the_other_lines_that_it_stands_for() -> None:
    """What meets another handler is another's."""
    [tried, *_] = of_kind(
        plan_sweep(two_writes("save+10 7f", "save+10 7f"), ["fails"], size=2), "fails"
    )
    assert tried.alike == (Place("train.py", 11, "train"),)
    plan = plan_sweep(two_writes("save+10 7f", "save+40 7f"), ["fails"], size=2)
    assert {each.alike for each in plan.disturbances} == {()}


def saving(*more: tuple[Point, int], handler: str = "save+10 7f") -> Points:
    """Return a rank that makes a file and writes it, then does more, and meets another."""
    calls = ((io("a", "open"), 10), (io("a", "write"), 10), *more, (ALL_REDUCE, 20))
    made, *others = passed(0, *calls)
    points = {0: (replace(made, makes=True), *others), 1: passed(1, (ALL_REDUCE, 20))}
    return on_its_way(points, *[handler] * (len(calls) - 1), "")


def test_a_write_that_may_leave_a_torn_file_fails_by_itself() -> None:
    """When the open fails, the file from before stays."""
    assert failing(saving()) == [("a", "open"), ("a", "write")]


@pytest.mark.parametrize("call", ["rename", "unlink"])
def test_a_write_to_a_file_that_does_not_stay_leaves_nothing_torn(call: str) -> None:
    """Nobody would load it."""
    found = failing(saving((io("a", call), 11)))
    assert ("a", "open") in found
    assert ("a", "write") not in found


def test_a_write_whose_failure_nothing_handles_needs_no_run_of_its_own() -> None:
    """All hear of it, or wait for the rank, as if the open had failed."""
    assert failing(saving(handler="test")) == [("a", "open")]


def test_failures_that_nothing_handles_are_one() -> None:
    """Both end the test of this rank, before the same operation of the others."""
    assert failing(two_writes("test", "test")) == [("a", "write")]


@pytest.mark.parametrize(
    "paths", [("save+10 7f", "save+40 7f"), ("save+10 7f", "save+10 aa"), ("test", "save+10 7f")]
)
def test_failures_that_meet_different_handlers_are_two(paths: tuple[str, str]) -> None:
    """Or one handler that is called from elsewhere: something else follows."""
    assert failing(two_writes(*paths)) == [("a", "write"), ("b", "write")]


def test_failures_whose_way_is_not_known_are_two() -> None:
    """One at each line."""
    assert failing(two_writes("", "")) == [("a", "write"), ("b", "write")]


def test_failures_of_other_threads_are_one_for_each_line() -> None:
    """Nobody knows who waits for which."""
    points = two_writes("run+10 7f", "run+10 7f", is_main=False)
    assert failing(points) == [("a", "write"), ("b", "write")]


def test_errors_of_different_classes_are_two() -> None:
    """A handler asks for the class."""
    first = passed(0, (io("a", "write"), 10), (io("b", "unlink"), 11), (ALL_REDUCE, 20))
    points = on_its_way({0: first, 1: passed(1, (ALL_REDUCE, 20))}, "x+1 7f", "x+1 7f", "")
    assert sorted(failing(points)) == [("a", "write"), ("b", "unlink")]


def test_a_failure_before_another_operation_is_another() -> None:
    """There the others wait somewhere else."""
    barrier = Point("collective", "barrier")
    first = passed(0, (io("a"), 10), (ALL_REDUCE, 20), (io("b"), 11), (barrier, 30))
    others = passed(1, (ALL_REDUCE, 20), (barrier, 30))
    points = on_its_way({0: first, 1: others}, "test", "", "test", "")
    assert failing(points) == [("a", "stat"), ("b", "stat")]


def test_of_the_rounds_of_a_loop_the_first_and_the_last_are_disturbed() -> None:
    """Each ends at the same line."""
    rounds = [each for n in range(6) for each in ((io(f"s{n}x", "write"), 10), (ALL_REDUCE, 20))]
    points = {0: passed(0, *rounds), 1: passed(1, *[(ALL_REDUCE, 20)] * 6)}
    ways = ["test" if n % 2 == 0 else "" for n in range(12)]
    assert failing(on_its_way(points, *ways)) == [("s0x", "write"), ("s5x", "write")]


def test_where_others_see_the_files_the_last_failure_is_tried_as_well() -> None:
    """They find more of them by then."""
    first = passed(0, (io("a", "write"), 10), (io("b", "write"), 11), (ALL_REDUCE, 20))
    others = passed(1, (ALL_REDUCE, 20), (io("a", "read"), 30))
    points = on_its_way({0: first, 1: others}, "test", "test", "")
    assert [each for each in failing(points) if each[1] == "write"] == [
        ("a", "write"),
        ("b", "write"),
    ]


def test_what_nothing_handles_need_not_fail_from_then_on() -> None:
    """The rank is gone."""
    found = of_kind(plan_sweep(two_writes("test", "x+1 7f"), ["fails"], size=2), "fails")
    assert [each.fault.at.name for each in found if each.fault.at.onwards] == ["*/ckpt/b"]


def test_failures_after_the_last_operation_come_first() -> None:
    """Operations that DDP launches in C++ are no points, so others may still wait for the rank."""
    points = alike(2, (io("a", "write"), 10), (ALL_REDUCE, 20), (io("b", "write"), 30))
    assert [each for each, _ in failing(points)][:2] == ["b", "a"]


def test_the_order_of_kinds_is_that_of_what_they_have_found_per_second() -> None:
    """A plan begins with the kind of choice that shows most; a fifth more is no difference."""
    measured = sorted(MEASURED)
    rates = [MEASURED[each][0] / MEASURED[each][1] for each in measured]
    late = [b for a, b in itertools.combinations(range(len(rates)), 2) if rates[b] > 1.2 * rates[a]]
    assert [measured[each].name for each in late] == []


def begun(*, has_rare: bool) -> tuple[set[str], tuple[LeftOut, ...]]:
    """Return the kinds that are run of a plan, and what is left out.

    Failures of one rank have shown nothing, and hash seeds have hardly been tried.
    """
    measured = {Weight.FAILS_ALONE: (0, 900), Weight.HASH_SEED: (0, 1), Weight.STALE: (1, 900)}
    plan = plan_sweep(primary_saves(), size=3)
    sweep = begin(plan, lambda _: True, has_rare=has_rare, measured=measured)
    return {each.choice for each in sweep.rest}, sweep.left_out


def test_kinds_that_have_found_nothing_in_any_corpus_are_left_out_and_counted() -> None:
    """Others are not, nor those that were not measured long enough."""
    kinds_run, left_out = begun(has_rare=False)
    assert "fails_alone" not in kinds_run
    assert {"stale", "hash_seed"} <= kinds_run
    assert [(each.reason, each.family) for each in left_out] == [("rare", "fails")]


def test_kinds_that_have_found_nothing_are_run_if_their_family_is_named() -> None:
    """Nothing is left out then."""
    kinds_run, left_out = begun(has_rare=True)
    assert {"fails_alone", "stale", "hash_seed"} <= kinds_run
    assert left_out == ()


def test_a_plan_runs_kinds_in_their_order_within_a_turn() -> None:
    """The first choice of each class comes before the second of any."""
    found = plan_sweep(primary_saves(), size=3).disturbances
    keys = [(each.turn, Weight[each.choice.upper()]) for each in found]
    assert keys == sorted(keys)


def test_a_plan_is_the_same_each_time() -> None:
    """A sweep can be compared with an earlier one."""
    assert plan_sweep(many(30), size=4) == plan_sweep(many(30), size=4)


def test_nothing_is_planned_twice() -> None:
    """A folder that is listed at several lines is shuffled once."""
    points = alike(2, (io("d", "listdir"), 10), (io("d", "listdir"), 20), (ALL_REDUCE, 30))
    faults = [repr(each.fault) for each in plan_sweep(points, size=2).disturbances]
    assert len(faults) == len(set(faults))


def test_a_rank_without_points_is_a_role_and_is_left_alone() -> None:
    """There is nothing to disturb it at."""
    plan = plan_sweep({0: passed(0, (ALL_REDUCE, 10))}, size=2)
    assert plan.roles == ((0,), (1,))
    assert {each.fault.ranks for each in plan.disturbances} == {(0,)}


def test_ranks_that_only_state_values_get_other_hashes() -> None:
    """The collectives of DDP are launched by C++, and are no points."""
    plan = plan_sweep({0: (), 1: ()}, size=2, has_values=True)
    assert {each.fault.kind for each in plan.disturbances} == {"hash_seed"}


def test_a_test_without_points_has_an_empty_plan() -> None:
    """There is nothing to sweep."""
    assert plan_sweep({}, size=2).disturbances == ()


# What is left


def ran(disturbance: Disturbance, outcome: RunOutcome, **more: Any) -> DisturbedRun:  # noqa: ANN401
    """Return a run with an outcome."""
    return DisturbedRun(disturbance=disturbance, outcome=outcome, **more)


def onwards(disturbance: Disturbance) -> Disturbance:
    """Return the disturbance that fails from then on."""
    fault = disturbance.fault
    return replace(disturbance, fault=replace(fault, at=replace(fault.at, onwards=True)))


@pytest.mark.parametrize("outcome", ["left waiting", "told"])
def test_a_call_whose_failure_was_not_survived_need_not_fail_onwards(outcome: RunOutcome) -> None:
    """Nobody tried again."""
    first, *rest = plan_sweep(many(20), ["fails"], size=2).disturbances
    assert onwards(first) in rest
    assert onwards(first) not in order_rest(rest, [ran(first, outcome)])


@pytest.mark.parametrize("again", [True, None])
def test_a_call_that_may_have_been_tried_again_still_fails_onwards(again: bool | None) -> None:
    """It worked, and might not have."""
    first, *rest = plan_sweep(many(20), ["fails"], size=2).disturbances
    assert order_rest(rest, [ran(first, "survived", again=again)]) == tuple(rest)


def test_a_call_that_was_not_tried_again_need_not_fail_onwards() -> None:
    """The rank never came to it again, so nothing else would have failed."""
    first, *rest = plan_sweep(many(20), ["fails"], size=2).disturbances
    left = order_rest(rest, [ran(first, "survived", again=False)])
    assert {*rest} - {*left} == {onwards(first)}


def longer(disturbance: Disturbance) -> Disturbance:
    """Return the disturbance that holds the rank for seconds."""
    fault = disturbance.fault
    return replace(disturbance, fault=replace(fault, params={**fault.params, "min_s": 3.0}))


@pytest.mark.parametrize(("is_pressed", "is_run"), [(False, False), (True, True), (None, True)])
def test_a_rank_is_held_for_seconds_only_if_others_are_pressed(
    is_pressed: bool | None, is_run: bool
) -> None:
    """They polled, or had timeouts of seconds; else they wait as long as it takes."""
    first, *rest = plan_sweep(primary_saves(), ["late"], size=3).disturbances
    assert longer(first) in rest
    left = order_rest(rest, [ran(first, "survived", is_pressed=is_pressed)])
    assert (longer(first) in left) == is_run


def late_at_collectives() -> tuple[list[Disturbance], list[Disturbance]]:
    """Return the holds at all collectives, of each of two roles, and those at single ones."""
    points = {0: passed(0, (io("a"), 5), ALL_REDUCE, ALL_REDUCE), 1: passed(1, *[ALL_REDUCE] * 2)}
    found = plan_sweep(points, ["late"], size=2).disturbances
    return [e for e in found if e.fault.at.onwards], [e for e in found if not e.fault.at.onwards]


def test_a_rank_is_held_at_all_its_collectives_at_once() -> None:
    """However late it is, they meet the same ones; each role first, each line for itself later."""
    at_all, single = late_at_collectives()
    assert [each.fault.ranks for each in at_all] == [(0,), (1,)]
    assert {each.fault.ranks for each in single} == {(0,), (1,)}


@pytest.mark.parametrize(
    "function",
    [
        "multiprocessing.connection:Connection.recv",
        "concurrent.futures:Future.set_result",
        "threading:Thread.run",
        "train:Writer.run",
    ],
)
def test_a_thread_beside_the_main_one_is_held(function: str) -> None:
    """Its rank goes on, and may act otherwise than the ranks whose threads are through."""
    answer = Point("call", function)
    of_rank = passed(1, ALL_REDUCE, answer, ALL_REDUCE)
    aside = tuple(replace(e, is_main=e.point.point != "call") for e in of_rank)
    points = {0: passed(0, ALL_REDUCE, ALL_REDUCE), 1: aside}
    holds = [e for e in plan_sweep(points, ["late"], size=2).disturbances if e.fault.at == answer]
    assert [(each.fault.ranks, each.choice) for each in holds] == [((1,), "late_beside")]
    in_main = plan_sweep({**points, 1: of_rank}, ["late"], size=2).disturbances
    assert not [each for each in in_main if each.fault.at == answer]


@pytest.mark.parametrize(
    "function", ["multiprocessing.process:BaseProcess.start", "subprocess:Popen.__init__"]
)
def test_a_process_that_a_rank_starts_is_held(function: str) -> None:
    """Its rank goes on; of a line in a loop the first and the last process are held."""
    start = Point("call", function)
    points = alike(2, ALL_REDUCE, *[(start, 20)] * 3)
    found = plan_sweep(points, ["late"], size=2).disturbances
    holds = [each.fault for each in found if each.fault.at.name == function]
    assert [each.params["what"] for each in holds] == ["child", "child"]
    assert [each.at.nth for each in holds] == [1, 3]


def test_a_rank_is_held_at_single_collectives_only_if_that_went_wrong() -> None:
    """Of a hang it is to be known where it begins."""
    (first, second), single = late_at_collectives()
    both = [ran(first, "survived"), ran(second, "survived")]
    assert order_rest(single, both) == ()
    assert {*order_rest(single, both[:1])} == {e for e in single if e.role == second.role}
    assert {*order_rest(single, [ran(first, "hung"), both[1]])} == {
        e for e in single if e.role == first.role
    }


def test_who_decides_about_another_is_waited_for() -> None:
    """Several worlds run at a time."""
    once, *rest = plan_sweep(many(20), ["fails"], size=2).disturbances
    other = next(each for each in rest if each.class_ != once.class_)
    assert order_rest([onwards(once)], [], [once]) == ()
    assert order_rest([onwards(once)], [], [other]) == (onwards(once),)


def in_a_loop() -> list[Disturbance]:
    """Return the disturbances of one line that writes many files, and of another."""
    loop = [each for n in range(9) for each in ((io(f"s{n}x", "write"), 10), (ALL_REDUCE, 20))]
    first = passed(0, *loop, (io("meta", "write"), 15), (ALL_REDUCE, 20))
    points = {0: first, 1: passed(1, *[(ALL_REDUCE, 20)] * 10)}
    return list(plan_sweep(points, ["fails"], size=2).disturbances)


def test_a_class_that_was_seen_to_be_weak_is_disturbed_no_more() -> None:
    """Its other points show the same."""
    first, *rest = in_a_loop()
    assert first.passed.where in {each.passed.where for each in rest}
    ordered = order_rest(rest, [ran(first, "left waiting")])
    assert {each.passed.where.line for each in ordered if each.passed.where} == {15}


@pytest.mark.parametrize("outcome", ["survived", "not reached", "split"])
def test_a_class_that_was_not_seen_to_be_weak_is_disturbed_at_its_other_end(
    outcome: RunOutcome,
) -> None:
    """The last round of a loop may differ."""
    first, *rest = in_a_loop()
    assert first.passed.where in {e.passed.where for e in order_rest(rest, [ran(first, outcome)])}


def test_what_is_at_the_line_of_a_weakness_comes_last() -> None:
    """A hang takes seconds, and one witness is enough."""
    first = passed(0, (io("a", "write"), 10), ALL_REDUCE, (io("b", "unlink"), 10), (BATCH, 30))
    first = (*first, *passed(0, (io("c"), 40), (Point("collective", "barrier"), 50)))
    points = {0: first, 1: passed(1, ALL_REDUCE, (Point("collective", "barrier"), 50))}
    plan = list(plan_sweep(points, ["fails"], size=2).disturbances)
    ordered = order_rest(plan[1:], [ran(plan[0], "left waiting")])
    lines = [each.passed.where.line for each in ordered if each.passed.where]
    assert plan[0].passed.where is not None
    assert lines[-1] == plan[0].passed.where.line
    assert len({*lines}) > 1


def through_a_library() -> list[Disturbance]:
    """Return failures of one way, of which two go through functions of a library."""
    first = passed(0, (io("a", "write"), 10), (io("b", "write"), 11), (ALL_REDUCE, 20))
    points = {0: first, 1: passed(1, (ALL_REDUCE, 20))}
    found = on_its_way(points, "test", "Path.mkdir|test", "")
    return list(plan_sweep(found, ["fails"], size=2).disturbances)


@pytest.mark.parametrize(
    ("outcome", "is_run"), [("told", False), ("hung", False), ("survived", True)]
)
def test_what_goes_through_a_library_is_run_if_the_first_was_survived(
    outcome: RunOutcome, is_run: bool
) -> None:
    """A library may swallow an error; one that is heard of is as any other."""
    first, *rest = through_a_library()
    assert len(rest) == 1
    assert (order_rest(rest, [ran(first, outcome)]) == tuple(rest)) == is_run


def held_alone(name: str) -> list[bool]:
    """Return for each hold at a collective that two ranks pass twice whether it lasts seconds."""
    points = {
        rank: tuple(
            RecordedPoint(rank, Point("collective", name, nth), nth, where=Place("t.py", nth, "t"))
            for nth in (1, 2)
        )
        for rank in range(2)
    }
    found = (each.fault for each in plan_sweep(points, size=2).disturbances)
    return [
        "min_s" in each.params for each in found if each.kind == "hold" and each.at.name == name
    ]


def test_a_sweep_holds_a_rank_for_seconds_before_a_monitored_barrier() -> None:
    """Programs call it so that it fails if a rank is late by more than its timeout."""
    assert any(held_alone("monitored_barrier"))
    assert held_alone("barrier")
    assert not any(held_alone("barrier"))


def test_a_disturbance_says_which_kind_of_choice_it_is() -> None:
    """So the sweeps of a corpus show what each kind of choice costs and finds."""
    found = plan_sweep(primary_saves(), size=3).disturbances
    kinds = {(each.choice, each.fault.kind) for each in found}
    assert {("late_at_shared_change", "hold"), ("stale", "stale_files")} <= kinds
