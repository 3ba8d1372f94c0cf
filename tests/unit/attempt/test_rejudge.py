"""A judgement again from the records of an attempt is the one that was written."""

from __future__ import annotations

from pathlib import Path

import builders
import pytest

from pytest_multihost.core.attempt import judge, rejudge, write
from pytest_multihost.core.outcome import Symptoms
from pytest_multihost.core.report import Attempt, build_verdict
from pytest_multihost.testing import (
    Event,
    SourceContext,
    WorldResult,
    files_below,
    make_event,
    well_behaved,
)

ABOUT = Attempt(run_id="run", directory="attempt", worker=None, environment={})


def stated(rank: int, text: str) -> Event:
    """Return the event of a rank that states a value with `world.same`."""
    frame = {"file": "/t/train.py", "line": 7, "function": "train"}
    detail = {"name": "step", "nth": 0, "digest": text, "text": text, "frame": frame}
    return make_event(1.0, rank, "value", detail)


def passing(*values: Event) -> WorldResult:
    """Return a world of two ranks in which nothing failed."""
    history = []
    for rank in range(2):
        for step in well_behaved(rank):
            if step.kind == "exited":
                history.append(make_event(0.0, rank, "released", {"gate": "exit"}))
            history.append(make_event(0.0, rank, step.kind, step.detail))
    return builders.world(2, [*history, *values], ending="self")


@pytest.mark.parametrize("texts", [("3", "3"), ("3", "4")], ids=["equal", "different"])
def test_values_that_differ_between_ranks_fail_both_judgements(
    tmp_path: Path, texts: tuple[str, str]
) -> None:
    """`multihost explain` said of such a test that it had passed."""
    world = passing(*(stated(rank, text) for rank, text in enumerate(texts)))
    judged = judge(world, Symptoms(), SourceContext("/t"))
    verdict = build_verdict(judged, ABOUT)
    assert verdict.status == ("passed" if len({*texts}) == 1 else "failed")
    assert write(tmp_path, judged, verdict, ABOUT, [], run=None) == []
    again = rejudge(tmp_path, files_below([tmp_path]))
    assert again.verdict.record() == verdict.record()
    assert again.judged.finding.reason == judged.finding.reason


def test_a_record_that_cannot_be_written_is_named_and_the_others_are_written(
    tmp_path: Path,
) -> None:
    """A full disk hides no verdict."""
    (tmp_path / "facts.json").mkdir()
    judged = judge(passing(), Symptoms(), SourceContext("/t"))
    problems = write(tmp_path, judged, build_verdict(judged, ABOUT), ABOUT, [], run=None)
    assert [type(error) for _, error in problems] == [IsADirectoryError]
    assert {each.name for each in tmp_path.iterdir()} >= {"verdict.json", "history.jsonl"}
