"""From runs to weaknesses: reduced, repeated, accepted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from sweeps import SOUND

from pytest_multihost.extensions.sweep.acceptances import apply_acceptances
from pytest_multihost.extensions.sweep.options import Show
from pytest_multihost.extensions.sweep.rating.weigh import rate_all
from pytest_multihost.extensions.sweep.result import (
    Disturbance,
    DisturbedRun,
    UnsteadyRun,
    WaitEnd,
)
from pytest_multihost.extensions.sweep.weaknesses import due_repeats, find_weaknesses
from pytest_multihost.extensions.sweep.words import survives_text
from pytest_multihost.testing import Acceptance, Fault, OperationName, Place, Point, RecordedPoint

pytestmark = pytest.mark.unit

NODEID = "tests/test_ckpt.py::test_save[4-gloo]"
SAVE = Place("src/ckpt.py", 20, "Saver.save", "path.write_text(text)")
BARRIER = Place("src/ckpt.py", 40, "Saver.save", "dist.barrier()")


def disturbance(number: int = 1, *, family: str = "fails", **params: Any) -> Disturbance:  # noqa: ANN401
    """Return one of many disturbances."""
    kind = {"late": "hold", "differs": "short_data", "fails": "fails"}.get(family, family)
    point = Point("io", f"*/f{number}", call="write", onwards=params.pop("onwards", False))
    passed = RecordedPoint(0, point, 0)
    return Disturbance(family, Fault(kind, (0,), point, params), (0,), passed, 0)


def weak(number: int = 1, *, family: str = "fails", **more: Any) -> DisturbedRun:  # noqa: ANN401
    """Return a run that shows a weakness."""
    disturbed = more.pop("disturbance", None) or disturbance(number, family=family)
    operation = OperationName("barrier", number, (0, 1))
    found = {"culprit": SAVE, "waiting": BARRIER, "operation": operation, **more}
    return DisturbedRun(disturbance=disturbed, outcome="left waiting", **found)


def survived(number: int) -> DisturbedRun:
    """Return a run that shows none."""
    return DisturbedRun(disturbance=disturbance(number), outcome="survived")


# Weaknesses


def test_runs_with_the_same_lines_and_operation_show_one_weakness() -> None:
    """The operation's number may differ."""
    [found] = find_weaknesses([weak(1), survived(2), weak(3)])
    assert found.shown_by == (0, 2)


@pytest.mark.parametrize(
    "other",
    [{"culprit": BARRIER}, {"waiting": SAVE}, {"operation": OperationName("send", 1, (0, 1))}],
    ids=["culprit", "waiting", "operation"],
)
def test_runs_that_differ_in_a_line_or_operation_show_two(other: dict[str, Any]) -> None:
    """Each is to be mended at its own place."""
    assert len(find_weaknesses([weak(1), weak(2, **other)])) == 2


def test_runs_that_were_survived_told_split_or_not_reached_show_none() -> None:
    """Nobody waits for what never comes."""
    outcomes = ("survived", "told", "split", "not reached")
    assert find_weaknesses([replace(weak(), outcome=each) for each in outcomes]) == ()  # type: ignore[arg-type]


def test_the_witness_is_the_mildest_disturbance() -> None:
    """Late before differs before fails, and once before onwards."""
    runs = [
        weak(3, disturbance=disturbance(3, onwards=True)),
        weak(4, family="fails"),
        weak(5, family="differs"),
        weak(6, disturbance=disturbance(6, family="late", min_s=3.0)),
        weak(7, family="late"),
    ]
    for last in range(len(runs), 0, -1):
        [found] = find_weaknesses(runs[:last])
        assert found.witness == runs[last - 1]


def test_of_equally_mild_disturbances_the_shortest_run_is_the_witness() -> None:
    """It is repeated most quickly."""
    [found] = find_weaknesses([weak(1, seconds=3.0), weak(2, seconds=1.0)])
    assert found.witness.seconds == 1.0


def test_lines_of_a_library_are_weaknesses_of_their_own() -> None:
    """One line of the user's code can fail at many places of a library."""
    inside = [Place("orbax/atomicity.py", line, "create") for line in (7, 7, 9)]
    runs = [weak(number, library=each) for number, each in enumerate(inside, 1)]
    assert [each.shown_by for each in find_weaknesses(runs)] == [(0, 1), (2,)]


# Repeats


def test_a_weakness_says_how_often_its_witness_showed_it_again() -> None:
    """Shown 2 of 3 times."""
    again = [weak(1), weak(1), replace(survived(1))]
    [found] = find_weaknesses([weak(1)], again)
    assert found.repeated == (3, 2)


def test_repeats_of_other_witnesses_do_not_count() -> None:
    """Each has its own."""
    [found] = find_weaknesses([weak(1)], [weak(2)])
    assert found.repeated == (0, 0)


def test_a_repeat_that_shows_another_waiting_line_shows_the_weakness_again() -> None:
    """Of several ranks that wait it depends on timing which is told."""
    [found] = find_weaknesses([weak(1)], [weak(1, waiting=SAVE)])
    assert found.repeated == (1, 1)


def test_a_witness_that_does_not_repeat_each_time_gives_way() -> None:
    """To the mildest run that no repeat has failed to repeat, and that is said."""
    runs = [weak(1), weak(2, family="late")]
    [found] = find_weaknesses(runs, [weak(1), runs[1], replace(runs[1], outcome="survived")])
    assert found.witness == runs[0]
    assert (found.repeated, found.unsteady) == ((1, 1), (UnsteadyRun(1, (2, 1)),))


def test_if_none_repeats_each_time_the_best_is_the_witness() -> None:
    """Whatever is milder."""
    runs = [weak(1), weak(2, family="late")]
    missed = [replace(each, outcome="survived") for each in runs]
    [found] = find_weaknesses(runs, [weak(1), *missed])
    assert (found.witness, found.repeated) == (runs[0], (2, 1))


@pytest.mark.parametrize(
    ("proven", "repeats", "confirmed", "fails"),
    [
        (True, [], None, True),
        (False, [], None, False),
        (False, ["hung"], True, True),
        (True, ["survived"], False, False),
    ],
)
def test_what_no_repeat_shows_again_fails_no_test(proven, repeats, confirmed, fails) -> None:  # type: ignore[no-untyped-def]
    """If nothing was repeated, for lack of time, only a proof stands for itself."""
    run = weak(1, is_proven=proven)
    [found] = find_weaknesses([run], [replace(run, outcome=each) for each in repeats])
    assert (found.is_confirmed, found.fails_test) == (confirmed, fails)


def test_witnesses_are_repeated_in_turn_until_each_was_often_enough() -> None:
    """A budget that ends early has shown each at least once again."""
    runs = [weak(1), weak(2, culprit=BARRIER)]
    repeats: list[DisturbedRun] = []
    order = []
    while due := due_repeats(find_weaknesses(runs, repeats), times=2):
        order.append(due[0].witness.disturbance.fault.at.name)
        repeats.append(due[0].witness)
    assert order == ["*/f1", "*/f2", "*/f1", "*/f2"]


# Acceptances


def accepted(**fields: Any) -> Acceptance:  # noqa: ANN401
    """Return an entry for the weakness of `weak`."""
    entry = {"test": "*::test_save", "culprit": "ckpt.py:save", "reason": "one host", **fields}
    return Acceptance(**entry)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"test": NODEID},
        {"test": "tests/test_ckpt.py::test_save"},
        {"culprit": "src/ckpt.py:Saver.save"},
        {"culprit": "ckpt.py: path.write_text(text)"},
        {"waiting": "ckpt.py:dist.barrier()"},
    ],
    ids=["glob", "node id", "all parameters", "qualified", "text", "waiting"],
)
def test_an_acceptance_names_lines_by_function_or_text(fields: dict[str, str]) -> None:
    """Numbers of lines change with every edit."""
    found, unmet = apply_acceptances(find_weaknesses([weak()]), [accepted(**fields)], nodeid=NODEID)
    assert [each.accepted for each in found] == ["one host"]
    assert unmet == ()


@pytest.mark.parametrize(
    "fields",
    [{"culprit": "ckpt.py:load"}, {"culprit": "pt.py:save"}, {"waiting": "ckpt.py:load"}],
    ids=["function", "part of a name", "waiting"],
)
def test_an_acceptance_of_something_else_is_unmet(fields: dict[str, str]) -> None:
    """It no longer occurs, and is told."""
    entry = accepted(**fields)
    found, unmet = apply_acceptances(find_weaknesses([weak()]), [entry], nodeid=NODEID)
    assert [each.accepted for each in found] == [None]
    assert unmet == (entry,)


@pytest.mark.parametrize(
    "end",
    [
        WaitEnd(by="launcher", after_s=0.3),
        WaitEnd(by="timeout", name="gloo's timeout", after_s=1800.0),
        WaitEnd(by="nothing", after_s=7200.0),
        WaitEnd(by="not measured", name="no rank waited"),
        None,
    ],
    ids=lambda end: end.by if end else "none",
)
@pytest.mark.parametrize("show", ["lasting", "all"])
@pytest.mark.parametrize("repeated", [(0, 0), (5, 5), (5, 0)])
def test_an_acceptance_fits_a_weakness_whatever_it_was_rated(
    end: WaitEnd | None, show: Show, repeated: tuple[int, int]
) -> None:
    """A measurement that fails in one run and not in the next makes no entry stale."""
    [found] = find_weaknesses([weak()])
    found = replace(found, repeated=repeated)
    found_all, unmet = apply_acceptances([found], [accepted()], nodeid=NODEID)
    ends = {found.witness.disturbance: end} if end is not None else {}
    [rated] = rate_all(found_all, ends, show)
    result = replace(SOUND, runs=(found.witness,), weaknesses=(rated,))
    assert unmet == ()
    assert not rated.fails_test
    assert "(1 weakness, accepted)" in survives_text(result)


def test_an_acceptance_for_another_test_is_neither_met_nor_unmet() -> None:
    """That test's sweep says."""
    found, unmet = apply_acceptances(
        find_weaknesses([weak()]), [accepted(test="*::test_load")], nodeid=NODEID
    )
    assert ([each.accepted for each in found], unmet) == ([None], ())
