"""A test that expects its world to hang or break still fails by its own failures."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from builders import ended as harness_ended
from builders import in_tests, world

from pytest_multihost.core.outcome import Finding, Symptoms, judge
from pytest_multihost.core.pytest_plugin.plan import Expectation, apply_expectation
from pytest_multihost.testing import (
    Diagnosis,
    Event,
    Kind,
    Names,
    exited,
    make_event,
    raised,
    report,
    sentence,
)

Steps = list[tuple[str, dict[str, Any]]]

SYMPTOMS = Symptoms(raised=("peer is gone",), fatal=("service is gone",))
KINDS = get_args(Kind)
PLAIN = {"reason": "bug", "is_plain": True}
END_S = 2.0
EARLY_S, LATE_S = 1.0, 3.0


def failed(text: str, *causes: str, when: str = "call") -> tuple[str, dict[str, Any]]:
    """Return the report of a phase in which a rank raised."""
    return "report", report(when, "failed", error=raised(text, *causes))


ASSERTS = failed("AssertionError: the sum is wrong")
TEARS = failed("OSError: disk quota exceeded", when="teardown")
SUBFAILS = ("subtest", {"outcome": "failed"})
PASSES = ("report", report("call"))
PARKS = ("parked", {})
DIES = ("exited", exited(signal=9))
SKIPS = ("report", report("call", "skipped", report={"longrepr": ["t.py", 3, "Skipped: no data"]}))
BOOM = raised("ValueError: boom")
XFAILS = ("report", report("call", "skipped", wasxfail="bug", error=BOOM, xfail=PLAIN))

CULPRITS: dict[str, Steps] = {
    "died": [DIES],
    "raised": [failed("ValueError: bad shard")],
    "transport": [failed("ValueError: bad shape")],
    "finished": [PASSES, PARKS],
}
"""What happens to the culprit at `END_S`, by kind; a culprit of any other kind hangs."""

HARMLESS: dict[str, tuple[float, Steps]] = {
    "waits": (LATE_S, []),
    "has left": (EARLY_S, [PASSES, PARKS]),
    "its operation is aborted": (LATE_S, [failed("RuntimeError: peer is gone")]),
    "its operation is aborted at once": (END_S, [failed("RuntimeError: peer is gone")]),
    "its connection is reset": (LATE_S, [failed("ConnectionResetError: [Errno 104] reset")]),
    "its connection is refused": (LATE_S, [failed("ConnectionRefusedError: [Errno 111] refused")]),
    "its stream ends": (LATE_S, [failed("EOFError: ")]),
    "it times out": (LATE_S, [failed("TimeoutError: ")]),
    "its library loses the peer": (LATE_S, [failed("zmq.Error: connection to rank 1 was lost")]),
    "it raises from a lost connection": (
        LATE_S,
        [failed("trainer.StepFailed: step 3", "BrokenPipeError: [Errno 32] Broken pipe")],
    ),
    "its teardown loses the peer": (
        LATE_S,
        [PASSES, failed("RuntimeError: peer is gone", when="teardown")],
    ),
    "its call and its teardown lose the peer": (
        LATE_S,
        [
            failed("RuntimeError: peer is gone"),
            failed("ConnectionResetError: reset", when="teardown"),
        ],
    ),
    "its runtime aborts": (LATE_S, [("exited", exited(signal=6))]),
}

OWN: dict[str, tuple[float, Steps, str]] = {
    "asserts before": (EARLY_S, [ASSERTS], "AssertionError: the sum is wrong"),
    "asserts after": (LATE_S, [ASSERTS], "AssertionError: the sum is wrong"),
    "asserts what a symptom says": (
        LATE_S,
        [failed("AssertionError: peer is gone", "RuntimeError: peer is gone")],
        "AssertionError: peer is gone",
    ),
    "calls pytest.fail": (LATE_S, [failed("_pytest.outcomes.Failed: timed out")], "timed out"),
    "raises": (LATE_S, [failed("ValueError: boom")], "ValueError: boom"),
    "has a failed subtest": (EARLY_S, [SUBFAILS, PASSES, PARKS], "contains 1 failed subtest"),
    "has a failed subtest and waits": (EARLY_S, [SUBFAILS], "contains 1 failed subtest"),
    "has failed subtests and is aborted": (
        LATE_S,
        [SUBFAILS, SUBFAILS, failed("RuntimeError: peer is gone")],
        "contains 2 failed subtests",
    ),
    "fails in setup": (
        EARLY_S,
        [failed("OSError: no such device", when="setup")],
        "OSError: no such device",
    ),
    "fails in teardown": (LATE_S, [PASSES, PARKS, TEARS], "disk quota exceeded"),
    "is aborted and fails in teardown": (
        LATE_S,
        [failed("RuntimeError: peer is gone"), PARKS, TEARS],
        "disk quota exceeded",
    ),
    "skips": (EARLY_S, [SKIPS, PARKS], "skipped alone: no data"),
}


def fate(rank: int, at_s: float, steps: Steps) -> list[Event]:
    """Return the events of a rank that was in its call until `steps` happened to it."""
    return in_tests([rank]) + [make_event(at_s, rank, kind, detail) for kind, detail in steps]


def ended(kind: str, at_s: float, steps: Steps, of_culprit: Steps | None = None) -> Finding:
    """Judge a world in which rank 0 waits, rank 1 is the culprit and `steps` befall rank 2."""
    culprit = CULPRITS.get(kind, []) if of_culprit is None else of_culprit
    history = [*fate(0, 0.0, []), *fate(1, END_S, culprit), *fate(2, at_s, steps)]
    history.sort(key=lambda event: event.at_s)
    gone = {event.rank for event in history if event.kind == "exited"}
    result = world(
        3,
        [*history, *harness_ended({0, 1, 2} - gone, 9.0)],
        ended_s=9.0,
        ending="settled" if kind in ("died", "raised") else "proof",
        last_words={2: "service is gone"},
    )
    return judge(result, SYMPTOMS)


def diagnosis(kind: Kind) -> Diagnosis:
    """Return the diagnosis that rank 0 waits for rank 1."""
    return Diagnosis(
        kind=kind,
        confidence="certain",
        phase="call",
        culprits=(1,),
        waiting=(0,),
        cycle=(),
        waits_for=(),
        operation=None,
        where=None,
        silent_s=1.0,
        detected_after_s=1.0,
        detected_by="proof",
        headline=sentence(f"rank 1 {kind}"),
        evidence=(),
        groups=(),
        notes=(),
    )


def expecting(kind: Kind, finding: Finding) -> Finding:
    """Return the finding of a test that expected just this end."""
    wanted = Expectation(kind=kind, culprits=(1,))
    return apply_expectation(finding, wanted, diagnosis(kind), Names())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("beside", HARMLESS)
def test_what_the_expected_end_brings_about_is_harmless(kind: Kind, beside: str) -> None:
    """Lost connections, aborted operations, timeouts; also of a library that nobody knows."""
    assert expecting(kind, ended(kind, *HARMLESS[beside])).status == "passed"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("beside", OWN)
def test_an_own_failure_of_another_rank_fails_the_test(kind: Kind, beside: str) -> None:
    """Whenever it happens; the reason names the rank and what failed."""
    at_s, steps, told = OWN[beside]
    finding = expecting(kind, ended(kind, at_s, steps))
    assert (finding.status, finding.when) == ("failed", "call")
    assert finding.reason.startswith(f"ended as expected (rank 1 {kind}), but rank 2: ")
    assert told in finding.reason


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("before", "told"),
    [
        ([SUBFAILS], "contains 1 failed subtest"),
        ([], "disk quota exceeded"),
    ],
    ids=["failed subtest", "failed teardown"],
)
def test_an_own_failure_of_the_culprit_beside_the_end_fails_the_test(
    kind: Kind, before: Steps, told: str
) -> None:
    """The end is that it raised or died, not that its checks failed, too."""
    end = CULPRITS.get(kind, [])
    steps = [*before, *end] if before else [*(each for each in end if each != DIES), TEARS, *end]
    finding = expecting(kind, ended(kind, LATE_S, [], of_culprit=steps))
    assert finding.status == "failed"
    assert told in finding.reason


@pytest.mark.parametrize("kind", ["died", "raised"])
def test_a_connection_that_was_lost_before_the_end_is_an_own_failure(kind: Kind) -> None:
    """The rank that died later did not close it."""
    finding = expecting(kind, ended(kind, EARLY_S, [failed("ConnectionRefusedError: refused")]))
    assert finding.status == "failed"


def test_a_lost_connection_may_be_seen_before_the_death() -> None:
    """The kernel closes the sockets of a dying process first and reports its end last."""
    reset = [failed("ConnectionResetError: reset")]
    assert expecting("died", ended("died", END_S - 0.005, reset)).status == "passed"


@pytest.mark.parametrize("kind", KINDS)
def test_a_failure_that_xfail_expects_makes_the_test_xfailed(kind: Kind) -> None:
    """It is neither hidden nor a surprise."""
    assert expecting(kind, ended(kind, EARLY_S, [XFAILS, PARKS])).status == "xfailed"


def test_a_skip_of_the_culprit_is_how_it_left() -> None:
    """A test may show that others wait for a rank that skips."""
    finding = ended("finished", LATE_S, [], of_culprit=[SKIPS, PARKS])
    assert expecting("finished", finding).status == "passed"


def test_the_rank_that_failed_by_itself_is_the_headline() -> None:
    """Its traceback is what the reader needs."""
    assert expecting("died", ended("died", LATE_S, [ASSERTS])).headline == 2


def test_a_rank_whose_first_exception_is_harmless_is_not_the_headline() -> None:
    """The traceback that is shown on top would be the harmless one."""
    at_s, steps, _ = OWN["is aborted and fails in teardown"]
    assert expecting("died", ended("died", at_s, steps)).headline is None


def test_equal_own_failures_are_named_together() -> None:
    """One text for all ranks to which the same happened."""
    steps = [SUBFAILS, PASSES, PARKS]
    finding = expecting("finished", ended("finished", EARLY_S, steps, of_culprit=steps))
    assert "but ranks 1,2: contains 1 failed subtest" in finding.reason
