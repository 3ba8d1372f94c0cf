"""How results of the corpus of latent weaknesses are scored, on results made by hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from programs import load_program

PATH = Path(__file__).resolve().parents[2] / "benchmarks" / "latent.py"
NODEID = "fails_saving.py::test_primary_writes"
LINES = {"latent": [12], "waits": [14, 20]}
EXPECTED = {"family": "fails", "ranks": 3, "backend": "gloo", "lines": LINES}
BARRIER = {"rank": 1, "file": "fails_saving.py", "line": 14}
RAISED = {
    "status": "failed",
    "outcome": "failed",
    "ended_by": "harness",
    "duration_s": 0.9,
    "rank_results": [
        {"outcome": "failed", "error": {"file": "fails_saving.py", "line": 12}},
        {"outcome": "collateral", "error": None},
    ],
    "diagnosis": {
        "kind": "raised",
        "culprits": [0],
        "waiting": [2, 1],
        "where": None,
        "places": [BARRIER],
        "divergence": None,
    },
}


@pytest.fixture(scope="module")
def latent() -> ModuleType:
    """benchmarks/latent.py."""
    return load_program(PATH)


def scored(latent: ModuleType, **changes: object) -> Any:  # noqa: ANN401 - of a loaded module
    """Return the score of a rank that has raised while others wait, with some keys changed."""
    return latent.exposed(NODEID, EXPECTED, {**RAISED, **changes})


def test_a_rank_that_fails_while_others_wait_is_exposed(latent: ModuleType) -> None:
    """Who waits for whom is told, and the line that failed counts for more than the barrier."""
    found = scored(latent)
    assert found.is_exposed
    assert found.got == "raised [0] <- [1,2]"
    assert found.named == "latent"


def test_ranks_that_poll_and_are_ended_were_left_waiting(latent: ModuleType) -> None:
    """No diagnosis names them, and they have raised nothing."""
    assert scored(latent, diagnosis=None).is_exposed


def test_a_failure_that_reaches_every_rank_is_not_exposed(latent: ModuleType) -> None:
    """All have ended by themselves."""
    results = [each | {"outcome": "failed"} for each in RAISED["rank_results"]]
    assert not scored(latent, diagnosis=None, ended_by="self", rank_results=results).is_exposed


def test_a_program_that_passes_is_not_exposed(latent: ModuleType) -> None:
    """Nor is one that was not run."""
    passed: Mapping[str, Any] = {"status": "passed", "outcome": "passed", "diagnosis": None}
    assert not scored(latent, **passed, rank_results=[]).is_exposed
    assert not latent.exposed(NODEID, EXPECTED, None).is_exposed


def test_lines_of_other_files_are_not_named(latent: ModuleType) -> None:
    """A library has a line of the same number."""
    assert latent.named([("barrier.py", 14)], "fails_saving.py", LINES) == ""
    assert latent.named([("fails_saving.py", 14)], "fails_saving.py", LINES) == "waits"


DISTURBANCE = {
    "family": "fails",
    "fault": {"kind": "fails"},
    "passed": {
        "rank": 0,
        "point": {"point": "io", "name": "*/metadata.json", "call": "open"},
        "where": {"file": "fails_saving.py", "line": 12},
    },
}
WEAKNESS = {
    "witness": {
        "disturbance": DISTURBANCE,
        "culprit": {"file": "storage.py", "line": 3},
        "waiting": {"file": "fails_saving.py", "line": 14},
    },
    "shown_by": [1],
    "repeated": [5, 5],
    "text": "ranks 1,2 wait in barrier #1 for rank 0, which has failed",
}
SWEEP = {
    "status": "failed",
    "weaknesses": [WEAKNESS],
    "runs": [
        {"disturbance": DISTURBANCE, "outcome": "survived", "seconds": 2.0},
        {"disturbance": DISTURBANCE, "outcome": "left waiting", "seconds": 4.0},
    ],
    "plan": {"brute_force": 48},
    "left_out": [{"reason": "budget", "family": "late", "count": 7}],
    "budget_s": 10.0,
    "duration_s": 12.0,
}


def swept(latent: ModuleType, family: str | None = "fails", **changes: object) -> Any:  # noqa: ANN401 - of a loaded module
    """Return the score of a sweep with one weakness, with some keys changed."""
    return latent.swept(NODEID, {**EXPECTED, "family": family}, {**SWEEP, **changes})


def test_a_sweep_keeps_its_budget_up_to_a_fifth_and_the_tests_own_time(latent: ModuleType) -> None:
    """The own time is that of the runs that the test survives."""
    assert swept(latent, duration_s=14.0).keeps_budget
    assert not swept(latent, duration_s=14.1).keeps_budget


def test_each_kind_of_disturbance_has_its_cost_and_what_it_was_the_first_to_show(
    latent: ModuleType,
) -> None:
    """So the plan can begin with what finds most for its time."""
    assert latent.costs(SWEEP) == {"fails: fails at open": latent.Cost(2, 6.0, 1)}


def test_a_weakness_at_the_line_that_was_disturbed_is_right(latent: ModuleType) -> None:
    """Where a library has failed, the line that called it is marked."""
    found = swept(latent)
    assert (found.word, found.named) == ("found", "latent")
    assert found.witness == "fails: fails rank 0 at io open */metadata.json"
    assert (found.runs, found.brute_force, found.left_out) == (2, 48, 7)


def test_a_witness_that_does_not_replay_each_time_fails_the_score(
    latent: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    """With its name and how often it did."""
    steady, unsteady = (replace(swept(latent), replayed=(20, each)) for each in (20, 19))
    assert latent.summary([steady]) == []
    assert latent.summary([steady, unsteady]) == ["every witness repeats each time"]
    assert ": 19 of 20: fails: fails rank 0" in capsys.readouterr().out


def test_a_weakness_at_other_lines_is_found_without_its_line(latent: ModuleType) -> None:
    """It is counted as found, and as not named."""
    elsewhere = {"file": "fails_saving.py", "line": 99}
    disturbance = {**DISTURBANCE, "passed": {**DISTURBANCE["passed"], "where": elsewhere}}
    witness = {"disturbance": disturbance, "culprit": None, "waiting": elsewhere}
    found = swept(latent, weaknesses=[{**WEAKNESS, "witness": witness}])
    assert (found.word, found.named) == ("LINE", "")


def test_a_latent_program_without_a_weakness_is_missed(latent: ModuleType) -> None:
    """The same of a robust one is right."""
    nothing = {"status": "passed", "weaknesses": []}
    assert swept(latent, **nothing).word == "MISSED"
    assert swept(latent, family=None, **nothing).word == "ok"


def test_a_weakness_of_a_robust_program_is_false(latent: ModuleType) -> None:
    """And is told with what was done, who waits, and the line."""
    found = swept(latent, family=None)
    assert found.word == "FALSE"
    assert found.findings == [
        (
            "fails: fails rank 0 at io open */metadata.json: ranks 1,2 wait in barrier #1 for"
            " rank 0, which has failed, storage.py:3"
        )
    ]


def test_a_program_that_was_not_swept_fails_the_score(
    latent: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whether it did not pass undisturbed, or there is no result."""
    unswept = swept(latent, family=None, status="not swept", weaknesses=[])
    assert unswept.word == "UNSWEPT"
    assert latent.swept(NODEID, EXPECTED, None).word == "UNSWEPT"
    assert latent.summary([swept(latent), unswept]) == ["every program is swept"]
    assert "found               100.0% (1 of 1)" in capsys.readouterr().out


def test_the_score_says_what_is_not_met(latent: ModuleType) -> None:
    """A miss, and a finding in a robust program."""
    missed = swept(latent, status="passed", weaknesses=[])
    assert latent.summary([missed, swept(latent, family=None)]) == [
        "90 % are found",
        "nothing is found in robust programs",
    ]


def test_the_witness_is_one_of_the_programs_family(latent: ModuleType) -> None:
    """If the same line is shown in two ways."""
    late = {**DISTURBANCE, "family": "late", "fault": {"kind": "hold"}}
    other = {**WEAKNESS, "witness": {**WEAKNESS["witness"], "disturbance": late}}
    assert swept(latent, weaknesses=[other, WEAKNESS]).witness.startswith("fails: ")
    assert swept(latent, family="late", weaknesses=[WEAKNESS, other]).witness.startswith("late: ")


WRONG = {**EXPECTED, "family": "differs", "outcome": "wrong", "names": "step"}
ELSEWHERE = {"file": "fails_saving.py", "line": 99}
SILENT = {
    **WEAKNESS,
    "witness": {
        "outcome": "wrong",
        "disturbance": {**DISTURBANCE, "family": "differs"},
        "culprit": {"file": "fails_saving.py", "line": 12},
        "waiting": None,
    },
    "text": "ranks differ in 'weights'",
}


def test_a_program_that_hides_a_wrong_result_needs_a_wrong_run(latent: ModuleType) -> None:
    """Ranks that wait are another weakness, and do not count."""
    hangs = {**WEAKNESS, "witness": {**WEAKNESS["witness"], "outcome": "left waiting"}}
    assert latent.swept(NODEID, WRONG, {**SWEEP, "weaknesses": [hangs]}).word == "MISSED"
    found = latent.swept(NODEID, WRONG, {**SWEEP, "weaknesses": [hangs, SILENT]})
    assert (found.word, found.named, found.outcome) == ("found", "latent", "wrong")
    assert len(found.findings) == 1


@pytest.mark.parametrize(
    ("text", "word"),
    [("ranks differ in 'step'", "found"), ("ranks differ in 'steps'", "LINE")],
)
def test_a_wrong_run_may_name_what_is_wrong(latent: ModuleType, text: str, word: str) -> None:
    """The value's or file's own name, in place of a marked line."""
    disturbance = {**DISTURBANCE, "passed": {**DISTURBANCE["passed"], "where": ELSEWHERE}}
    places = {"culprit": None, "disturbance": disturbance}
    found = {**SILENT, "text": text, "witness": {**SILENT["witness"], **places}}
    assert latent.swept(NODEID, WRONG, {**SWEEP, "weaknesses": [found]}).word == word


def failed_alone(error: str | None) -> Mapping[str, Any]:
    """Return the verdict of a test that failed without any rank that waits."""
    found = {"type": error, "message": "no step", "file": "fails_saving.py", "line": 12}
    ranks = [{"outcome": "failed", "error": found if error else None}]
    return {**RAISED, "ended_by": "self", "diagnosis": None, "rank_results": ranks}


@pytest.mark.parametrize(
    ("error", "is_exposed"), [(None, True), ("AssertionError", True), ("OSError", False)]
)
def test_a_wrong_result_shows_by_what_the_test_asserts(
    latent: ModuleType, error: str | None, is_exposed: bool
) -> None:
    """Or by the values that it states. An error of the program is a report."""
    assert latent.exposed(NODEID, WRONG, failed_alone(error)).is_exposed == is_exposed
    assert not latent.exposed(NODEID, WRONG, RAISED).is_exposed


def test_the_score_counts_wrong_results_apart(
    latent: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    """A miss of one is seen in its own row."""
    missed = latent.swept(NODEID, WRONG, {**SWEEP, "weaknesses": []})
    latent.summary([swept(latent), missed])
    rows = capsys.readouterr().out.splitlines()
    assert "  waits             100.0% (1 of 1)" in rows
    assert "  wrong             0.0% (0 of 1)" in rows


def test_sweeps_of_one_program_are_alike_if_they_show_the_same_lines(latent: ModuleType) -> None:
    """In status and weaknesses, whatever the order of programs."""
    first = latent.Swept("one", "gloo x 3", "late", "failed", weaknesses=["a.py:1 <- a.py:2"])
    other = latent.Swept("two", "gloo x 3", "late", "passed")
    rows = [first, other, first, replace(first, weaknesses=[]), replace(other, status="failed")]
    assert latent.alike(rows) == [True, True, True, False, False]


def test_a_part_of_the_corpus_has_programs_of_all_modules(latent: ModuleType) -> None:
    """So a short run still tells of each kind."""
    programs = {"late.py": {"a": {}, "b": {}, "c": {}}, "fails.py": {"d": {}, "e": {}}}
    assert latent.thinned(programs, 1) == programs
    assert latent.thinned(programs, 2) == {"late.py": {"a": {}, "c": {}}, "fails.py": {"e": {}}}
