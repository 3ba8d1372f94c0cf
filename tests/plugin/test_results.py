"""Results cannot lie: whatever a rank does, the one report of its test says so."""

from __future__ import annotations

import json

import pytest


@pytest.mark.program(
    """
    import pytest

    @pytest.mark.multihost(ranks=4)
    def test_it(world, tmp_path, shared_tmp_path):
        assert (world.size, world.is_primary) == (4, world.rank == 0)
        assert len(set(world.gather(tmp_path))) == 4
        assert len(set(world.gather(shared_tmp_path))) == 1
        assert world.broadcast(world.rank + 10) == 10
        import os
        os.environ["FROM_PARENT"] = str(world.rank)
        os.environ.pop("HOME", None) if world.is_primary else None
        assert world.inherit(world.rank + 20) == 20
        assert (os.environ["FROM_PARENT"], os.environ.get("HOME")) == ("0", None)
        world.part()
    """
)
def test_a_test_passes_when_every_rank_passes(worlds) -> None:
    """One pytest report per test, whatever the number of ranks."""
    worlds.run.assert_outcomes(passed=1)
    assert [rank["outcome"] for rank in worlds.verdicts["test_it"]["rank_results"]] == [
        "passed"
    ] * 4


@pytest.mark.program(
    """
    import pytest

    @pytest.mark.multihost(ranks=3)
    def test_it(world):
        assert world.rank != 1, "the cause"
        world.part()
        print("tears down")
    """
)
def test_ranks_part_although_one_of_them_has_failed(worlds) -> None:
    """They go on with their tear-down, and only the failed rank is reported."""
    worlds.run.assert_outcomes(failed=1)
    ended = [each["outcome"] for each in worlds.verdicts["test_it"]["rank_results"]]
    assert ended == ["passed", "failed", "passed"]


@pytest.mark.parametrize("rank", [0, 1, 2])
@pytest.mark.program(
    """
    import pytest

    @pytest.mark.multihost(ranks=3)
    def test_it(world):
        assert world.rank != $rank
    """
)
def test_a_test_fails_when_any_one_rank_fails(worlds, rank: int) -> None:
    """Which rank fails makes no difference; torch's own harness asks only rank 0."""
    worlds.run.assert_outcomes(failed=1)
    assert f"rank {rank}: AssertionError" in worlds.stdout
    assert worlds.verdicts["test_it"]["outcome"] == "failed"


WAYS_TO_LEAVE = {
    "os._exit(0)": "exited with code 0 in the test, before it had reported",
    "os._exit(3)": "exited with code 3",
    "os.kill(os.getpid(), 9)": "was killed by SIGKILL",
    "os.abort()": "was killed by SIGABRT",
    "ctypes.string_at(0)": "was killed by SIGSEGV",
}


@pytest.mark.parametrize("leave", WAYS_TO_LEAVE)
@pytest.mark.program(
    """
    import ctypes, os, pytest

    @pytest.mark.multihost(ranks=3)
    def test_it(world):
        if world.rank == 1:
            $leave

    @pytest.mark.multihost(ranks=3)
    def test_next(world):
        world.barrier()
    """
)
def test_a_rank_that_leaves_without_a_report_fails_the_test(worlds, leave: str) -> None:
    """An exit code of 0 is no result: only a report is."""
    worlds.run.assert_outcomes(failed=1, passed=1)
    verdict = worlds.verdicts["test_it"]
    assert (verdict["outcome"], verdict["rank_results"][1]["outcome"]) == ("crashed", "crashed")
    assert f"rank 1: {WAYS_TO_LEAVE[leave]}" in worlds.stdout


@pytest.mark.program(
    """
    import pytest, sys

    @pytest.mark.multihost(ranks=2)
    def test_it(world):
        if world.rank == 1:
            sys.exit(0)
    """
)
def test_sys_exit_in_a_rank_fails_the_test(worlds) -> None:
    """sys.exit(0) is an exception that nobody expected, as in ordinary pytest."""
    worlds.run.assert_outcomes(failed=1)
    assert "rank 1: SystemExit" in worlds.stdout


@pytest.mark.program(
    """
    import atexit, os, pytest

    @pytest.mark.multihost(ranks=2)
    def test_it(world):
        if world.rank == 1:
            atexit.register(os.abort)
    """
)
def test_a_rank_that_dies_in_its_exit_handlers_fails_the_test(worlds) -> None:
    """A report was sent, but a process that crashes on leaving is not fine."""
    worlds.run.assert_outcomes(failed=1)
    verdict = worlds.verdicts["test_it"]["rank_results"][1]
    assert (verdict["outcome"], verdict["phase"]) == ("crashed", "shutdown")


@pytest.mark.program(
    """
    import pytest, time

    @pytest.mark.multihost(ranks=3)
    def test_it(world):
        if world.rank == 2:
            raise ValueError("the cause")
        if world.rank == 0:
            time.sleep(0.5)
            raise KeyError("later")
    """
)
def test_the_first_failure_in_time_is_the_headline(worlds) -> None:
    """Rank 2 fails first, rank 0 half a second later: the short summary names rank 2."""
    assert "FAILED test_worlds.py::test_it - rank 2: ValueError: the cause" in worlds.stdout
    outcomes = [rank["outcome"] for rank in worlds.verdicts["test_it"]["rank_results"]]
    assert outcomes == ["failed", "passed", "failed"]


def test_identical_failures_are_shown_once_with_their_ranks(run_worlds) -> None:
    """Four copies of one traceback would hide the odd one."""
    worlds = run_worlds(
        """
        import pytest

        @pytest.mark.multihost(ranks=4)
        def test_it(world):
            assert world.size == 5, "same everywhere"
        """
    )
    assert worlds.stdout.count('assert world.size == 5, "same everywhere"') == 1
    assert "ranks 0-3: AssertionError: same everywhere" in worlds.stdout


@pytest.mark.program(
    """
    import pytest

    @pytest.mark.multihost(ranks=3)
    def test_it(world):
        if world.rank == 1:
            raise ValueError("the cause")
        world.barrier("commit")
    """
)
def test_a_failure_that_only_follows_is_collateral(worlds) -> None:
    """Ranks released from a barrier because another failed are not to blame."""
    outcomes = [rank["outcome"] for rank in worlds.verdicts["test_it"]["rank_results"]]
    assert outcomes == ["collateral", "failed", "collateral"]
    assert "barrier 'commit' can never complete: rank 1 raised ValueError" in worlds.stdout


@pytest.mark.program(
    """
    import pytest, threading, time

    def stuck_read():
        time.sleep(600)

    @pytest.mark.multihost(ranks=3, timeout=1)
    def test_it(world):
        if world.rank == 1:
            stuck_read()
        threading.Event().wait()

    @pytest.mark.multihost(ranks=3)
    def test_next(world):
        world.barrier()
    """
)
def test_a_world_that_overruns_its_timeout_is_hung_and_shows_every_stack(worlds) -> None:
    """The next test runs normally, and the file names each rank's line."""
    worlds.run.assert_outcomes(failed=1, passed=1)
    verdict = worlds.verdicts["test_it"]
    assert (verdict["outcome"], verdict["ended_by"]) == ("hung", "harness")
    assert "stuck_read" in worlds.stdout
    for rank in range(3):
        assert "test_it" in (worlds.directory("test_it") / f"rank-{rank}.stacks").read_text()


@pytest.mark.program(
    """
    import os, pytest, signal

    @pytest.mark.multihost(ranks=2, timeout=1)
    def test_it(world):
        if world.rank == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
        world.barrier()
    """
)
def test_a_stopped_rank_is_dumped_and_ended(worlds) -> None:
    """A stopped process answers no signal and ignores SIGTERM; torch's harness never ends."""
    assert worlds.verdicts["test_it"]["outcome"] == "hung"
    assert "test_it" in (worlds.directory("test_it") / "rank-1.stacks").read_text()


@pytest.mark.program(
    """
    import ctypes, pytest

    @pytest.mark.multihost(ranks=2, timeout=1)
    def test_it(world):
        if world.rank == 1:
            ctypes.PyDLL(None).sleep(600)
        world.barrier()
    """
)
def test_a_rank_that_holds_the_interpreter_lock_is_dumped_and_ended(worlds) -> None:
    """No Python code runs in such a rank, neither a signal handler nor a thread."""
    assert worlds.verdicts["test_it"]["outcome"] == "hung"
    assert "test_it" in (worlds.directory("test_it") / "rank-1.stacks").read_text()


def test_start_up_has_a_clock_of_its_own(run_worlds, pytester: pytest.Pytester) -> None:
    """A backend that does not come up is told apart from a test that does not end."""
    pytester.makeconftest(
        """
        import time
        from pytest_multihost.core.backends import Backend

        def start(spec):
            if spec.rank == 1:
                time.sleep(600)

        def pytest_multihost_backends():
            return [Backend(name="slow", start=start, offered_by="conftest.py")]
        """
    )
    worlds = run_worlds(
        """
        import pytest

        @pytest.mark.multihost(ranks=2, backend="slow", startup_timeout=1, timeout=50)
        def test_it(world):
            pass
        """
    )
    verdict = worlds.verdicts["test_it"]
    assert (verdict["outcome"], verdict["rank_results"][1]["phase"]) == ("hung", "startup")
    assert "start-up took longer than 1 s: rank 1 not ready" in worlds.stdout


@pytest.mark.program(
    """
    import os, pytest

    @pytest.mark.multihost(ranks=2)
    def test_it(world):
        pid = os.fork()
        if pid:
            os.waitpid(pid, 0)
    """
)
def test_a_forked_child_that_returns_from_the_test_does_not_report(worlds) -> None:
    """It would tear the rank's frames apart; it is ended, and the rank's own result stands."""
    worlds.run.assert_outcomes(passed=1)
    assert "a forked child of this rank returned from the test" in worlds.output("test_it", 0)


@pytest.mark.program(
    """
    import pytest, subprocess

    @pytest.mark.multihost(ranks=2)
    def test_it(world):
        subprocess.Popen(["sleep", "611"], start_new_session=True)
        assert world.rank != 1
    """
)
def test_what_a_rank_leaves_behind_is_ended_and_named(worlds) -> None:
    """A grandchild in a session of its own is out of reach of signals to the rank's group."""
    assert "processes that ranks had left running: sleep 611" in worlds.stdout


@pytest.mark.claim("read the result from a program")
def test_the_verdict_is_complete(run_worlds) -> None:
    """Every field of the contract is there; judging fills `diagnosis` in later."""
    worlds = run_worlds(
        """
        import pytest

        @pytest.mark.multihost(ranks=2)
        def test_it(world):
            raise ValueError("told")
        """
    )
    verdict = json.loads((worlds.directory("test_it") / "verdict.json").read_text())
    assert verdict == worlds.verdicts["test_it"]
    assert set(verdict) == {
        *("schema", "run_id", "nodeid", "attempt", "worker", "dir", "backend", "world_size"),
        *("launch", "seed", "replay", "status", "expected", "outcome", "ended_by", "reason"),
        *("started_at", "startup_s", "duration_s", "environment", "faults", "rank_results"),
        *("diagnosis", "hazards", "clock", "clock_jumps", "replay_command"),
    }
    rank = verdict["rank_results"][1]
    assert set(rank) == {
        *("rank", "host", "pid", "phase", "outcome", "exit_code", "signal", "duration_s"),
        *("cpu_s", "peak_rss_bytes", "label", "operations", "log", "error"),
    }
    assert (rank["error"]["type"], rank["error"]["message"]) == ("ValueError", "told")
    assert rank["error"]["line"] == 5
    assert rank["error"]["file"] == "test_worlds.py"
    assert rank["exit_code"] == 0
    assert rank["cpu_s"] > 0
    assert rank["peak_rss_bytes"] > 1_000_000


@pytest.mark.program(
    """
    import pytest

    @pytest.mark.multihost(ranks=3)
    def test_it(world):
        if world.rank != 2:
            world.barrier()
    """
)
def test_who_left_before_a_barrier_of_the_world_is_named(worlds) -> None:
    """The barrier ended with an error in the others: they were waiting in it for that rank."""
    worlds.run.assert_outcomes(failed=1)
    diagnosis = worlds.verdicts["test_it"]["diagnosis"]
    assert (diagnosis["kind"], diagnosis["culprits"]) == ("finished", [2])
    assert diagnosis["waiting"] == [0, 1]
