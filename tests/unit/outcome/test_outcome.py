"""What happened to a world, cause first: a table of what ranks did, and what it comes to."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Literal

import builders
import pytest
from builders import ended

from pytest_multihost.core.outcome import Finding, Symptoms, as_aborted, judge
from pytest_multihost.testing import (
    BROKEN,
    Ending,
    Event,
    Label,
    Names,
    Operation,
    Operations,
    Phase,
    RankSnapshot,
    Scope,
    WorldSnapshot,
    exited,
    make_event,
    make_spec,
    raised,
    report,
    well_behaved,
)

SYMPTOMS = Symptoms(raised=("peer is gone",), fatal=("service is gone",))

PLAIN = {"reason": "bug", "is_plain": True}
RAISES = {"reason": "bug", "is_plain": False}  # xfail(raises=...) expects an exception, no hang
BOOM = raised("ValueError: boom")
LOST = raised("RuntimeError: peer is gone")
SKIPPED = report("call", "skipped", report={"longrepr": ["t.py", 3, "Skipped: no data"]})
STRICT = report("call", "failed", is_strict_xpass=True, report={"longrepr": "[XPASS(strict)] bug"})
KILL = ("fault", {"index": 0, "fault": "kill", "phase": "begun", "kills": True})

FATES: dict[str, list[tuple[str, dict[str, object]]]] = {
    # What the rank told last in its test, and how it went on. "leaves" stands for a rank that
    # passed all gates, "parks" for one that waits for the others in front of one.
    "passes": [("report", report("call")), ("parked", {})],
    "fails": [("report", report("call", "failed", error=BOOM)), ("parked", {})],
    "loses": [("report", report("call", "failed", error=LOST)), ("parked", {})],
    "errs": [("report", report("setup", "failed", error=BOOM)), ("parked", {})],
    "skips": [("report", SKIPPED), ("parked", {})],
    "subfails": [("subtest", {"outcome": "failed"}), ("report", report("call")), ("parked", {})],
    "xfails": [("report", report("call", "skipped", wasxfail="bug", error=BOOM, xfail=PLAIN))],
    "xloses": [("report", report("call", "skipped", wasxfail="bug", error=LOST, xfail=PLAIN))],
    "xpasses": [("report", report("call", wasxfail="bug", xfail=PLAIN))],
    "strict-xpasses": [("report", STRICT)],
    "tears": [("report", report("call")), ("report", report("teardown", "failed", error=BOOM))],
    "skip-tears": [("report", SKIPPED), ("report", report("teardown", "failed", error=BOOM))],
    "xfail-tears": [
        ("report", report("call", "skipped", wasxfail="bug", error=BOOM)),
        ("report", report("teardown", "failed", error=BOOM)),
    ],
    "xpass-tears": [
        ("report", report("call", wasxfail="bug", xfail=PLAIN)),
        ("report", report("teardown", "failed", error=BOOM)),
    ],
    "crashes": [("exited", exited(signal=9))],
    "killed": [KILL, ("exited", exited(signal=9))],
    "subfail-killed": [("subtest", {"outcome": "failed"}), KILL, ("exited", exited(signal=9))],
    "fail-killed": [
        ("report", report("call", "failed", error=BOOM)),
        KILL,
        ("exited", exited(signal=9)),
    ],
    "quits": [("exited", exited(0))],
    "aborts": [("exited", exited(signal=6))],  # its log says that its runtime ended it
    "xcrashes": [("report", report("setup", xfail=PLAIN)), ("exited", exited(signal=9))],
    "hangs": [],
    "xhangs": [("report", report("setup", xfail=PLAIN))],
    "rhangs": [("report", report("setup", xfail=RAISES))],
    "parks": [("report", report("call")), ("parked", {})],
    "skip-parks": [("report", SKIPPED), ("parked", {})],
    "subfail-parks": [
        ("subtest", {"outcome": "failed"}),
        ("report", report("call")),
        ("parked", {}),
    ],
    "fail-crashes": [
        ("report", report("call", "failed", error=BOOM)),
        ("exited", exited(signal=9)),
    ],
    "interrupts": [("interrupted", {"error": raised("Exit: enough")})],
    "ours": [("interrupted", {"error": {**BOOM, "is_harness_error": True}})],
    "breaks": [("exited", exited(BROKEN))],
    # At a gate, and behind one that has been opened.
    "waits-to-leave": [("parked", {}), ("released", {"gate": "teardown"}), ("done", {})],
    "hangs-tearing": [("parked", {}), ("released", {"gate": "teardown"})],
    "hangs-leaving": [("parked", {}), ("done", {}), ("released", {"gate": "exit"})],
    "quits-early": [("done", {}), ("exited", exited(0))],
    # In its setup, of which there is no report yet.
    "hangs-in-setup": [("phase", {"phase": "setup"})],
    "xhangs-in-setup": [("phase", {"phase": "setup", "xfail": PLAIN})],
    "dies-in-setup": [("phase", {"phase": "setup"}), ("exited", exited(signal=9))],
    # Before its test.
    "never-starts": [],
    "dies-early": [("exited", exited(signal=9))],
    "cannot-start": [("interrupted", {"error": raised("OSError: no device")})],
}
IN_SETUP = {"hangs-in-setup", "xhangs-in-setup", "dies-in-setup"}
EARLY = {"never-starts", "dies-early", "cannot-start", *IN_SETUP}
DO_NOT_LEAVE = {
    *("crashes", "quits", "aborts", "xcrashes", "fail-crashes"),
    *("hangs", "xhangs", "rhangs", "parks", "skip-parks", "subfail-parks"),
    *("killed", "subfail-killed", "fail-killed"),
    *("breaks", "waits-to-leave", "hangs-tearing", "hangs-leaving", "quits-early"),
    *("never-starts", "dies-early", *IN_SETUP),
}


def fate(
    rank: int,
    steps: Iterable[tuple[str, dict[str, object]]],
    at_s: float,
    *,
    phase: Phase = "call",
) -> list[Event]:
    """Return the events of a rank that came as far as `phase`, and to which `steps` happened."""
    entered = well_behaved(rank, stays_in=phase)
    events = [make_event(0.0, rank, step.kind, step.detail) for step in entered]
    return events + [make_event(at_s, rank, kind, detail) for kind, detail in steps]


def left(rank: int) -> list[Event]:
    """Return the events of a rank that has passed all gates and left."""
    steps = (("done", {}), ("released", {"gate": "exit"}), ("exited", exited()))
    return [make_event(9.0, rank, kind, detail) for kind, detail in steps]  # type: ignore[arg-type]


LOST_WORLD = builders.world(1, ended_s=9.0, ending="lost", reason="the server is gone")


def judged(history: list[Event], size: int, ending: Ending = "self", **changes: Any) -> Finding:  # noqa: ANN401
    """Judge a world in which we have ended who had not left."""
    gone = {event.rank for event in history if event.kind == "exited"}
    history = sorted(history, key=lambda event: event.at_s)
    history += ended((rank for rank in range(size) if rank not in gone), 9.0)
    changes = {"reason": None, **changes}
    result = replace(
        LOST_WORLD, spec=make_spec(size), history=tuple(history), ending=ending, **changes
    )
    return judge(result, SYMPTOMS)


def world(fates: str, ending: Ending = "self", reason: str | None = None) -> Finding:
    """Judge a world; "crashes@2 passes" is one of two ranks, the first of which died at 2 s."""
    parts = [each.partition("@") for each in fates.split()]
    history: list[Event] = []
    for rank, (name, _, at_s) in enumerate(parts):
        phase: Phase = "startup" if name in EARLY else "call"
        history += fate(rank, FATES[name], float(at_s or 1), phase=phase)
        history += [] if name in DO_NOT_LEAVE else left(rank)
    aborted = {rank: "service is gone" for rank, part in enumerate(parts) if part[0] == "aborts"}
    return judged(history, len(parts), ending, reason=reason, last_words=aborted)


def failing(*errors: dict[str, Any]) -> Finding:
    """Judge a world in which each rank raises one of `errors`, one after the other."""
    history: list[Event] = []
    for rank, error in enumerate(errors):
        history += fate(rank, [("report", report("call", "failed", error=error))], rank + 1.0)
        history += left(rank)
    return judged(history, len(errors))


CASES: list[tuple[str, Ending, str, str, str, int | None]] = [
    # fates, ending, outcome, status, outcomes of the ranks, headline
    ("passes passes", "self", "passed", "passed", "passed passed", None),
    # The first unplanned event decides, whoever's it is and in whatever order ranks are numbered.
    ("fails passes", "self", "failed", "failed", "failed passed", 0),
    ("passes fails", "self", "failed", "failed", "passed failed", 1),
    ("fails@2 fails@1", "self", "failed", "failed", "failed failed", 1),
    ("crashes@1 fails@2", "settled", "crashed", "failed", "crashed failed", 0),
    ("crashes@2 fails@1", "settled", "failed", "failed", "crashed failed", 1),
    ("errs@1 crashes@2", "settled", "error", "failed", "error crashed", 0),
    ("subfails@1 fails@2", "self", "failed", "failed", "failed failed", 0),
    # A death is an end that nobody ordered, with code 0 too.
    ("crashes passes", "settled", "crashed", "failed", "crashed passed", 0),
    ("passes quits", "settled", "crashed", "failed", "passed crashed", 1),
    ("fail-crashes passes", "settled", "failed", "failed", "failed passed", 0),  # it raised first
    # Setup and teardown are errors; in the test, what no phase of pytest catches is a failure.
    ("errs passes", "self", "error", "error", "error passed", 0),
    ("passes tears", "self", "error", "error", "passed error", 1),
    ("cannot-start never-starts", "settled", "error", "error", "error collateral", 0),
    ("interrupts passes", "self", "failed", "failed", "failed passed", 0),
    ("ours passes", "self", "error", "error", "error passed", 0),
    ("subfails passes", "self", "failed", "failed", "failed passed", 0),
    # Without a cause, what did not end is hung; who waited at a gate had done its part.
    ("hangs hangs", "overrun", "hung", "failed", "hung hung", None),
    ("hangs parks", "overrun", "hung", "failed", "hung passed", None),
    ("hangs skip-parks", "overrun", "hung", "failed", "hung skipped", None),
    ("hangs hangs", "startup-overrun", "hung", "failed", "hung hung", None),
    ("hangs waits-to-leave", "overrun", "hung", "failed", "hung passed", None),
    ("hangs-tearing parks", "overrun", "hung", "failed", "hung passed", None),
    ("hangs-leaving passes", "overrun", "hung", "failed", "hung passed", None),
    ("never-starts never-starts", "startup-overrun", "hung", "failed", "hung hung", None),
    # With a cause, who did not end did so only because of it, also when the time ran out.
    ("fails hangs", "settled", "failed", "failed", "failed collateral", 0),
    ("crashes hangs", "settled", "crashed", "failed", "crashed collateral", 0),
    ("hangs crashes", "overrun", "crashed", "failed", "collateral crashed", 1),
    # A symptom never decides, however early it is.
    ("loses@1 fails@2", "self", "failed", "failed", "collateral failed", 1),
    ("loses@1 crashes@2", "settled", "crashed", "failed", "collateral crashed", 1),
    ("aborts@1 crashes@2", "settled", "crashed", "failed", "collateral crashed", 1),
    ("aborts@1 fails@2", "settled", "failed", "failed", "collateral failed", 1),
    ("loses@2 loses@1", "self", "hung", "failed", "collateral collateral", 1),
    ("loses parks", "settled", "hung", "failed", "collateral passed", 0),
    ("aborts hangs", "settled", "hung", "failed", "collateral hung", 0),
    # Skips: all or nobody.
    ("skips skips", "self", "skipped", "skipped", "skipped skipped", None),
    ("passes skips", "self", "failed", "failed", "passed skipped", 1),
    ("skips fails", "self", "failed", "failed", "skipped failed", 1),
    ("skips xfails", "self", "failed", "failed", "skipped failed", None),
    # xfail: judged in the ranks, and the worst rank wins.
    ("xfails xfails", "self", "failed", "xfailed", "failed failed", 0),
    ("passes xfails", "self", "failed", "xfailed", "passed failed", 1),
    ("xpasses xpasses", "self", "passed", "xpassed", "passed passed", None),
    ("xpasses xfails", "self", "failed", "xfailed", "passed failed", 1),
    ("strict-xpasses strict-xpasses", "self", "failed", "failed", "failed failed", 0),
    ("strict-xpasses xfails", "self", "failed", "xfailed", "failed failed", None),
    ("xfails fails", "self", "failed", "failed", "failed failed", None),
    ("xfails xloses", "self", "failed", "xfailed", "failed collateral", 0),
    ("xfails xhangs", "settled", "failed", "xfailed", "failed collateral", 0),
    # A plain xfail expects anything, one that names exceptions no hang and no crash.
    ("xhangs xhangs", "overrun", "hung", "xfailed", "hung hung", None),
    ("xcrashes xhangs", "settled", "crashed", "xfailed", "crashed collateral", 0),
    ("rhangs rhangs", "overrun", "hung", "failed", "hung hung", None),
    ("xhangs rhangs", "overrun", "hung", "failed", "hung hung", None),
    ("dies-early xhangs", "settled", "crashed", "xfailed", "crashed collateral", 0),
    ("strict-xpasses loses", "self", "failed", "failed", "failed collateral", 0),
    ("xloses xloses", "self", "hung", "xfailed", "collateral collateral", 0),
    # A mark that a rank has got in its own setup is about that rank alone.
    ("xpasses hangs-in-setup", "overrun", "hung", "failed", "passed hung", None),
    ("xhangs hangs-in-setup", "overrun", "hung", "failed", "hung hung", None),
    ("xfails@2 dies-in-setup@1", "settled", "crashed", "failed", "failed crashed", 1),
    ("xfails@1 dies-in-setup@2", "settled", "failed", "failed", "failed crashed", None),
    ("xhangs xhangs-in-setup", "overrun", "hung", "xfailed", "hung hung", None),
    ("xcrashes xhangs-in-setup", "settled", "crashed", "xfailed", "crashed collateral", 0),
    # If no rank is left, nothing was shown.
    ("killed killed", "self", "failed", "failed", "killed_as_planned killed_as_planned", None),
    ("killed loses", "settled", "failed", "failed", "killed_as_planned failed", 1),
    # A planned death hides no failure of the rank that died.
    ("killed passes", "settled", "passed", "passed", "killed_as_planned passed", None),
    ("subfail-killed passes", "settled", "failed", "failed", "failed passed", 0),
    ("fail-killed passes", "settled", "failed", "failed", "failed passed", 0),
    ("subfail-killed loses", "settled", "failed", "failed", "failed failed", None),
    # A rank that had left the test keeps its failed subtests, which explain no hang.
    ("hangs subfail-parks", "overrun", "hung", "failed", "hung failed", None),
    # Neither a skip nor xfail hides an error of the teardown.
    ("skips skip-tears", "self", "error", "error", "skipped error", 1),
    ("xfails xfail-tears", "self", "failed", "error", "failed error", 1),
    # Our own trouble is nobody's failure.
    ("hangs hangs", "lost", "error", "error", "collateral collateral", None),
    ("hangs hangs", "interrupted", "error", "error", "collateral collateral", None),
]


@pytest.mark.parametrize(
    ("fates", "ending", "outcome", "status", "ranks", "headline"),
    CASES,
    ids=[f"{fates} {ending}" for fates, ending, *_ in CASES],
)
def test_a_world_is_judged(
    fates: str, ending: Ending, outcome: str, status: str, ranks: str, headline: int | None
) -> None:
    """World, pytest's status, each rank, and who decided (None where that is open)."""
    finding = world(fates, ending)
    assert (finding.outcome, finding.status) == (outcome, status)
    assert [each.outcome for each in finding.ranks] == ranks.split()
    if headline is not None or finding.outcome != "failed":
        assert finding.headline == headline


@pytest.mark.parametrize("fates", ["strict-xpasses passes", "strict-xpasses xpasses"])
def test_a_strict_xpass_of_some_ranks_fails_unless_another_xfailed(fates: str) -> None:
    """A rank that pytest would have reported as failed cannot make a world that passed."""
    assert world(fates).status == "failed"


def test_a_death_comes_before_the_raise_that_it_brings_about() -> None:
    """The kernel closes a dead process's sockets first and tells of its end last.

    Measured with two ranks on a plain socket: in 4 of 6 runs the survivor's exception bears a time
    some milliseconds before the death that caused it. No backend knows it for a symptom.
    """
    finding = world("fails@1.000 crashes@1.005", "settled")
    assert (finding.outcome, finding.headline) == ("crashed", 1)


@pytest.mark.parametrize("raised_s", [1.6, 1.99, 2.5])
@pytest.mark.parametrize(
    "error",
    [
        raised("EOFError: "),
        raised("ConnectionResetError: [Errno 104] Connection reset by peer"),
        raised("trainer.StepFailed: step 3", "BrokenPipeError: [Errno 32] Broken pipe"),
    ],
    ids=["end of file", "reset", "raised from it"],
)
def test_a_connection_that_is_lost_around_a_death_is_collateral(
    error: dict[str, Any], raised_s: float
) -> None:
    """On a busy machine the death is seen some tenths of a second after its sockets closed."""
    lost = [("report", report("call", "failed", error=error)), ("parked", {})]
    history = [*fate(0, lost, raised_s), *left(0), *fate(1, FATES["crashes"], 2.0)]
    finding = judged(history, 2, "settled")
    assert (finding.outcome, finding.headline) == ("crashed", 1)
    assert finding.ranks[0].outcome == "collateral"


@pytest.mark.parametrize(
    ("error", "raised_s"),
    [
        (raised("ConnectionResetError: reset"), 1.4),
        (raised("ConnectionRefusedError: refused"), 1.9),
        (raised("TimeoutError: no answer"), 1.9),
        (raised("AssertionError: connection reset"), 1.9),
    ],
    ids=["long before", "refused", "no answer", "an assertion"],
)
def test_another_failure_before_a_death_is_the_cause(
    error: dict[str, Any], raised_s: float
) -> None:
    """The rank that died later closed no connection then; an assertion is never collateral."""
    own = [("report", report("call", "failed", error=error)), ("parked", {})]
    history = [*fate(0, own, raised_s), *left(0), *fate(1, FATES["crashes"], 2.0)]
    finding = judged(history, 2, "settled")
    assert (finding.outcome, finding.headline) == ("failed", 0)


def seen_at(at_s: float, *labels: Label | None) -> WorldSnapshot:
    """Return the snapshot of ranks whose main threads did what `labels` say."""
    ranks = tuple(RankSnapshot(rank=rank, label=label) for rank, label in enumerate(labels))
    return WorldSnapshot(at_s=at_s, reason="trouble", ranks=ranks)


RESET = raised("ConnectionResetError: [Errno 104] Connection reset by peer")


@pytest.mark.parametrize(
    ("snapshot", "is_ours", "outcome"),
    [
        (seen_at(1.81, "BLOCKED", "SLEEPING"), True, "failed"),
        (seen_at(1.81, "BLOCKED", "RUNNING"), True, "failed"),
        (seen_at(1.81, "BLOCKED", "EXITED"), True, "collateral"),
        (seen_at(1.81, "BLOCKED", None), True, "collateral"),
        (seen_at(1.79, "BLOCKED", "SLEEPING"), True, "collateral"),
        (seen_at(1.81, "BLOCKED", "SLEEPING"), False, "collateral"),
    ],
    ids=["it slept", "it ran", "it had ended", "unseen", "seen before", "another program"],
)
def test_a_rank_seen_alive_after_a_lost_connection_has_not_closed_it(
    snapshot: WorldSnapshot, is_ours: bool, outcome: str
) -> None:
    """The kernel closes sockets of a rank that dies; another program may close them before."""
    lost = [("report", report("call", "failed", error=RESET)), ("parked", {})]
    dies = fate(1, FATES["crashes"], 2.0)
    history = [*fate(0, lost, 1.8), *left(0)]
    history += [each for each in dies if is_ours or each.kind != "hello"]
    finding = judged(history, 2, "settled", snapshots=(snapshot,))
    assert finding.ranks[0].outcome == outcome


CLOSED = "DistNetworkError: peer is gone. Connection was likely closed"


@pytest.mark.parametrize(
    ("kind", "other", "outcome"),
    [
        ("wait", "hangs", "failed"),
        ("wait", "parks", "collateral"),
        ("wait", "crashes", "collateral"),
        ("wait", "fails", "collateral"),
        ("collective", "hangs", "collateral"),
    ],
)
def test_a_store_that_is_lost_while_no_rank_has_left_is_no_rank_s(
    kind: Literal["wait", "collective"], other: str, outcome: str
) -> None:
    """A child process of its client may have served it. Only a rank takes a collective with it."""
    wait = Operation(
        name="get", kind=kind, group=(0, 1), sequence=1, since_s=0.5, ended_s=1.0, failed=True
    )
    wait = replace(wait, error=CLOSED)
    lost = [("report", report("call", "failed", error=raised(f"torch.{CLOSED}"))), ("parked", {})]
    history = [*fate(0, lost, 1.0), *left(0), *fate(1, FATES[other], 1.2)]
    finding = judged(history, 2, "settled", operations=(Operations(0, (wait,)),))
    assert finding.ranks[0].outcome == outcome


@pytest.mark.parametrize(
    ("store", "users", "is_busy", "outcome"),
    [
        ("in-store port 1", (), True, "failed"),
        ("in-store port 1", ("in-store port 2",), True, "failed"),
        ("in-store port 1", ("in-store port 1",), True, "collateral"),
        ("in-store port 1", (), False, "collateral"),
        ("", (), True, "collateral"),
    ],
    ids=["alone", "another store", "shared", "it may still come", "the store of all"],
)
def test_who_gives_up_at_a_store_of_its_own_has_waited_for_no_other_rank(
    store: str, users: tuple[str, ...], is_busy: bool, outcome: str
) -> None:
    """All others wait for it, so none of them comes to the store any more."""
    wait = Operation(name="get", kind="wait", group=(0, 1), sequence=1, since_s=0.5, ended_s=1.0)
    wait = replace(wait, error=CLOSED, failed=True, scope=Scope.parse(store))
    barrier = Operation(name="barrier", kind="collective", group=(0, 1), sequence=1, since_s=0.6)
    entered = {((0, 1), 0, Scope.parse(each)): 0 for each in users}
    pages = (Operations(0, (wait,)), Operations(1, (barrier,) if is_busy else (), entered))
    lost = [("report", report("call", "failed", error=raised(f"torch.{CLOSED}"))), ("parked", {})]
    history = [*fate(0, lost, 1.0), *left(0), *fate(1, FATES["parks"], 1.2)]
    finding = judged(history, 2, "settled", operations=pages)
    assert finding.ranks[0].outcome == outcome


def lost_in(group: tuple[int, ...], **changes: Any) -> Operation:  # noqa: ANN401
    """Return an operation of rank 0 that the loss of a peer has ended after a second."""
    found = Operation(name="all_reduce", kind="collective", group=group, sequence=1, since_s=0.5)
    return replace(found, ended_s=1.0, failed=True, error="RuntimeError: peer is gone", **changes)


def lost_with(*operations: Operation, other: str = "hangs", **changes: Any) -> Finding:  # noqa: ANN401
    """Judge a world whose rank 0 loses a peer in operations; the other rank is in its test."""
    given = {"operations": (Operations(0, operations), Operations(1)), **changes}
    history = [*fate(0, FATES["loses"], 1.0), *left(0), *fate(1, FATES[other], 1.2)]
    return judged(history, 2, "settled", **given)


@pytest.mark.parametrize("other", ["hangs", "parks", "loses"])
def test_who_fails_in_a_group_without_another_rank_fails_by_itself(other: str) -> None:
    """Whether the others wait for it, have returned, or give up because it has failed."""
    finding = lost_with(lost_in((0,)), other=other)
    assert (finding.outcome, finding.headline) == ("failed", 0)


@pytest.mark.parametrize(
    "changes",
    [
        {"group": (0, 1)},
        {"group": (0,), "group_size": 2},
        {"group": (0,), "scope": Scope("creation", "port 1"), "group_size": 2},
        {"group": (0,), "scope": Scope("new_group")},
        {"group": (0,), "name": "jit_step"},
        {"group": (0,), "name": "a jitted function"},
        {"group": (0,), "error": "RuntimeError: another"},
        {"group": (0,), "failed": False},
    ],
    ids=[
        *("with a rank", "with unknown members", "not complete", "being made"),
        *("a program", "its start", "another error", "a success"),
    ],
)
def test_who_may_have_lost_a_rank_is_collateral(changes: dict[str, Any]) -> None:
    """An unknown member, or one that has not come yet, may be a rank.

    A program on a rank's own devices raises the error of the one whose result it takes.
    """
    assert lost_with(replace(lost_in((0,)), **changes)).ranks[0].outcome == "collateral"


def test_an_error_of_two_groups_is_of_the_one_with_another_rank() -> None:
    """After a timeout all operations of a group fail with one text."""
    finding = lost_with(lost_in((0,)), lost_in((0, 1)))
    assert finding.ranks[0].outcome == "collateral"


@pytest.mark.parametrize("other", ["fails", "crashes"])
def test_a_process_of_a_rank_that_has_failed_may_be_the_lost_member(other: str) -> None:
    """There are no records of it. The failure is seen a little later than its sockets closed."""
    assert lost_with(lost_in((0,)), other=other).ranks[0].outcome == "collateral"


def test_a_rank_without_records_may_be_the_lost_member() -> None:
    """It runs another program, or its page is lost."""
    alone = lost_in((0,))
    history = [*fate(0, FATES["loses"], 1.0), *left(0), *fate(1, FATES["hangs"], 1.2)]
    foreign = [each for each in history if each.rank == 0 or each.kind != "hello"]
    pages = (Operations(0, (alone,)), Operations(1))
    for found in (
        judged(foreign, 2, "settled", operations=pages),
        judged(history, 2, "settled", operations=pages[:1]),
    ):
        assert found.ranks[0].outcome == "collateral"


@pytest.mark.parametrize(
    ("name", "parked_s", "users", "outcome"),
    [
        ("TCPStore", 0.8, (), "failed"),
        ("TCPStore", 1.2, (), "collateral"),
        ("TCPStore", 0.8, ("in-store port 1",), "collateral"),
        ("get", 0.8, (), "collateral"),
    ],
    ids=["alone", "it may still come", "its host has returned", "its key may be owed"],
)
def test_who_reaches_no_host_of_a_store_has_waited_for_no_rank_that_returned(
    name: str, parked_s: float, users: tuple[str, ...], outcome: str
) -> None:
    """A rank that has hosted the store, or may still do so, is waited for."""
    wait = Operation(name=name, kind="wait", group=(0, 1), sequence=1, since_s=0.5, ended_s=1.0)
    wait = replace(wait, error=CLOSED, failed=True, scope=Scope.parse("in-store port 1"))
    entered = {((0, 1), 0, Scope.parse(each)): 0 for each in users}
    pages = (Operations(0, (wait,)), Operations(1, (), entered))
    lost = [("report", report("call", "failed", error=raised(f"torch.{CLOSED}"))), ("parked", {})]
    history = [*fate(0, lost, 1.0), *left(0), *fate(1, FATES["parks"], parked_s)]
    finding = judged(history, 2, "settled", operations=pages)
    assert finding.ranks[0].outcome == outcome


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (raised("RuntimeError: peer is gone"), "collateral"),
        (raised("torch.distributed.DistStoreError: peer is gone"), "collateral"),
        ({**raised("RuntimeError: peer is gone"), "is_by_user": True}, "failed"),
        (raised("ValueError: the server said: peer is gone"), "failed"),
        (raised("KeyError: peer is gone"), "failed"),
    ],
    ids=["a runtime's", "a runtime's own type", "the user's", "a value", "a key"],
)
def test_an_exception_that_no_runtime_raises_is_no_symptom(
    error: dict[str, Any], outcome: str
) -> None:
    """It may quote any other program, for instance a server of the user's own."""
    assert failing(error, BOOM).ranks[0].outcome == outcome


@pytest.mark.parametrize(
    ("fates", "ending", "when"),
    [
        ("errs passes", "self", "setup"),
        ("passes tears", "self", "teardown"),
        ("passes fails", "self", "call"),
        ("cannot-start never-starts", "settled", "setup"),
        ("crashes passes", "settled", "call"),
        ("hangs hangs", "lost", "setup"),
    ],
)
def test_a_world_is_reported_in_the_phase_that_went_wrong(
    fates: str, ending: Ending, when: str
) -> None:
    """As pytest would report a test of its own."""
    assert world(fates, ending).when == when


@pytest.mark.parametrize(
    ("fates", "call"),
    [
        ("passes tears", ("passed", "")),
        ("skips skip-tears", ("skipped", "no data")),
        ("skip-tears skip-tears", ("skipped", "no data")),
        ("xfails xfail-tears", ("xfailed", "")),
        ("xpasses xpass-tears", ("xpassed", "")),
    ],
)
def test_an_error_of_the_teardown_leaves_the_call_what_it_was(
    fates: str, call: tuple[str, str]
) -> None:
    """As pytest reports a test that skips and whose fixture then fails: SKIPPED and ERROR."""
    finding = world(fates)
    assert (finding.status, finding.when, finding.call) == ("error", "teardown", call)


def test_a_skip_of_some_ranks_fails_the_call_before_the_teardown_fails() -> None:
    """It would otherwise be reported as a call that passed."""
    assert world("passes skip-tears").when == "call"


def test_a_failure_in_the_test_is_not_reported_as_one_of_setup() -> None:
    """Even where another rank's fixture fails in teardown afterwards."""
    assert world("fails@1 tears@2").when == "call"


@pytest.mark.parametrize(
    ("fates", "headline", "reason"),
    [
        ("skips xfails", 0, "rank 0 skipped alone, rank 1 did not; reason: no data"),
        ("xfails@1 fails@2", 1, "rank 1: ValueError: boom"),
    ],
)
def test_what_xfail_expects_is_not_the_reason_of_a_failure(
    fates: str, headline: int, reason: str
) -> None:
    """The reader of a failed test wants to know what was not expected."""
    finding = world(fates)
    assert (finding.headline, finding.reason) == (headline, reason)


@pytest.mark.parametrize(
    ("fates", "ending", "reason"),
    [
        ("passes fails", "self", "rank 1: ValueError: boom"),
        ("fails fails fails", "self", "ranks 0-2: ValueError: boom"),
        ("fails passes fails", "self", "ranks 0,2: ValueError: boom"),
        ("subfails passes", "self", "rank 0: contains 1 failed subtest"),
        ("passes interrupts", "self", "rank 1: Exit: enough"),
        ("crashes hangs", "settled", "rank 0: was killed by SIGKILL in the test"),
        ("quits", "self", "rank 0: exited with code 0 in the test, before it had reported"),
        ("breaks", "self", "rank 0: lost its connection to pytest in the test, exit code 70"),
        ("quits-early", "self", "rank 0: exited with code 0 in shutdown"),
        ("passes skips", "self", "rank 1 skipped alone, rank 0 did not; reason: no data"),
        ("skips passes skips", "self", "ranks 0,2 skipped alone, rank 1 did not; reason: no data"),
        ("skips skips", "self", "no data"),
        ("hangs parks", "overrun", "took longer than 60 s"),
        ("hangs crashes", "overrun", "rank 1: was killed by SIGKILL in the test"),
        ("loses loses", "self", "ranks 0,1 lost the others: RuntimeError: peer is gone"),
        ("strict-xpasses", "self", "rank 0: [XPASS(strict)] bug"),
        ("hangs", "lost", "the server is gone"),
    ],
)
def test_the_reason_says_who_and_what(fates: str, ending: Ending, reason: str) -> None:
    """One line; the harness's own words only where no rank's tell more."""
    own = {"overrun": "took longer than 60 s", "lost": "the server is gone"}.get(ending)
    assert world(fates, ending, own).reason == reason


@pytest.mark.parametrize(
    ("fates", "of_world", "of_ranks"),
    [
        ("quits hangs", "exited", ["exited", "collateral"]),
        ("crashes hangs", "crashed", ["crashed", "collateral"]),
        ("quits crashes", "crashed", ["exited", "crashed"]),
        ("breaks hangs", "crashed", ["crashed", "collateral"]),
        ("subfails quits-early", "exited", ["failed", "exited"]),
    ],
)
def test_a_rank_that_exits_with_0_has_not_crashed(
    fates: str, of_world: str, of_ranks: list[str]
) -> None:
    """The reader's words; the outcomes in verdict.json stay."""
    finding = world(fates, "settled")
    assert (finding.word, [each.word for each in finding.ranks]) == (of_world, of_ranks)
    assert {each.outcome for each in finding.ranks if each.word == "exited"} <= {"crashed"}


def test_a_lost_server_is_the_reason_of_an_error() -> None:
    """A world is not an error because of what a rank raised in its test."""
    assert world("fails hangs", "lost", "the server is gone").reason == "the server is gone"


def test_an_xpass_is_not_called_strict() -> None:
    """It did not fail, and its mark does not say so."""
    assert world("xpasses xpasses").reason == "bug"


def test_several_failed_subtests_are_counted() -> None:
    """In words that fit their number."""
    twice = [("subtest", {"outcome": "failed"})] * 2
    finding = judged([*fate(0, twice, 1.0), *left(0)], 1)
    assert finding.reason == "rank 0: contains 2 failed subtests"


def test_a_failure_without_an_exception_is_told_by_its_report() -> None:
    """A plugin may fail a report on its own; what pytest would show of it is shown."""
    shown = report("call", "failed", report={"longrepr": "\n\n3 warnings too many\nand more"})
    finding = judged([*fate(0, [("report", shown)], 1.0), *left(0)], 1)
    assert finding.reason == "rank 0: 3 warnings too many"
    structured = report("call", "failed", report={"longrepr": {"reprcrash": None}})
    finding = judged([*fate(0, [("report", structured)], 1.0), *left(0)], 1)
    assert finding.reason == "rank 0: failed"


def test_a_rank_whose_end_nobody_saw_is_not_taken_for_one_that_passed() -> None:
    """The server that would have told of it is gone."""
    result = replace(LOST_WORLD, history=tuple(fate(0, FATES["hangs"], 1.0)))
    assert [each.outcome for each in judge(result, SYMPTOMS).ranks] == ["collateral"]


def test_failures_that_differ_in_addresses_are_one() -> None:
    """Neither a port nor where an object lies tells the reader anything."""
    finding = failing(
        raised("OSError: <Socket at 0x7f1200> of 127.0.0.1:4711 [127.0.0.1]:33"),
        raised("OSError: <Socket at 0x7fabc8> of 127.0.0.1:4712 [127.0.0.1]:44"),
    )
    assert finding.reason.startswith("ranks 0,1: OSError: <Socket at 0x7f1200>")


@pytest.mark.parametrize(
    "other",
    [
        raised("ValueError: bang", file="t.py", line=3),
        raised("KeyError: boom", file="t.py", line=3),
        raised("ValueError: boom", file="t.py", line=4),
        raised("ValueError: boom", file="u.py", line=3),
    ],
    ids=["words", "type", "line", "file"],
)
def test_failures_that_differ_are_not_one(other: dict[str, Any]) -> None:
    """Only ranks to which the very same happened are named together."""
    finding = failing(raised("ValueError: boom", file="t.py", line=3), other)
    assert finding.reason == "rank 0: ValueError: boom"


def test_a_broken_barrier_of_ours_is_a_symptom_in_every_backend() -> None:
    """Whoever is released from it has done nothing wrong."""
    finding = failing(raised("pytest_multihost.WorldBrokenError: rank 1 is gone"), BOOM)
    assert (finding.outcome, finding.headline) == ("failed", 1)
    assert [each.outcome for each in finding.ranks] == ["collateral", "failed"]


def test_a_type_does_not_make_a_symptom() -> None:
    """The module of an exception is no part of what a backend's patterns look at."""
    finding = failing(raised("peer is gone.CustomError: boom"))
    assert finding.ranks[0].outcome == "failed"


GLOO_ABORTS = """terminate called after throwing an instance of 'gloo::EnforceNotMet'
  what():  [enforce fail at pair.cc:456] op.preamble.length <= op.nbytes. 12480 vs 8320.
Fatal Python error: Aborted

Thread 0x00007fd53de266c0 (most recent call first):
"""


@pytest.mark.parametrize(
    ("log", "said"),
    [
        (
            GLOO_ABORTS,
            ": op.preamble.length <= op.nbytes. 12480 vs 8320.",
        ),
        (
            "F1122 11:42:59.04 236 client.h:77] Check failed: a == b\n*** stack ***\n",
            ": Check failed: a == b",
        ),
        (
            "F1122 11:42:59.04 236 client.h:80] Ended. Advice. absl::Status: INTERNAL: Failed.\n",
            ": Ended: INTERNAL: Failed.",
        ),
        (
            "step 1\nfree(): double free detected in tcache 2\n",
            ": free(): double free detected in tcache 2",
        ),
        (
            "a.out: a.c:3: main: Assertion `x' failed.\n",
            ": a.out: a.c:3: main: Assertion `x' failed.",
        ),
        ("step 1\nstep 2\n", ""),
    ],
    ids=["C++", "glog", "jax", "glibc", "assert", "the test's own"],
)
def test_a_rank_that_aborts_is_told_with_what_its_runtime_said(log: str, said: str) -> None:
    """Not with what the test has printed."""
    dies = ("exited", exited(signal=6))
    history = [*fate(0, [dies], 1.0), *fate(1, FATES["hangs"], 1.0)]
    finding = judged(history, 2, "settled", last_words={0: log})
    assert finding.reason == f"rank 0: was killed by SIGABRT in the test{said}"


@pytest.mark.parametrize(("full", "said"), [("/dev/shm", "; /dev/shm was full"), ("", "")])  # noqa: S108
def test_a_rank_that_found_no_space_in_shared_memory_is_told_so(full: str, said: str) -> None:
    """SIGBUS has other causes, too: nothing is said of a file system with space left."""
    dies = ("exited", {**exited(signal=7), "full": full})
    finding = judged([*fate(0, [dies], 1.0), *fate(1, FATES["hangs"], 1.0)], 2, "settled")
    assert finding.reason == f"rank 0: was killed by SIGBUS in the test{said}"


@pytest.mark.parametrize(
    ("lacked", "said"),
    [(True, "; the kernel ran out of memory (this rank's peak was 9.5 GB)"), (False, "")],
)
def test_a_rank_that_the_kernel_may_have_killed_is_shown_with_its_memory(
    lacked: bool, said: str
) -> None:
    """SIGKILL has other causes, too: nothing is said where memory was left."""
    dies = (
        "exited",
        {**exited(signal=9), "lacked_memory": lacked, "peak_rss_bytes": 9_500_000_000},
    )
    finding = judged([*fate(0, [dies], 1.0), *fate(1, FATES["hangs"], 1.0)], 2, "settled")
    assert finding.reason == f"rank 0: was killed by SIGKILL in the test{said}"


def test_the_last_words_of_one_rank_make_no_other_collateral() -> None:
    """Each log speaks for its own rank."""
    history = [*fate(0, FATES["crashes"], 2.0), *fate(1, FATES["aborts"], 1.0)]
    finding = judged(history, 2, "self", last_words={0: "", 1: "service is gone"})
    assert (finding.outcome, finding.headline) == ("crashed", 0)


def test_a_summary_is_one_line_of_bounded_length() -> None:
    """A message may hold a whole array; the short summary is for one glance."""
    finding = failing(raised("ValueError: " + "x" * 1000 + "\nsecond line"))
    assert len(finding.reason) < 350
    assert "second" not in finding.reason


def test_a_rank_that_was_never_forked_is_an_error() -> None:
    """There is nothing to be said of a process that did not exist."""
    finding = judged([], 2, "lost", reason="the ranks could not be started")
    assert {each.outcome for each in finding.ranks} == {"error"}
    assert (finding.status, finding.reason) == ("error", "the ranks could not be started")


@pytest.mark.parametrize("pattern", ["(a+)+$", "(x|x)*y", ".*", "a{1,9999}b", "^(([a-z])+.)+$"])
def test_a_file_brings_no_regular_expression(pattern: str) -> None:
    """Only patterns that a backend has here are looked for: others may never end."""
    named = Symptoms((pattern, "ours .*", "plain words"), (pattern,))
    found, others = named.known_among(Symptoms(("ours .*",)))
    assert found == Symptoms(("ours .*", "plain words"), ())
    assert others == (pattern,)


def test_a_pattern_of_the_log_is_known_whoever_has_it() -> None:
    """A backend's pattern for logs and for exceptions may be the same."""
    named = Symptoms((), ("gone .*",))
    assert named.known_among(Symptoms(("gone .*",))) == (named, ())


@pytest.mark.parametrize(
    ("fates", "outcome"),
    [
        pytest.param("aborts aborts", "crashed", id="all"),
        pytest.param("aborts hangs", "hung", id="but one that has not ended"),
        pytest.param("loses aborts", "crashed", id="but one that has raised of itself"),
        pytest.param("loses loses", "hung", id="none"),
        pytest.param("aborts fails", "failed", id="for a known reason"),
    ],
)
def test_a_world_that_its_runtime_has_ended_has_crashed(fates: str, outcome: str) -> None:
    """If no rank is to blame; the reason is how it has ended them."""
    found = as_aborted(world(fates, "settled"), Names())
    assert found.outcome == outcome
    is_told = found.reason.endswith(": was killed by SIGABRT in the test")
    assert is_told is (outcome == "crashed")
