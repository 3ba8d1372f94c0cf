"""What docs/extending.md says of hooks, held against real worlds."""

from __future__ import annotations

import pytest

CONFTEST = """
import os
from pytest_multihost.core.backends import Backend
from pytest_multihost.core.nemesis.kind import FaultKind, seconds

def start(spec):
    assert spec.rank < spec.world.size
    os.environ["FORMED_BY"] = f"us, on ports {len(spec.ports)}"

def fail(spec):
    if spec.rank == 1:
        raise OSError("no such switch")

def pytest_multihost_backends():
    return [
        Backend(name="none", start=start),
        Backend(name="mesh", start=start),
        Backend(name="failing", start=fail),
        Backend(name="absent", start=start, lacking=lambda size: f"no machine for {size}"),
    ]

def mark(strike):
    os.environ["STRUCK"] = f"{strike.rank} for {strike.fault.params['seconds']}"
    strike.healing.callback(os.environ.pop, "STRUCK")

def pytest_multihost_faults():
    kinds = ("delay", "mark")
    return [FaultKind(name=name, perform=mark, params={"seconds": seconds}) for name in kinds]

def pytest_multihost_server_start(config):
    os.environ["LOADED"] = "once"
"""


def test_a_project_replaces_what_is_built_in(run_worlds, pytester: pytest.Pytester) -> None:
    """A backend and a fault of a built-in one's name; it is healed when the body is over."""
    pytester.makeconftest(CONFTEST)
    worlds = run_worlds(
        """
        import os, pytest
        from pytest_multihost import faults

        @pytest.fixture
        def after():
            yield
            assert "STRUCK" not in os.environ

        @pytest.mark.multihost(ranks=2, faults=[faults.delay(rank=1, seconds=7)])
        def test_it(world, after):
            assert os.environ["FORMED_BY"] == "us, on ports 2"
            assert os.environ.get("STRUCK") == ("1 for 7" if world.rank else None)
            assert os.environ["LOADED"] == "once"

        @pytest.mark.multihost(ranks=2, backend="failing")
        def test_failing(world):
            pass

        @pytest.mark.multihost(ranks=2, backend="absent")
        def test_absent(world):
            pass
        """,
        "-rs",
    )
    worlds.run.assert_outcomes(passed=1, errors=1, skipped=1)
    error = worlds.verdicts["test_failing"]["rank_results"][1]["error"]
    assert (error["type"], error["message"]) == ("OSError", "no such switch")
    assert "no machine for 2" in worlds.stdout


def test_a_fault_of_ones_own_on_the_command_line(run_worlds, pytester: pytest.Pytester) -> None:
    """And what is wrong with its parameters, in the words of its check."""
    pytester.makeconftest(CONFTEST)
    source = """
        import os, pytest

        @pytest.mark.multihost(ranks=2)
        def test_it(world):
            assert os.environ.get("STRUCK") == ("1 for 3" if world.rank else None)
        """
    worlds = run_worlds(source, "--multihost-fault", 'other("mark", rank=1, seconds=3)')
    worlds.run.assert_outcomes(passed=1)
    assert worlds.verdicts["test_it"]["faults"][0]["kind"] == "mark"
    wrong = run_worlds(source, "--multihost-fault", 'other("mark", rank=1, seconds=-1)')
    assert wrong.run.ret == pytest.ExitCode.USAGE_ERROR
    assert "seconds must be a number of seconds from 0 to 1e9, not -1" in wrong.run.stderr.str()


@pytest.mark.slow
def test_ranks_that_are_interpreters_load_nothing_beforehand(
    run_worlds, pytester: pytest.Pytester
) -> None:
    """There is no server whose memory they could share."""
    pytester.makeconftest(CONFTEST)
    worlds = run_worlds(
        """
        import os, pytest

        @pytest.mark.multihost(ranks=2, backend="mesh")
        def test_it(world):
            assert "LOADED" not in os.environ
            assert os.environ["FORMED_BY"] == "us, on ports 2"
        """,
        "--multihost-launch=spawn",
    )
    worlds.run.assert_outcomes(passed=1)
