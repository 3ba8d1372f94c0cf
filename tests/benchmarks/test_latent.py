"""How results of the corpus of latent hangs are scored, on results made by hand."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from programs import load_program

PATH = Path(__file__).resolve().parents[2] / "benchmarks" / "latent.py"
NODEID = "fails_saving.py::test_primary_writes"
LINES = {"latent": [12], "waits": [14, 20]}
EXPECTED = {"family": "fails", "ranks": 3, "backend": "gloo", "lines": LINES, "sweep": {}}
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
