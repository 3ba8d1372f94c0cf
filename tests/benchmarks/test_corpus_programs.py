"""The corpus of hangs and innocents, looked at without running it."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, get_args

import pytest
from programs import loaded_together
from runtimes import RUNTIMES, require

from pytest_multihost.testing import Kind

REPOSITORY = Path(__file__).resolve().parents[2]
CORPUS = REPOSITORY / "tests" / "corpus"
EXPECTATIONS = "PYTEST_MULTIHOST_CORPUS_EXPECTATIONS"
KINDS = set(get_args(Kind))
NAMELESS = {"deadlock", "unknown"}
MAYBE_NAMELESS = NAMELESS | {"mismatch", "transport"}

Program = Mapping[str, Any]


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Sequence[Program]:
    """Every program of the corpus with what is expected of it, as the scorer gets them."""
    for runtime in RUNTIMES:
        require(runtime)
    path = tmp_path_factory.mktemp("corpus") / "expectations"
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", EXPECTATIONS: str(path)}
    command = [sys.executable, "-m", "pytest", "-p", "multihost_hangs", "--collect-only", "-q"]
    subprocess.run(command, cwd=CORPUS, env=environment, check=True, timeout=100)
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def hangs(programs: Sequence[Program]) -> Sequence[Program]:
    """The programs that hang."""
    return [each for each in programs if each["expected"]["is_hang"]]


def test_every_program_has_an_expectation(programs: Sequence[Program]) -> None:
    """A program without one would be run and never scored."""
    assert programs
    assert [each["nodeid"] for each in programs if each["expected"] is None] == []


def test_every_program_says_what_happens_and_where_it_is_from(programs: Sequence[Program]) -> None:
    """One sentence first, then its source: a published bug, a class of them, or its file's hunt."""
    lacking = [
        each["nodeid"]
        for each in programs
        if not (each["doc"] or "").splitlines()[0].endswith(".")
        or not (_has_source(each["doc"]) or _has_source(_of_file(each["nodeid"])))
    ]
    assert lacking == []


def _has_source(doc: str) -> bool:
    return any(line.strip().startswith("Source: ") for line in doc.splitlines()[1:])


@cache
def _of_file(nodeid: str) -> str:
    """Return the docstring of a program's file."""
    path = CORPUS / nodeid.partition("::")[0]
    return ast.get_docstring(ast.parse(path.read_text())) or ""


def test_there_are_enough_hangs_and_innocents(
    programs: Sequence[Program], hangs: Sequence[Program]
) -> None:
    """As many as were asked for."""
    assert len(hangs) >= 40
    assert len(programs) - len(hangs) >= 25


def test_every_kind_occurs_in_several_shapes(hangs: Sequence[Program]) -> None:
    """A kind that is told in one shape only may be told by accident."""
    found = Counter(each["expected"]["answers"][0]["kind"] for each in hangs)
    assert set(found) == KINDS
    assert [kind for kind, number in found.items() if number < 2] == []


def test_every_backend_and_the_sizes_occur(programs: Sequence[Program]) -> None:
    """What holds for one runtime or one size need not hold for another."""
    assert {each["expected"]["backend"] for each in programs} == {"gloo", "jax", "none"}
    assert {1, 2, 3, 4, 8} <= {each["expected"]["ranks"] for each in programs}


def test_expected_ranks_exist_and_nobody_waits_for_itself(hangs: Sequence[Program]) -> None:
    """An expectation that no verdict can meet would look like a fault of the verdict."""
    for each in hangs:
        expected = each["expected"]
        waiting = set(expected["waiting"] or ())
        for answer in expected["answers"]:
            assert {*answer["culprits"], *waiting} <= set(range(expected["ranks"])), each["nodeid"]
        assert not waiting & set(expected["answers"][0]["culprits"]), each["nodeid"]


def test_only_some_kinds_name_nobody(hangs: Sequence[Program]) -> None:
    """The contract has no culprits for deadlocks and unknowns, and one at least for most kinds."""
    for each in hangs:
        for answer in each["expected"]["answers"]:
            names, kind = bool(answer["culprits"]), answer["kind"]
            assert not (names and kind in NAMELESS), each["nodeid"]
            assert names or kind in MAYBE_NAMELESS, each["nodeid"]


def test_more_than_one_answer_is_explained(hangs: Sequence[Program]) -> None:
    """Where the contract leaves several, the program says why."""
    several = [each for each in hangs if len(each["expected"]["answers"]) > 1]
    assert several
    assert [each["nodeid"] for each in several if not each["expected"]["why"]] == []


@pytest.fixture(scope="module")
def scorer() -> Iterator[ModuleType]:
    """benchmarks/corpus.py."""
    with loaded_together(REPOSITORY / "benchmarks", ("corpus",)) as found:
        yield found["corpus"]


EXPECTED = {
    "is_hang": True,
    "answers": [{"kind": "straggler", "culprits": [0]}],
    "waiting": [1, 2],
    "by": ["proof"],
    "outcomes": ["hung"],
    "statuses": ["failed"],
    "where": None,
    "waits_at": None,
    "sides": None,
    "ranks": 3,
    "backend": "gloo",
}
VERDICT = {
    "outcome": "hung",
    "status": "failed",
    "reason": None,
    "diagnosis": {
        "kind": "straggler",
        "culprits": [0],
        "waiting": [1, 2],
        "detected_by": "proof",
        "detected_after_s": 2.2,
        "where": None,
    },
}
INNOCENT = {**EXPECTED, "is_hang": False, "answers": [], "outcomes": ["passed"]}


def test_the_right_diagnosis_is_ok(scorer: ModuleType) -> None:
    """Kind and culprits as expected."""
    score = scorer.score("hang_x.py::test_y", EXPECTED, VERDICT)
    assert (score.word, score.is_exact, score.has_right_waiting) == ("ok", True, True)


@pytest.mark.parametrize("change", [{"kind": "stuck"}, {"culprits": [1]}, {"culprits": [0, 1]}])
def test_one_name_too_many_is_wrong(scorer: ModuleType, change: Mapping[str, Any]) -> None:
    """Another kind, another rank, or one more: precision counts as much as recall."""
    verdict = {**VERDICT, "diagnosis": {**VERDICT["diagnosis"], **change}}
    score = scorer.score("hang_x.py::test_y", EXPECTED, verdict)
    assert (score.word, score.is_detected) == ("WRONG", True)


def test_no_diagnosis_is_wrong_but_detected(scorer: ModuleType) -> None:
    """As long as nobody judges, a hang still ends at its deadline."""
    score = scorer.score("hang_x.py::test_y", EXPECTED, {**VERDICT, "diagnosis": None})
    assert (score.word, score.got, score.is_detected) == ("WRONG", "-", True)


def test_a_diagnosis_of_an_innocent_is_an_accusation(scorer: ModuleType) -> None:
    """Even one that names nobody: the world was ended for it."""
    verdict = {**VERDICT, "diagnosis": {**VERDICT["diagnosis"], "culprits": []}}
    assert scorer.score("innocent_x.py::test_y", INNOCENT, verdict).word == "ACCUSED"


def test_a_program_that_cannot_run_on_such_hosts_is_skipped(scorer: ModuleType) -> None:
    """It is neither right nor wrong; one that is to be skipped is right."""
    skipped = {**VERDICT, "outcome": "skipped", "status": "skipped", "diagnosis": None}
    score = scorer.score("hang_x.py::test_y", EXPECTED, skipped)
    assert (score.word, score.told) == ("skipped", None)
    expected = {**INNOCENT, "outcomes": ["skipped"], "statuses": ["skipped"]}
    assert scorer.score("innocent_x.py::test_y", expected, skipped).word == "ok"


def test_a_program_without_a_verdict_is_wrong(scorer: ModuleType) -> None:
    """The controller has crashed, unless pytest says that it skipped the program."""
    lost = scorer.score("hang_x.py::test_y", EXPECTED, None)
    assert (lost.word, lost.remark) == ("WRONG", "has no verdict")
    assert scorer.score("hang_x.py::test_y", EXPECTED, None, is_skipped=True).word == "skipped"


def test_an_innocent_that_passes_is_ok(scorer: ModuleType) -> None:
    """And one that fails without a diagnosis is wrong, though not accused."""
    passed = {**VERDICT, "outcome": "passed", "status": "passed", "diagnosis": None}
    expected = {**INNOCENT, "statuses": ["passed"]}
    assert scorer.score("innocent_x.py::test_y", expected, passed).word == "ok"
    assert scorer.score("x.py::test_y", expected, {**VERDICT, "diagnosis": None}).word == "WRONG"


def told(**diagnosis: object) -> Mapping[str, Any]:
    """Return a verdict with these fields of its diagnosis."""
    return {**VERDICT, "diagnosis": {**VERDICT["diagnosis"], **diagnosis}}


def test_the_users_line_is_looked_for_wherever_lines_are_shown(scorer: ModuleType) -> None:
    """As the culprit's, or as that of a rank that waits."""
    expected = {**EXPECTED, "waits_at": "accelerator.gather("}
    place = {"source": "found = accelerator.gather(loss)"}
    shown = [told(where=place), told(places=[place])]
    lines = [scorer.score("x.py::test_y", expected, each).has_right_line for each in shown]
    assert lines == [True, True]
    missing = told(where={"source": "loss.backward()"}, places=[])
    assert scorer.score("x.py::test_y", expected, missing).has_right_line is False
    assert scorer.score("x.py::test_y", EXPECTED, missing).has_right_line is None


@pytest.mark.parametrize(
    ("sides", "is_right"),
    [
        ([([1], "gather(x)"), ([0, 2], "loss.backward()")], True),
        ([([0, 2], "loss.backward()"), ([1], "gather(x)")], True),
        ([([1], "loss.backward()"), ([0, 2], "gather(x)")], False),
        ([([1], "gather(x)"), ([0], "loss.backward()"), ([2], "loss.backward()")], False),
        ([], False),
    ],
)
def test_the_first_divergence_is_right_with_its_ranks_and_lines(
    scorer: ModuleType, sides: Sequence[tuple[Sequence[int], str]], is_right: bool
) -> None:
    """Each side with its own line, and no side too many."""
    expected = {**EXPECTED, "sides": [[[1], "gather("], [[0, 2], "backward("]]}
    found = [{"ranks": ranks, "source": source} for ranks, source in sides]
    verdict = told(divergence={"sides": found})
    assert scorer.score("x.py::test_y", expected, verdict).has_right_sides is is_right


def test_a_library_s_line_tells_sides_in_one_line_of_the_users_apart(scorer: ModuleType) -> None:
    """All ranks are in trainer.train()."""
    expected = {**EXPECTED, "sides": [[[1], "finalize("], [[0, 2], "run_epoch("]]}
    sides = [
        {"ranks": ranks, "source": "trainer.train()", "through": {"source": source}}
        for ranks, source in (([1], "self.finalize()"), ([0, 2], "self.run_epoch()"))
    ]
    verdict = told(divergence={"sides": sides})
    assert scorer.score("x.py::test_y", expected, verdict).has_right_sides is True


def test_ranks_that_did_not_part_before_have_parted_where_they_are(scorer: ModuleType) -> None:
    """One line of a jitted program, and another: nothing was recorded of what they did."""
    expected = {**EXPECTED, "sides": [[[1], "evaluate("], [[0, 2], "train("]]}
    lines = ("train(x)", "evaluate(x)", "train(x)")
    places = [
        {"rank": rank, "file": "a.py", "line": len(source), "source": source}
        for rank, source in enumerate(lines)
    ]
    assert scorer.score("x.py::test_y", expected, told(places=places)).has_right_sides is True
    assert scorer.score("x.py::test_y", expected, told(places=places[:2])).has_right_sides is False
    # The lines that are told where they parted before are judged, not those they are in.
    parted = told(places=places, divergence={"sides": [{"ranks": [0, 1, 2], "source": "z"}]})
    assert scorer.score("x.py::test_y", expected, parted).has_right_sides is False


def test_ranks_that_a_dump_ended_are_counted(scorer: ModuleType) -> None:
    """Dumps are taken with real-time signals; other signals are the harness's end."""
    rank = {"outcome": "hung", "phase": "call", "exit_code": None, "error": None}
    results = [{**rank, "rank": 0, "signal": 15}, {**rank, "rank": 1, "signal": 43}]
    score = scorer.score("x.py::test_y", EXPECTED, {**VERDICT, "rank_results": results})
    assert score.ended_by_dump == [1]


def test_each_library_has_its_line(scorer: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    """Modules that hang and innocent ones of the same name are counted together."""
    passed = {**VERDICT, "outcome": "passed", "status": "passed", "diagnosis": None}
    scorer.print_libraries(
        [
            scorer.score("hang_dcp.py::test_y", {**EXPECTED, "where": "sleep"}, VERDICT),
            scorer.score("innocent_dcp.py::test_z", {**INNOCENT, "statuses": ["passed"]}, passed),
        ]
    )
    row = capsys.readouterr().out.splitlines()[-1].split()
    assert row == ["dcp", "1", "1", "1", "0/1", "-", "1", "0", "0"]
