"""Tests that must hang, and say how."""

from __future__ import annotations

import pytest
from runtimes import SUBTESTS

LATE = """
import pytest, time

@pytest.mark.multihost_expect({expected})
@pytest.mark.multihost(ranks=3, timeout=4)
def test_it(world):
    if world.rank == 1:
        time.sleep(600)
    world.barrier("b")
"""


@pytest.mark.parametrize(
    "expected",
    [
        "'straggler'",
        "kind='straggler', culprits=[1], waiting=[0, 2]",
        "culprits=1",
        "match='never reached world.barrier .b.'",
        "'straggler', within=60",
    ],
)
@pytest.mark.claim("assert that code hangs")
def test_a_hang_as_expected_passes(run_worlds, expected: str) -> None:
    """The verdict is written all the same, and says that it was expected."""
    worlds = run_worlds(LATE.format(expected=expected))
    worlds.run.assert_outcomes(passed=1)
    verdict = worlds.verdicts["test_it"]
    assert (verdict["status"], verdict["expected"], verdict["outcome"]) == ("passed", True, "hung")
    assert verdict["diagnosis"]["culprits"] == [1]


@pytest.mark.parametrize(
    ("expected", "told"),
    [
        ("kind='deadlock'", "kind is straggler, not deadlock"),
        ("culprits=[0]", "culprits is rank 1, not rank 0"),
        ("waiting=[0]", "waiting is ranks 0,2, not rank 0"),
        ("match='all_reduce'", "the summary has no match for 'all_reduce'"),
        ("within=0.001", "not 0.001 s at most"),
    ],
)
def test_another_hang_fails_and_shows_both(run_worlds, expected: str, told: str) -> None:
    """What was expected, in what it differs, and what was found."""
    worlds = run_worlds(LATE.format(expected=expected))
    worlds.run.assert_outcomes(failed=1)
    assert told in worlds.stdout
    assert "rank 1 never reached world.barrier 'b'" in worlds.stdout
    assert worlds.verdicts["test_it"]["expected"] is False


@pytest.mark.program(
    """
    import pytest

    @pytest.mark.multihost_expect("straggler")
    @pytest.mark.multihost(ranks=2)
    def test_it(world):
        pass
    """
)
def test_a_world_that_passes_has_not_hung_as_expected(worlds) -> None:
    """Nothing hung: that is not what the test is for."""
    worlds.run.assert_outcomes(failed=1)
    assert "expected kind=straggler; nothing hung" in worlds.stdout


@pytest.mark.parametrize(
    ("expected", "problem"),
    [
        ("'late'", "kind must be one of died, raised"),
        ("culprits='0'", "culprits must be a rank or a list of ranks, not '0'"),
        ("match='('", "match must be a regular expression"),
        ("within=0", "within must be a positive number of seconds"),
        ("who=3", "has no key 'who'"),
        ("", "expects nothing"),
    ],
)
def test_an_expectation_that_cannot_be_is_a_usage_error(
    run_worlds, expected: str, problem: str
) -> None:
    """Before anything runs, with the test's name."""
    worlds = run_worlds(LATE.format(expected=expected))
    assert worlds.run.ret == pytest.ExitCode.USAGE_ERROR
    assert problem in worlds.run.stderr.str()


OWN = """
import os, pytest, time

@pytest.mark.multihost_expect("died", culprits=[1])
@pytest.mark.multihost(ranks=3, timeout=60)
def test_it(world):
    if world.rank == 1:
        time.sleep({dies_after})
        os._exit(3)
    if world.rank == 2:
        time.sleep({checks_after})
        {check}
    world.barrier("b")
"""


@pytest.mark.parametrize(("dies_after", "checks_after"), [(0.5, 0), (0, 0.5)])
def test_an_assertion_of_another_rank_fails_a_test_that_ends_as_expected(
    run_worlds, dies_after: float, checks_after: float
) -> None:
    """Before the death or after it; its traceback is on top."""
    own = OWN.format(
        dies_after=dies_after, checks_after=checks_after, check="assert world.size == 4, 'own'"
    )
    worlds = run_worlds(own)
    worlds.run.assert_outcomes(failed=1)
    assert "AssertionError: own" in worlds.stdout
    assert "CRASHED" not in worlds.stdout.splitlines()[-2]
    assert "assert world.size == 4, 'own'" in worlds.stdout
    verdict = worlds.verdicts["test_it"]
    assert (verdict["status"], verdict["expected"]) == ("failed", False)
    assert verdict["rank_results"][2]["outcome"] == "failed"


@pytest.mark.program(
    """
    import os, pytest, socket

    @pytest.mark.multihost_expect("died", culprits=[1])
    @pytest.mark.multihost(ranks=3, timeout=60)
    def test_it(world):
        listener = socket.create_server(("127.0.0.1", 0))
        ports = world.gather(listener.getsockname()[1])
        if world.rank == 1:
            connection, _ = listener.accept()
            os._exit(3)
        if world.rank == 2:
            with socket.create_connection(("127.0.0.1", ports[1])) as connection:
                if not connection.recv(1):
                    raise EOFError("rank 1 is gone")
        world.barrier("b")
    """
)
def test_a_connection_that_the_expected_death_closes_is_harmless(worlds) -> None:
    """No backend knows the user's own sockets."""
    worlds.run.assert_outcomes(passed=1)


def test_a_failed_subtest_fails_a_test_that_ends_as_expected(run_worlds) -> None:
    """It is a check of the test's own, also in the rank that dies."""
    worlds = run_worlds(
        """
        import os, pytest

        @pytest.mark.multihost_expect("died", culprits=[1])
        @pytest.mark.multihost(ranks=2, timeout=60)
        def test_it(world, subtests):
            if world.rank == 1:
                with subtests.test("sum"):
                    assert world.size == 3
                os._exit(3)
            world.barrier("b")
        """,
        *SUBTESTS,
    )
    assert worlds.verdicts["test_it"]["status"] == "failed"
    assert "but rank 1: contains 1 failed subtest" in worlds.stdout
