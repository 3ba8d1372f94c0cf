"""The evidence beside a diagnosis, word for word, and where each fact comes from."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import builders
from builders import cause, in_tests, stands

from pytest_multihost.core.blame.cause import Cause
from pytest_multihost.core.blame.evidence import evidence
from pytest_multihost.core.blame.rank_states import RankState
from pytest_multihost.core.blame.wait_graph import Wait
from pytest_multihost.core.outcome import Symptoms, judge
from pytest_multihost.testing import (
    CALLEE_SCOPE,
    Activity,
    Evidence,
    Frame,
    Origin,
    Scope,
    WorldResult,
    exited,
    make_event,
    make_spec,
    raised,
    report,
)

SIZE = 3


operation = partial(builders.operation, sequence=3, since_s=103.00004, waited_s=103.0)
"""A collective of all ranks that began three seconds after the world."""


REDUCE = operation()
PAIR = operation(group=(0, 2), source="flight-recorder")


def world(**more: object) -> WorldResult:
    """Return a world in which rank 1 raised, rank 2 was killed, and rank 0 is in its test."""
    history = in_tests(SIZE, 100.0)
    error = raised("ValueError: no such step")
    history += [
        make_event(105.5, 1, "report", report("call", "failed", error=error)),
        make_event(106.0, 1, "parked"),
        make_event(107.0, 2, "exited", exited(signal=9)),
    ]
    return builders.world(SIZE, history, **{"started_s": 100.0, "ended_s": 160.0, **more})


def told(cause: Cause, *states: RankState, result: WorldResult | None = None) -> list[Evidence]:
    """Return the evidence; ranks without a state of their own stood idle."""
    found = {rank: stands(rank) for rank in range(SIZE)}
    found |= {each.rank: each for each in states}
    result = result or world()
    return list(evidence(cause, found, result, judge(result, Symptoms())))


def test_each_waiting_rank_has_entered_its_first_operation() -> None:
    """Since when, after the world's start; a wait of a culprit is no evidence against others."""
    waits = (
        Wait(0, PAIR, frozenset({1})),
        Wait(0, REDUCE, frozenset({1})),
        Wait(1, REDUCE, frozenset({2})),
        Wait(2, None, frozenset({1})),
    )
    found = told(cause("straggler", (1,), waiting=(0, 2), waits=waits), stands(2, label="SLEEPING"))
    assert found == [Evidence(0, "entered all_reduce #3 (group 0,2)", "flight-recorder", at_s=3.0)]


def test_a_rank_that_polls_sleeps_again_and_again() -> None:
    """Nothing else shows what it waits for."""
    waits = (Wait(2, None, frozenset({1})),)
    found = told(cause("raised", (), waiting=(2,), waits=waits), stands(2, polls=True))
    assert found == [Evidence(2, "main thread sleeps again and again", "proc")]


def test_a_culprit_that_died_has_its_exit() -> None:
    """From the kernel; a rank that lives has none."""
    dead = stands(2, condition="died", label="EXITED")
    assert told(cause("died", (2,)), dead) == [Evidence(2, "was killed by SIGKILL", "pidfd")]
    assert told(cause("died", (0,)), stands(0, condition="died")) == []


def test_a_culprit_that_raised_has_its_exception() -> None:
    """From pytest, with its time."""
    state = stands(1, condition="raised", label="BLOCKED")
    expected = Evidence(1, "raised ValueError: no such step", "pytest", at_s=5.5)
    assert told(cause("raised", (1,)), state) == [expected]
    assert told(cause("raised", (0,)), stands(0, condition="raised")) == []


def test_a_culprit_that_has_finished_left_the_test() -> None:
    """When it did."""
    expected = Evidence(1, "returned from the test", "pytest", at_s=6.0)
    assert told(cause("finished", (1,)), stands(1, condition="finished")) == [expected]
    assert told(cause("finished", (0,)), stands(0, condition="finished")) == []


def test_in_an_attached_run_the_harness_has_seen_it() -> None:
    """There is no pytest, and no test."""
    result = world(spec=replace(make_spec(SIZE), subject="program"))
    found = told(cause("finished", (1,)), stands(1, condition="finished"), result=result)
    assert found == [Evidence(1, "returned from the program", "harness", at_s=6.0)]
    found = told(cause("raised", (1,)), stands(1, condition="raised"), result=result)
    assert found == [Evidence(1, "raised ValueError: no such step", "harness", at_s=5.5)]


def test_the_last_operation_of_a_late_rank_in_the_group_is_named() -> None:
    """The last of that group, and the exception by which it left that, without its text."""
    late = cause("straggler", (1,), waiting=(0,), operation=operation(sequence=5))
    known = (
        operation(sequence=2, ended_s=102.0),
        operation("barrier", sequence=4, ended_s=104.0, failed=True, error="OSError: disk: full"),
        operation(sequence=3, ended_s=103.0),
        operation("all_gather", sequence=9, group=(0, 1)),
        operation("store.get", kind="wait", sequence=8),
    )
    last = "last operation in this group was barrier #4 (world group)"
    [found] = told(late, stands(1, *known))
    assert found == Evidence(1, f"{last}, which raised OSError", "recorder")
    [found] = told(late, stands(1, replace(known[1], error="")))
    assert found == Evidence(1, last, "recorder")
    [found] = told(late, stands(1, *known[3:]))
    assert found == Evidence(1, "entered no operation of this group", "recorder")


def test_what_was_entered_before_is_said_only_where_it_was_recorded() -> None:
    """Neither of a transfer, nor by one look from outside, nor without an operation."""
    receive = operation("recv", kind="transfer", peer=1)
    assert told(cause("straggler", (1,), operation=receive)) == []
    assert (
        told(
            cause("straggler", (1,), operation=REDUCE),
            result=world(origin=Origin(is_counted=False)),
        )
        == []
    )
    assert told(cause("straggler", (1,))) == []


def test_what_the_main_thread_of_a_culprit_does_is_told_in_words() -> None:
    """While it lives."""
    sleeps = {"label": "SLEEPING", "activity": Activity("sleep", ends_in_s=600.0)}
    reads = {"label": "IO", "activity": Activity("read", "/data/ckpt")}
    for seen, words in (
        (sleeps, "main thread is sleeping for another 600.0 s"),
        (reads, "main thread waits in read(/data/ckpt)"),
        ({"label": "RUNNING"}, "main thread is running"),
    ):
        found = told(cause("straggler", (1,)), stands(1, **seen))
        assert found == [Evidence(1, words, "proc")]
    assert told(cause("straggler", (1,)), stands(1, activity=Activity("read"))) == []


def test_functions_that_a_culprit_runs_for_others_are_named_and_its_calls_meanwhile() -> None:
    """Such a call may be what it cannot get out of."""
    function = operation(
        "run", kind="wait", detail="fetch", scope=CALLEE_SCOPE, waited_s=None, source="rpc"
    )
    call = operation(
        "rpc_sync(f)",
        kind="transfer",
        scope=Scope("rpc", "1"),
        peer=0,
        sequence=0,
        frame=Frame("/t/train.py", 12, "step"),
        source="recorder",
    )
    found = told(cause("straggler", (1,)), stands(1, function, call, REDUCE))
    assert found == [
        Evidence(1, "runs fetch, which another rank has called", "rpc"),
        Evidence(1, "another thread waits in rpc_sync(f) at train.py:12", "recorder"),
    ]
    assert told(cause("straggler", (1,)), stands(1, call)) == []
    assert len(told(cause("straggler", (1,)), stands(1, function, replace(call, frame=None)))) == 1
