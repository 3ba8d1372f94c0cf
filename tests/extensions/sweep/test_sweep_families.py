"""The families of disturbances: each is one object, which all that knows of families asks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_multihost import faults
from pytest_multihost.extensions.sweep.choices import Choice, SweptRole, UndisturbedRun, Weight
from pytest_multihost.extensions.sweep.families import (
    DEFAULT_FAMILIES,
    FAMILIES,
    REMOVED,
    FamilyEntry,
)
from pytest_multihost.extensions.sweep.families.family import SweepFamily
from pytest_multihost.extensions.sweep.mendings import LOST_RANKS, mending_of_kind
from pytest_multihost.extensions.sweep.options import parse_families
from pytest_multihost.extensions.sweep.own_kinds import with_words
from pytest_multihost.extensions.sweep.plan import plan_sweep
from pytest_multihost.extensions.sweep.result import Disturbance, DisturbedRun
from pytest_multihost.extensions.sweep.weaknesses import find_weaknesses
from pytest_multihost.extensions.sweep.words import disturbance_text, mending
from pytest_multihost.faults.kind import FaultKind
from pytest_multihost.testing import (
    ErrorPath,
    Fault,
    Place,
    Point,
    RecordedPoint,
    SettingError,
    to_json,
)

pytestmark = pytest.mark.unit

DOCS = Path(__file__).parents[3] / "docs"
FAMILY_NAMES = tuple(FAMILIES)
STOP, LOSS = "train:stop", "train:loss"


def passed(rank: int, *points: Point) -> tuple[RecordedPoint, ...]:
    """Return what a rank passes, each point on a line of its own."""
    found, counts, span = [], dict[Point, int](), 0
    for line, point in enumerate(points, 10):
        counts[point] = nth = counts.get(point, 0) + 1
        where, way = Place("train.py", line, "train"), ErrorPath(handler="save", at=f"{line} 7f")
        at = replace(point, nth=nth)
        found.append(RecordedPoint(rank, at, span, where=where, error_path=way))
        span += point.point == "collective"
    return tuple(found)


def io(name: str, call: str) -> Point:
    """Return a call on a file."""
    return Point("io", f"*/ckpt/{name}", call=call)


ALL_REDUCE, SEND = Point("collective", "all_reduce"), Point("collective", "send")
BATCH = Point("batch", "torch.utils.data:DataLoader")
CALLS = Point("call", STOP), Point("call", LOSS)
POINTS = {
    0: passed(0, io("a", "write"), ALL_REDUCE, BATCH, BATCH, *CALLS, ALL_REDUCE),
    1: passed(1, ALL_REDUCE, io("a", "stat"), io("", "listdir"), SEND, *CALLS),
    2: passed(2, ALL_REDUCE, io("a", "read"), Point("sync_point", "saved"), *CALLS),
}
RUN = UndisturbedRun.of(POINTS, 3, decisions=[STOP], values=[LOSS])


def planned(*families: str) -> tuple[Disturbance, ...]:
    """Return the plan for the points above."""
    return plan_sweep(POINTS, families, size=3, decisions=[STOP], values=[LOSS]).disturbances


def known(family: SweepFamily) -> Iterator[Fault]:
    """Yield all faults that a family knows for the points above, one by one."""
    for rank in RUN.points:
        yield from family.faults_of(rank, RUN)
    for each in RUN.of_the_test:
        yield from family.faults_at(each, RUN)


@pytest.mark.parametrize("name", FAMILY_NAMES)
def test_a_family_is_listed_under_its_own_name(name: str) -> None:
    """The list has what options say of it; the rest is loaded."""
    assert FAMILIES[name].load().name == FAMILIES[name].name == name


@pytest.mark.parametrize("name", FAMILY_NAMES)
def test_a_family_is_described_in_the_documentation(name: str) -> None:
    """In the table of what is planned."""
    assert f"\n| `{name}` |" in (DOCS / "sweep.md").read_text(encoding="utf-8")


def test_what_is_done_without_being_asked_for_is_what_the_documentation_says() -> None:
    """The others are asked for by name."""
    text = (DOCS / "sweep.md").read_text(encoding="utf-8")
    assert f"with `{','.join(DEFAULT_FAMILIES)}`" in text


@pytest.mark.parametrize("name", FAMILY_NAMES)
def test_a_plan_chooses_among_what_is_counted(name: str) -> None:
    """But for a rank that is held at all collectives in one run, which saves runs."""
    every = set(map(repr, known(FAMILIES[name].load())))
    plan = [each.fault for each in planned(name)]
    at_once = [each for each in plan if each.kind == "hold" and each.at.onwards]
    assert plan
    assert {repr(each) for each in plan if each not in at_once} <= every
    assert len(at_once) == (1 if name == "late" else 0)


@pytest.mark.parametrize("name", FAMILY_NAMES)
def test_the_number_of_all_faults_is_counted(name: str) -> None:
    """Whatever is remembered of points that are alike."""
    family = FAMILIES[name].load()
    assert family.count(RUN) == len(list(known(family)))
    by_hand = {"late": 2 * 18, "fails": 2 * 4}
    assert family.count(RUN) == by_hand.get(name, family.count(RUN))


@pytest.mark.parametrize("each", planned(*FAMILY_NAMES), ids=lambda each: repr(each.fault))
def test_whatever_is_planned_has_words_and_a_mending(each: Disturbance) -> None:
    """By the kind of its fault, and by its family."""
    assert "had the fault" not in disturbance_text(each)
    assert mending(DisturbedRun(disturbance=each, outcome="hung")).advice


FLOOD = FaultKind(
    name="hold",
    perform=lambda _: None,
    sentence="{who} got {until} packets {at}",
    mending="lost-ranks",
)


def _with_words(kind: FaultKind) -> Disturbance:
    plan = with_words(plan_sweep(POINTS, ["late"], size=3), {kind.name: kind})
    return next(each for each in plan.disturbances if not each.fault.at.onwards)


def test_the_words_for_a_plugins_fault_are_those_of_its_kind() -> None:
    """With its own parameters; sweep.json has the sentence, and not its parts."""
    each = _with_words(FLOOD)
    run = DisturbedRun(disturbance=each, outcome="hung")
    assert re.fullmatch(r"rank \d got others-wait packets before its .+", disturbance_text(each))
    assert mending_of_kind(run) is LOST_RANKS
    assert "words" not in to_json(each)


@pytest.mark.parametrize("sentence", ["{whom} got packets", "{", "{who.name}", ""])
def test_a_plugins_fault_without_a_fitting_sentence_is_told_as_it_is_written(sentence: str) -> None:
    """The report goes on."""
    told = disturbance_text(_with_words(replace(FLOOD, sentence=sentence, mending="none")))
    assert re.match(r"rank \d had the fault faults\.hold\(", told)


def _paused(role: SweptRole) -> Iterator[Choice]:
    for each in role.operations:
        fault = faults.delay(rank=each.rank, seconds=3.0, at=each.point)
        yield Choice(0, Weight.LATE_ALONE, fault, each, "paused")


PAUSED = SweepFamily(
    name="paused",
    plan=_paused,
    faults_at=lambda each, _: [faults.delay(rank=each.rank, seconds=3.0, at=each.point)],
    mildness=-1,
    mend=lambda _: LOST_RANKS,
)


def test_a_family_of_ones_own_is_one_object(monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked for by its name, planned, counted, mended in its own way and chosen as witness."""
    entry = FamilyEntry(name="paused", help="the rank sleeps", load=lambda: PAUSED)
    monkeypatch.setitem(FAMILIES, "paused", entry)  # type: ignore[arg-type] # a dict
    assert parse_families("paused,late") == ("late", "paused")
    plan = plan_sweep(POINTS, ["paused"], size=3)
    assert {each.family for each in plan.disturbances} == {"paused"}
    assert plan.brute_force == 18
    first = plan.disturbances[0]
    assert disturbance_text(first) == "rank 0 was delayed by 3 s before its all_reduce"
    late = DisturbedRun(disturbance=planned("late")[0], outcome="hung")
    run = replace(late, disturbance=first)
    assert mending(run) == LOST_RANKS
    [weakness] = find_weaknesses([late, run])
    assert weakness.witness == run


@pytest.mark.parametrize("name", REMOVED)
def test_a_family_of_earlier_versions_says_what_to_use(name: str) -> None:
    """It names the fault, or the option."""
    with pytest.raises(SettingError) as found:
        parse_families(f"late,{name}")
    assert REMOVED[name] in str(found.value)
