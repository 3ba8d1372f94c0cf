"""The table of what sweeps have found: what it says, and what it repeats, are the same."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from programs import load_program

from pytest_multihost.testing import read_token

ROOT = Path(__file__).resolve().parents[2]
FOUND = ROOT / "docs" / "found"
TABLE = tomllib.loads((FOUND / "found.toml").read_text(encoding="utf-8"))
SCRIPTS = sorted((FOUND / "reproducers").glob("*.py"))
SWEPT = [place for place, each in TABLE.items() if "replay" in each]
"""The places that a sweep has led to; the others are what a script alone shows."""


@pytest.fixture(scope="module")
def found() -> ModuleType:
    """benchmarks/found.py."""
    return load_program(ROOT / "benchmarks" / "found.py")


@pytest.fixture(scope="module")
def reproducers() -> ModuleType:
    """benchmarks/reproducers.py."""
    return load_program(ROOT / "benchmarks" / "reproducers.py")


def verdict(**diagnosis: object) -> dict[str, Any]:
    """Return a verdict with a diagnosis that the witness of `witness` expects, or a changed one."""
    expected = {
        "kind": "raised",
        "culprits": [0],
        "waiting": [1],
        "operation": {"name": "barrier", "sequence": 3, "group": [0, 1]},
    }
    return {"status": "failed", "outcome": "failed", "diagnosis": {**expected, **diagnosis}}


def witness(found: ModuleType) -> Any:  # noqa: ANN401 - a class of a program
    """Return a witness that expects that rank 1 waits in a barrier for rank 0."""
    return found.Witness("pytest t.py::t --multihost-replay x", "", "raised", [0], [1], "barrier")


@pytest.mark.parametrize("place", SWEPT)
def test_the_token_of_a_place_is_of_its_test_and_does_what_it_says(
    found: ModuleType, place: str
) -> None:
    """Neither can be changed without the other."""
    said = found.witnesses()[place]
    replay = read_token(said.token)
    assert replay.is_of(said.test)
    assert [repr(fault) for fault in replay.faults] == [said.fault]


@pytest.mark.parametrize("place", SWEPT)
def test_the_test_of_a_place_exists(found: ModuleType, place: str) -> None:
    """A renamed test would no longer be what its token repeats."""
    file, _, name = found.witnesses()[place].test.partition("::")
    text = (ROOT / "tests" / "found" / file).read_text(encoding="utf-8")
    assert f"def {name}(" in text


def test_the_witnesses_are_those_of_the_table(found: ModuleType) -> None:
    """No place loses its own in silence."""
    assert list(found.witnesses()) == SWEPT
    assert (len(SWEPT), len(TABLE)) == (20, 32)


def test_each_place_has_a_reproducer_and_each_reproducer_a_place() -> None:
    """Places of one kind share a script."""
    assert {each["script"] for each in TABLE.values()} == {path.stem for path in SCRIPTS}


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_reproducer_is_short_and_needs_no_plugin(script: Path) -> None:
    """It says in its first lines what is disturbed, and compiles."""
    text = script.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 40
    assert re.match(r'"""[^\n]+\.\n\n(?:Fault: |No fault: )', text)
    assert not re.search("import pytest|pytest_multihost", text)
    compile(text, script.name, "exec")


def test_a_script_shows_its_weakness_where_it_ends_with_0(reproducers: ModuleType) -> None:
    """One that fails, or is ended at its limit, shows nothing; the table prints why."""
    codes = [(0, "shown"), (1, "an import failed"), (None, "it waits"), (0, "shown again")]
    attempts = [reproducers.Attempt(code, 1.0, output) for code, output in codes]
    count = reproducers.summed_up("script", attempts)
    assert (count.shown, count.times, count.output) == (2, 4, "it waits")
    assert reproducers.summed_up("script", attempts[-1:]).output == "shown again"


@pytest.mark.parametrize("code", [0, 1])
def test_the_exit_code_of_a_script_decides(
    reproducers: ModuleType, tmp_path: Path, code: int
) -> None:
    """It runs in a folder of its own, which is its folder for temporary files, too."""
    script = tmp_path / "script.py"
    script.write_text(f"import tempfile\nprint(tempfile.mkdtemp())\nraise SystemExit({code})\n")
    attempt = reproducers.run(script)
    assert attempt.code == code
    assert "reproducer-" in attempt.output
    assert not Path(attempt.output.strip()).exists()


def test_a_verdict_that_says_all_of_the_table_shows_the_weakness(found: ModuleType) -> None:
    """The number of the operation may differ."""
    assert found.shows(witness(found), verdict())


@pytest.mark.parametrize(
    "changed",
    [
        {"kind": "straggler"},
        {"culprits": [1]},
        {"waiting": []},
        {"operation": None},
        {"operation": {"name": "all_reduce", "sequence": 3, "group": [0, 1]}},
    ],
)
def test_a_verdict_that_says_another_thing_does_not_show_it(
    found: ModuleType, changed: dict[str, object]
) -> None:
    """Each of what the table says counts."""
    assert not found.shows(witness(found), verdict(**changed))


def test_a_test_that_passes_does_not_show_it(found: ModuleType) -> None:
    """Nor one that fails without a diagnosis."""
    assert not found.shows(witness(found), {"status": "passed", "diagnosis": None})
    assert not found.shows(witness(found), {"status": "failed", "diagnosis": None})


def test_a_sweep_of_a_program_is_listed_with_the_places_that_are_alike(found: ModuleType) -> None:
    """Of the same file, with the same kind of hang in the same operation."""
    run = {"kind": "raised", "operation": {"name": "barrier"}}
    weakness = {"witness": run, "text": "rank 1 waits", "repeated": [5, 4]}
    other = {**weakness, "witness": {"kind": "parting", "operation": None}}
    sweep = {
        "nodeid": "t.py::another",
        "status": "failed",
        "runs": [run] * 9,
        "weaknesses": [weakness, other],
        "duration_s": 12.3,
    }
    elsewhere = found.Witness("pytest u.py::t --x", "", "raised", [0], [1], "barrier")
    assert found.swept_lines(sweep, {"page": witness(found), "other": elsewhere}) == [
        "t.py::another: 2 weaknesses in 9 runs, 12 s",
        "  rank 1 waits; repeated 4 of 5 (as page)",
        "  rank 1 waits; repeated 4 of 5 (no place)",
    ]
    left_out = {"nodeid": "t.py::t", "status": "not swept", "reason": "it fails"}
    assert found.swept_lines(left_out, {}) == ["t.py::t: not swept: it fails"]
