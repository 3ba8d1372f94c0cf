"""What a hang does that is proven before its deadline, and what is never called one."""

from __future__ import annotations

import pytest

HANG = """
import pytest, time

@pytest.mark.multihost(ranks=3, timeout=60)
def test_it(world):
    if world.rank == 1:
        time.sleep(600)
    world.barrier("b")
"""


def test_a_proven_hang_ends_its_world_long_before_the_deadline(run_worlds) -> None:
    """With the culprit, its line, and who waits for it."""
    worlds = run_worlds(HANG)
    worlds.run.assert_outcomes(failed=1)
    diagnosis = worlds.verdicts["test_it"]["diagnosis"]
    assert (diagnosis["detected_by"], diagnosis["culprits"]) == ("proof", [1])
    assert diagnosis["detected_after_s"] < 30
    assert diagnosis["where"]["source"] == "time.sleep(600)"
    assert "FAILED test_worlds.py::test_it - HUNG  rank 1 never reached world.barrier 'b'" in (
        worlds.stdout
    )


def test_early_off_waits_for_the_deadline(run_worlds) -> None:
    """Then nothing but time tells; who is to blame is told all the same."""
    worlds = run_worlds(HANG.replace("60", "6"), "--multihost-early=off")
    diagnosis = worlds.verdicts["test_it"]["diagnosis"]
    assert (diagnosis["detected_by"], diagnosis["culprits"]) == ("deadline", [1])


def test_early_warn_tells_of_the_proof_and_waits(run_worlds) -> None:
    """For those who want to see what would have been ended."""
    worlds = run_worlds(HANG.replace("60", "8"), "--multihost-early=warn")
    worlds.run.assert_outcomes(failed=1, warnings=1)
    assert "the world was seen to hang (proof); its deadline was waited for" in worlds.stdout
    assert worlds.verdicts["test_it"]["diagnosis"]["detected_by"] == "deadline"


def test_another_word_than_these_is_a_usage_error(run_worlds) -> None:
    """It lists what there is."""
    worlds = run_worlds(HANG, "--multihost-early=sometimes")
    assert worlds.run.ret == pytest.ExitCode.USAGE_ERROR
    assert "must be one of fail, warn, off, not 'sometimes'" in worlds.run.stderr.str()


def test_a_rank_that_is_late_by_less_than_the_deadline_is_waited_for(run_worlds) -> None:
    """Longer than any proof takes; slow is not hung."""
    worlds = run_worlds(HANG.replace("time.sleep(600)", "time.sleep(6)"))
    worlds.run.assert_outcomes(passed=1)


def test_ranks_that_have_finished_do_not_hide_that_another_hangs(run_worlds) -> None:
    """They wait at our own gate, which only the last one can open."""
    worlds = run_worlds(
        """
        import pytest, threading

        @pytest.mark.multihost(ranks=3, timeout=60)
        def test_it(world):
            if world.rank == 2:
                threading.Lock().acquire() and threading.Event().wait()
        """
    )
    diagnosis = worlds.verdicts["test_it"]["diagnosis"]
    assert (diagnosis["kind"], diagnosis["culprits"], diagnosis["detected_by"]) == (
        "stuck",
        [2],
        "proof",
    )


def test_an_operation_of_ones_own_names_whom_it_waits_for(run_worlds) -> None:
    """A transport that nobody knows can tell of its waits."""
    worlds = run_worlds(
        """
        import pytest, time
        from pytest_multihost import operation

        @pytest.mark.multihost(ranks=3, timeout=60)
        def test_it(world):
            if world.rank != 1:
                with operation("halo exchange", peers=[1]):
                    time.sleep(600)
            time.sleep(500)
        """
    )
    diagnosis = worlds.verdicts["test_it"]["diagnosis"]
    assert (diagnosis["kind"], diagnosis["culprits"], diagnosis["waiting"]) == (
        "straggler",
        [1],
        [0, 2],
    )
    assert "halo exchange" in diagnosis["summary"]
