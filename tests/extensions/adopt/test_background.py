"""Ranks that run while their test goes on: `start_processes(join=False)`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from runtimes import require

from pytest_multihost.core.services import Turn
from pytest_multihost.extensions.adopt.background import WaitingTest
from pytest_multihost.testing import Exited, RankFacts

Worlds = Any  # of tests/conftest.py

ARGS = ("--multihost-adopt=spawn", "-pno:randomly")

IMPORTS = """
import multiprocessing, os, signal, sys, threading, time, pytest
import torch.multiprocessing as mp

fork = multiprocessing.get_context("fork")

def start(fn, *args):
    return mp.start_processes(fn, args, nprocs=2, join=False, start_method="fork")

def join(context):
    while not context.join():
        pass

def sleeps(rank, seconds):
    time.sleep(seconds)
"""


@pytest.mark.program(
    IMPORTS
    + """
def asks(rank, questions, answers):
    answers.put((rank, questions.get()))

def test_talks_to_its_ranks():
    questions, answers = fork.SimpleQueue(), fork.SimpleQueue()
    context = start(asks, questions, answers)
    assert context.join(timeout=0.1) is False
    assert [each.is_alive() for each in context.processes] == [True, True]
    assert context.pids() == [each.pid for each in context.processes]
    time.sleep(2)  # longer than a proof takes
    for _ in range(2):
        questions.put("go")
    join(context)
    assert {answers.get(), answers.get()} == {(0, "go"), (1, "go")}
    assert [each.exitcode for each in context.processes] == [0, 0]
    assert context.join() is True

def raises(rank):
    assert rank != 1, "the reason"
    time.sleep(100_000)

def test_raises():
    context = start(raises)
    with pytest.raises(mp.ProcessRaisedException, match="the reason") as caught:
        join(context)
    assert caught.value.error_index == 1
    assert [each.exitcode for each in context.processes] == [-15, 1]

def test_exits():
    with pytest.raises(mp.ProcessExitedException, match="exit code 7") as caught:
        join(start(lambda rank: sys.exit(7 * rank)))
    assert caught.value.exit_code == 7

def test_ends_one_and_needs_the_other(tmp_path):
    def works(rank):
        time.sleep(3)
        (tmp_path / str(rank)).touch()
    context = mp.start_processes(works, nprocs=2, join=False, start_method="fork")
    context.processes[1].kill()
    context.processes[0].join()
    assert os.listdir(tmp_path) == ["0"] and context.processes[0].exitcode == 0
    assert context.processes[1].exitcode == -9

def test_stops_one_for_a_while():
    context = start(lambda rank: time.sleep(0.5))
    os.kill(context.pids()[1], signal.SIGSTOP)
    time.sleep(3)  # two snapshots of a stopped rank are a verdict elsewhere
    os.kill(context.pids()[1], signal.SIGCONT)
    join(context)

def test_leaves_them(request):
    context = start(sleeps, 100_000)
    assert context.join(timeout=0) is False

    def look():
        assert not any(each.is_alive() for each in context.processes)
        with pytest.raises(mp.ProcessExitedException):
            context.join()

    request.addfinalizer(look)
""",
    *ARGS,
)
def test_a_test_goes_on_while_its_ranks_run(worlds: Worlds) -> None:
    """What torch's context shows is as torch's; nothing that the test does is a hang."""
    require("torch")
    worlds.run.assert_outcomes(passed=6)
    assert len(worlds.all_verdicts) == 6
    assert not any(each["outcome"] == "hung" for each in worlds.all_verdicts)


@pytest.mark.program(
    IMPORTS
    + """
from pytest_multihost import current_world

def late(rank):
    if rank == 1:
        time.sleep(100_000)
    current_world().barrier("all")

def test_joins():
    join(start(late))

def test_joins_for_a_time():
    assert start(late).join(timeout=0.5), "too slow"

def test_joins_again_and_again():
    context = start(late)
    while not context.join(timeout=0.2):
        pass
""",
    *ARGS,
    "--multihost-timeout=20",
)
def test_a_hang_has_its_verdict_where_the_test_waits(worlds: Worlds) -> None:
    """At a join; in the report of a test that its limit has failed; by time if limits repeat."""
    require("torch")
    worlds.run.assert_outcomes(failed=3)
    assert [each["diagnosis"]["culprits"] for each in worlds.all_verdicts] == [[1], [1], [1]]
    assert worlds.verdicts["test_joins"]["diagnosis"]["detected_by"] == "proof"
    assert worlds.verdicts["test_joins_for_a_time"]["diagnosis"]["detected_by"] == "proof"
    assert worlds.verdicts["test_joins_again_and_again"]["diagnosis"]["detected_by"] == "deadline"
    worlds.run.stdout.fnmatch_lines(["*HUNG  rank 1 *", "*too slow*", "HUNG*", "HUNG*", "HUNG*"])


@pytest.mark.program(
    IMPORTS
    + """
@pytest.fixture
def context():
    context = start(sleeps, 0.1)
    yield context
    join(context)

def test_of_a_fixture(context):
    assert len(context.pids()) == 2

def test_two():
    first, second = start(sleeps, 1), start(sleeps, 0.1)
    join(second)
    join(first)
""",
    *ARGS,
)
def test_ranks_that_others_may_use_start_as_before(worlds: Worlds) -> None:
    """Those of a fixture, and a second group beside the first."""
    require("torch")
    worlds.run.assert_outcomes(passed=2, warnings=2)
    worlds.run.stdout.fnmatch_lines(
        ["*test_of_a_fixture: *outside of the test's function*", "*earlier call with join=False*"]
    )


def _turn(test: WaitingTest, now: float) -> Turn:
    return Turn(now=now, facts=test.facts, deadline_s=99, horizon_s=99, is_last=True)


def _turns(test: WaitingTest, *times: float) -> None:
    for now in times:
        test.service().due(_turn(test, now))


def _test(facts: tuple[RankFacts, ...] = ()) -> WaitingTest:
    return WaitingTest(timeout_s=30.0, changed=lambda: None, facts=facts)


@pytest.mark.unit
def test_only_the_time_in_which_the_test_waits_counts() -> None:
    """From the start until the ranks run, and in each wait without a limit."""
    test = _test()
    service = test.service()
    _turns(test, 0.0, 1.0)
    test.goes_on()
    _turns(test, 5.0)
    with test.waiting("all"):
        _turns(test, 7.0)
        assert service.held_s(0.0, 8.0) == 4.0
        assert not service.is_acting(8.0)
        assert service.permits_proof(99.0)
    assert service.is_acting(8.0)
    assert not service.permits_proof(99.0)


@pytest.mark.unit
def test_what_was_seen_before_a_wait_is_no_evidence() -> None:
    """Between two waits the test may have moved its ranks."""
    test = _test()
    service = test.service()
    test.goes_on()
    for _ in range(2):
        with test.waiting("all"):
            assert service.is_acting(1.0)
            [action] = service.due(_turn(test, 1.0))
            assert action.moves_at_s == 1.0
            assert not service.due(_turn(test, 2.0))
            assert not service.is_acting(2.0)


@pytest.mark.unit
@pytest.mark.parametrize(
    ("what", "waits"), [("all", True), ("one", False), ("limited", False)], ids=str
)
def test_a_test_that_waits_for_one_rank_may_have_ended_another(what: str, waits: bool) -> None:
    """Then the end of the other one is no reason to end the world."""
    died = RankFacts(1, exit=Exited(code=None, signal=9), exited_s=1.0)
    test = _test((RankFacts(0), died))
    test.goes_on()
    with test.waiting(what):
        _turns(test, 1.0)
        assert test.service().is_acting(2.0) is not waits


@pytest.mark.unit
def test_limits_of_waits_add_up_to_the_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test that waits a little for ever has a verdict."""
    test, clock = _test(), iter([0.0, 20.0, 20.0, 40.0])
    tick: Callable[[], float] = lambda: next(clock)  # noqa: E731
    monkeypatch.setattr("pytest_multihost.extensions.adopt.background.monotonic", tick)
    test.goes_on()
    for held_s in (9.0, 0.0):
        with test.waiting("limited"):
            pass
        assert test.service().held_s(0.0, 9.0) == held_s
