"""What a sweep disturbs, in which order: from points written by hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from pytest_multihost.model.fault import Point
from pytest_multihost.model.sweep import (
    Disturbance,
    DisturbedRun,
    RecordedPoint,
    RunOutcome,
    SweepPlan,
)
from pytest_multihost.model.verdict import Place
from pytest_multihost.sweep import order_rest, plan_sweep

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
    """Late, fails and differs; neither errors nor deaths, which are to be asked for."""
    plan = plan_sweep(primary_saves(), size=3)
    assert {each.family for each in plan.disturbances} == {"late", "fails", "differs"}


def test_only_wanted_families_are_planned() -> None:
    """Whoever asks for late alone gets late alone."""
    plan = plan_sweep(primary_saves(), ["late"], size=3)
    assert kinds(plan) == ["hold"]


def test_errors_and_deaths_are_planned_on_request() -> None:
    """An operation raises; a process dies at any point."""
    plan = plan_sweep(primary_saves(), ["errors", "killed"], size=3)
    assert set(kinds(plan)) == {"fails", "kill"}
    assert {each.passed.point.point for each in of_kind(plan, "fails")} == {"collective"}


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


def test_a_rank_is_not_held_at_a_file_of_its_own_before_all_else_has_been_tried() -> None:
    """Nobody sees whether it is late there or at its next operation."""
    points = {rank: passed(rank, (io(f"own-{rank}"), 10), (ALL_REDUCE, 20)) for rank in range(2)}
    held = of_kind(plan_sweep(points, ["late"], size=2), "hold")
    assert [each.passed.point.point for each in held[:2]] == ["collective"] * 2
    assert held[-1].passed.point.point == "io"


def test_a_folder_that_another_rank_moves_concerns_who_reads_in_it() -> None:
    """The rename commits all that is below."""
    mover = passed(0, (io("step-1", "rename"), 10), (ALL_REDUCE, 40))
    reader = passed(1, (io("step-1/meta", "open"), 20), (ALL_REDUCE, 40))
    held = of_kind(plan_sweep({0: mover, 1: reader}, ["late"], size=2), "hold")
    assert {each.passed.point.point for each in held[:2]} == {"io"}


def test_what_one_rank_has_written_is_hidden_from_who_looks_for_it() -> None:
    """Not from the writer, and not what a rank has written itself."""
    found = of_kind(plan_sweep(primary_saves(), size=3), "stale_files")
    assert {each.fault.ranks for each in found} == {(1,), (2,)}
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


def test_drawing_a_batch_fails_on_request_only() -> None:
    """Data in memory never fail; of data on disks the calls on files do."""
    points = alike(2, *[(BATCH, 10)] * 4, (ALL_REDUCE, 20))
    assert kinds(plan_sweep(points, ["fails"], size=2)) == []
    found = of_kind(plan_sweep(points, ["errors"], size=2), "raise_at")
    assert "OSError" in {each.fault.params["error"] for each in found}


def test_the_clocks_of_the_last_rank_and_of_the_first_are_wrong() -> None:
    """One may decide, and the others compare."""
    plan = plan_sweep(many(20), ["differs"], size=4)
    ranks = [each.fault.ranks for each in of_kind(plan, "clock_skew")]
    assert (ranks[0], set(ranks)) == ((3,), {(0,), (3,)})


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
    assert {each.fault.ranks for each in found} == {(0,), (1,), (2,)}


@pytest.mark.parametrize(
    "path",
    [
        "/proc/self/status",
        "/dev/urandom",
        "/venv/lib/python3.12/site-packages/torch/version.py",
        "*/torchinductor_me/fx/a",
        "*/.pytest_multihost/x/rank-0.log",
        "*/train.py",
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


def test_the_first_and_the_last_of_a_class_come_before_the_rest() -> None:
    """What is between them likely shows the same."""
    loop = [(io(f"s{index}x", "write"), 10) for index in range(9)]
    points = {0: passed(0, *loop, (ALL_REDUCE, 20)), 1: passed(1, (ALL_REDUCE, 20))}
    found = of_kind(plan_sweep(points, ["fails"], size=2), "fails")
    once = [each.fault.at.name for each in found if not each.fault.at.onwards]
    assert once[:2] == ["*/ckpt/s0x", "*/ckpt/s8x"]
    assert len(once) == 9


def test_points_of_one_span_and_line_are_one_class() -> None:
    """An operation ends the span."""
    plan = plan_sweep(
        alike(1, (io("a"), 10), (io("b"), 10), (ALL_REDUCE, 20), (io("a"), 10)), ["fails"], size=1
    )
    classes = {each.passed.point: each.class_ for each in plan.disturbances}
    assert classes[io("a")] == classes[io("b")] != classes[io("a", nth=2)]


def test_a_plan_is_the_same_each_time() -> None:
    """Shards of it are made in different processes."""
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


def test_a_test_without_points_has_an_empty_plan() -> None:
    """There is nothing to sweep."""
    assert plan_sweep({}, size=2).disturbances == ()


# What is left


def ran(disturbance: Disturbance, outcome: RunOutcome) -> DisturbedRun:
    """Return a run with an outcome."""
    return DisturbedRun(disturbance=disturbance, outcome=outcome)


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


def test_a_call_whose_failure_was_survived_still_fails_onwards_in_its_turn() -> None:
    """It was tried again, and worked."""
    first, *rest = plan_sweep(many(20), ["fails"], size=2).disturbances
    assert order_rest(rest, [ran(first, "survived")]) == tuple(rest)


def in_a_loop() -> list[Disturbance]:
    """Return the disturbances of one line that writes many files, and of another."""
    loop = [(io(f"s{index}x", "write"), 10) for index in range(9)]
    first = passed(0, *loop, (io("meta", "write"), 15), (ALL_REDUCE, 20))
    points = {0: first, 1: passed(1, (ALL_REDUCE, 20))}
    return list(plan_sweep(points, ["fails"], size=2).disturbances)


def test_what_is_like_a_weakness_that_was_seen_comes_last() -> None:
    """A hang takes seconds, and one witness is enough."""
    first, *rest = in_a_loop()
    ordered = order_rest(rest, [ran(first, "left waiting")])
    lines = [each.passed.where.line for each in ordered if each.passed.where]
    assert lines == sorted(lines, reverse=True)
    assert {10, 15} == set(lines)


def test_a_line_that_was_seen_twice_to_be_weak_is_disturbed_no_more() -> None:
    """Its other points show the same."""
    first, *rest = in_a_loop()
    second = next(each for each in rest if each.passed.where == first.passed.where)
    ordered = order_rest(rest, [ran(first, "left waiting"), ran(second, "left waiting")])
    assert {each.passed.where.line for each in ordered if each.passed.where} == {15}
