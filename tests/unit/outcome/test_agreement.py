"""Whether ranks agree on what they have stated."""

from __future__ import annotations

import builders

from pytest_multihost.core.outcome import Symptoms, disagreements, judge
from pytest_multihost.core.outcome.agreement import require_agreement
from pytest_multihost.testing import (
    PLAIN,
    Event,
    WorldResult,
    make_event,
    raised,
    report,
    well_behaved,
)

BOOM = raised("ValueError: boom")


def stated(rank: int, text: str, *, name: str = "step", nth: int = 0, line: int = 7) -> Event:
    """Return the event of a rank that states a value."""
    frame = {"file": "/t/train.py", "line": line, "function": "train"}
    detail = {"name": name, "nth": nth, "digest": f"d-{text}", "text": text, "frame": frame}
    return make_event(1.0, rank, "value", detail)


def world(*values: Event, size: int = 3, fails: tuple[int, ...] = ()) -> WorldResult:
    """Return a world that ended by itself; its ranks passed, except those that fail."""
    history = []
    for rank in range(size):
        for step in well_behaved(rank):
            is_report = step.kind == "report" and step.detail["when"] == "call"
            failed = report("call", "failed", error=BOOM)
            detail = failed if is_report and rank in fails else step.detail
            if step.kind == "exited":
                history.append(make_event(0.0, rank, "released", {"gate": "exit"}))
            history.append(make_event(0.0, rank, step.kind, detail))
    return builders.world(size, [*history, *values], ending="self")


def test_ranks_with_equal_values_agree() -> None:
    """So does a world that states nothing."""
    assert disagreements(world()) == ()
    assert disagreements(world(*(stated(rank, "3") for rank in range(3)))) == ()


def test_each_side_is_named_with_its_value_and_line() -> None:
    """Ranks with one value are one side."""
    (found,) = disagreements(world(stated(0, "3"), stated(1, "4", line=9), stated(2, "3")))
    assert found.words("/t", PLAIN) == (
        "ranks differ in 'step': ranks 0,2 have 3 (train.py:7); rank 1 has 4 (train.py:9)"
    )


def test_the_nth_value_of_a_name_is_compared_with_the_nth() -> None:
    """A name may be stated in each step."""
    first = [stated(rank, "1") for rank in range(3)]
    second = [stated(rank, str(rank), nth=1) for rank in range(3)]
    (found,) = disagreements(world(*first, *second))
    assert found.nth == 1
    assert "'step' (value 2): rank 0 has 0" in found.words("/t", PLAIN)


def test_a_rank_that_has_not_stated_a_value_differs() -> None:
    """It went another way than the others."""
    (found,) = disagreements(world(stated(0, "3"), stated(1, "3")))
    assert found.words("/t", PLAIN).endswith("; rank 2 has not stated it")


def test_only_ranks_that_passed_are_compared() -> None:
    """A rank that failed has said so: it hides nothing."""
    assert disagreements(world(stated(0, "3"), stated(1, "3"), fails=(2,))) == ()
    assert disagreements(world(stated(0, "3"), stated(1, "9"), stated(2, "3"), fails=(1,))) == ()


def test_values_with_equal_texts_are_shown_with_their_digests() -> None:
    """Two arrays may begin alike."""
    one, other = stated(0, "float32 (9,) [0.0, ...]"), stated(1, "float32 (9,) [0.0, ...]")
    other = make_event(1.0, 1, "value", {**_detail(other), "digest": "other"})
    (found,) = disagreements(world(one, other, size=2))
    assert "[0.0, ...], digest d-float3 (train.py:7)" in found.words("/t", PLAIN)
    assert "digest other" in found.words("/t", PLAIN)


def _detail(event: Event) -> dict[str, object]:
    detail = event.record(origin_s=0.0)["detail"]
    assert isinstance(detail, dict)
    return dict(detail)


def test_a_test_that_passed_fails_if_ranks_differ() -> None:
    """One that failed keeps its own reason."""
    differing = world(stated(0, "3"), stated(1, "4"), stated(2, "3"))
    finding = require_agreement(judge(differing, Symptoms()), differing, "/t")
    assert (finding.status, finding.outcome) == ("failed", "failed")
    assert finding.reason.startswith("ranks differ in 'step'")
    failing = world(stated(0, "3"), stated(1, "4"), stated(2, "3"), fails=(2,))
    before = judge(failing, Symptoms())
    assert require_agreement(before, failing, "/t") == before
