"""What is known of a rank, folded from its events."""

from __future__ import annotations

import pytest

from pytest_multihost.core.outcome import RankFacts, describe_exit, fold_history
from pytest_multihost.testing import (
    Exited,
    ReportMade,
    XfailMark,
    exited,
    make_event,
    raised,
    report,
    to_json,
)

BOOM = raised("ValueError: boom")


def facts(*events: tuple[str, dict[str, object]]) -> RankFacts:
    """Return what is known of rank 1 after its events, one a second."""
    history = [make_event(at_s, 1, kind, detail) for at_s, (kind, detail) in enumerate(events)]  # type: ignore[arg-type]
    return fold_history(history, 2)[1]


def test_nothing_is_known_before_anything_happened() -> None:
    """Every rank is there, in start-up, neither gone nor finished."""
    first, second = fold_history([], 2)
    assert (first.rank, second.rank) == (0, 1)
    assert (first.phase, first.is_gone, first.is_past_body, first.is_finished) == (
        "startup",
        False,
        False,
        False,
    )


def test_events_of_one_rank_say_nothing_of_another() -> None:
    """Each is folded for itself."""
    assert fold_history([make_event(1.0, 1, "ready")], 2)[0].ready_s is None


def test_a_rank_comes_on_step_by_step() -> None:
    """Each event leaves its trace, with the time it happened at."""
    known = facts(
        ("forked", {"pid": 7}),
        ("hello", {}),
        ("ready", {}),
        ("released", {"gate": "go"}),
        ("phase", {"phase": "call"}),
        ("parked", {}),
        ("done", {}),
    )
    assert (known.pid, known.can_dump, known.ready_s, known.parked_s) == (7, True, 2, 5)
    assert (known.done_s, known.phase, known.released) == (6, "shutdown", {"go"})


def test_a_rank_that_has_not_said_hello_cannot_be_asked() -> None:
    """The signal for its stacks would end it."""
    assert not facts(("forked", {"pid": 7})).can_dump


@pytest.mark.parametrize(
    ("end", "past_body", "finished"),
    [
        (("parked", {}), True, False),
        (("done", {}), False, True),
        (("interrupted", {"error": BOOM}), True, True),
        (("exited", exited(signal=9)), True, True),
    ],
    ids=["parked", "done", "interrupted", "exited"],
)
def test_what_ends_a_ranks_part(
    end: tuple[str, dict[str, object]], past_body: bool, finished: bool
) -> None:
    """Parked has left the body, done the teardown; who is interrupted or gone, both."""
    known = facts(("phase", {"phase": "call"}), end)
    assert (known.is_past_body, known.is_finished) == (past_body, finished)


TOLD = (("done", {}), ("released", {"gate": "exit"}))
INTERRUPTED = (("interrupted", {"error": BOOM}), ("released", {"gate": "exit"}))


@pytest.mark.parametrize(
    ("events", "has_died"),
    [
        ((), False),
        ((*TOLD, ("exited", exited(0))), False),
        ((*INTERRUPTED, ("exited", exited(0))), False),
        ((*TOLD, ("exited", exited(1))), True),
        ((*TOLD, ("exited", exited(signal=11))), True),
        ((("done", {}), ("exited", exited(0))), True),
        ((("released", {"gate": "exit"}), ("exited", exited(0))), True),
        ((("exited", exited(0)),), True),
        ((("exited", exited(signal=9)),), True),
        ((("exited", {**exited(signal=9), "by_harness": True}),), False),
    ],
    ids=[
        "alive",
        "left when told",
        "left when told after an interruption",
        "left with a code",
        "crashed on leaving",
        "left before it was told",
        "told but not done",
        "left in the test",
        "killed",
        "ended by us",
    ],
)
def test_what_counts_as_a_death(
    events: tuple[tuple[str, dict[str, object]], ...], has_died: bool
) -> None:
    """Every end but leaving when told, cleanly and with all done, and but by our hand."""
    assert facts(("forked", {"pid": 7}), *events).has_died is has_died


PARKED, DONE = ("parked", {}), ("done", {})


@pytest.mark.parametrize(
    ("events", "waits"),
    [
        ((), False),
        ((PARKED,), True),
        ((PARKED, ("released", {"gate": "teardown"})), False),
        ((PARKED, ("released", {"gate": "teardown"}), DONE), True),
        ((PARKED, ("released", {"gate": "teardown"}), DONE, ("released", {"gate": "exit"})), False),
    ],
    ids=["in the test", "before teardown", "in teardown", "before the exit", "leaving"],
)
def test_who_waits_at_a_gate_has_done_its_part(
    events: tuple[tuple[str, dict[str, object]], ...], waits: bool
) -> None:
    """Who has been let through has not, and can hang behind it."""
    assert facts(*events).waits_at_gate is waits


def test_the_first_raise_is_the_failure() -> None:
    """What a fixture raises on top in its teardown is not why the test failed."""
    known = facts(
        ("report", report("setup")),
        ("report", report("call", "failed", error=BOOM)),
        ("report", report("teardown", "failed", error=raised("OSError: late"))),
    )
    assert known.failure is not None
    assert to_json(known.failure)["error"] == BOOM


def test_an_expected_raise_is_a_failure_too() -> None:
    """It happened, and the others wait for the rank in vain; xfail judges it later."""
    known = facts(("report", report("call", "skipped", wasxfail="bug", error=BOOM)))
    assert known.failure is not None
    assert not known.is_skipped


def test_a_report_counts_before_an_interruption() -> None:
    """A test that failed and then called pytest.exit() failed first."""
    failed = report("call", "failed", error=BOOM)
    known = facts(("report", failed), ("interrupted", {"error": raised("Exit: x")}))
    assert known.failure is not None
    assert isinstance(known.failure, ReportMade)


def test_a_skip_is_no_failure() -> None:
    """Whether it is one for the world is judged for all ranks together."""
    known = facts(("report", report("call", "skipped")))
    assert known.failure is None
    assert known.is_skipped


def test_only_failed_subtests_are_kept() -> None:
    """They fail the test although its own report says that it passed."""
    known = facts(("subtest", {"outcome": "passed"}), ("subtest", {"outcome": "failed"}))
    assert known.failed_subtests_s == (1,)


def test_the_xfail_mark_is_known_from_the_first_report_that_has_it() -> None:
    """So that a rank that never came to its call can be judged by it."""
    mark = {"reason": "bug", "is_plain": True}
    assert facts(("report", report("setup", xfail=mark))).xfail == XfailMark(**mark)
    assert facts(("report", report("setup"))).xfail is None


@pytest.mark.parametrize(
    ("code", "signal", "words"),
    [
        (0, None, "exited with code 0"),
        (3, None, "exited with code 3"),
        (None, 9, "was killed by SIGKILL"),
        (None, 43, "was killed by signal 43"),
    ],
)
def test_an_exit_is_told_in_words(code: int | None, signal: int | None, words: str) -> None:
    """Signals by name; those in real time have none."""
    assert describe_exit(Exited(code, signal, 0.0, 0)) == words
