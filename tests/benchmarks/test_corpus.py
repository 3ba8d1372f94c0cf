"""How the corpus is run in parts and in rounds, on scores made by hand."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from programs import load_program

PATH = Path(__file__).resolve().parents[2] / "benchmarks" / "corpus.py"


@pytest.fixture(scope="module")
def corpus() -> ModuleType:
    """benchmarks/corpus.py."""
    return load_program(PATH)


def innocent(corpus: ModuleType, name: str, kind: str | None = None) -> Any:  # noqa: ANN401
    """Return the score of an innocent, accused of `kind` if there is one."""
    expected = {
        "is_hang": False,
        "answers": [],
        "waiting": None,
        "by": [],
        "outcomes": ["passed"],
        "statuses": ["passed"],
        "where": None,
        "waits_at": None,
        "sides": None,
        "ranks": 2,
        "backend": "none",
    }
    diagnosis = {"kind": kind, "culprits": [1]} if kind else None
    verdict = {"outcome": "hung" if kind else "passed", "status": "failed" if kind else "passed"}
    return corpus.score(name, expected, {**verdict, "diagnosis": diagnosis, "reason": ""})


def test_each_program_is_in_one_batch_of_its_module(corpus: ModuleType) -> None:
    """Batches have no more programs than allowed, and leave none out."""
    programs = {"a.py": {f"a.py::{n}": {} for n in range(5)}, "b.py": {"b.py::0": {}}}
    batches = corpus._batches(programs, 2)
    assert [len(each) for each in batches] == [2, 2, 1, 1]
    assert [name for each in batches for name in each] == [*programs["a.py"], "b.py::0"]


def test_a_program_accused_in_some_rounds_is_told_once_with_their_number(
    corpus: ModuleType,
) -> None:
    """The others are not mentioned."""
    right, wrong = innocent(corpus, "m.py::test_x"), innocent(corpus, "m.py::test_x", "straggler")
    other = innocent(corpus, "m.py::test_y")
    told = corpus.troubles([[right, other], [wrong, other], [wrong, other]])
    assert told == ["ACCUSED m x: 2 of 3 rounds, got straggler [1]"]
