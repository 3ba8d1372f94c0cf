"""`multihost_shared_fixtures` names session fixtures that all ranks share."""

from __future__ import annotations

import pytest

SHARED = "--override-ini=multihost_shared_fixtures=model"


@pytest.mark.program(
    """
    import os, pytest
    from pathlib import Path

    LOG = Path(__file__).with_suffix(".log")

    @pytest.fixture(scope="session")
    def folder():
        return {"name": "weights"}

    @pytest.fixture(scope="session")
    def model(folder):
        with LOG.open("a") as log:
            log.write("set up ")
        yield {**folder, "pid": os.getpid()}
        with LOG.open("a") as log:
            log.write("torn down ")

    @pytest.fixture
    def reader(model):
        return model["pid"]

    @pytest.mark.multihost(ranks=3)
    @pytest.mark.parametrize("number", range(3))
    def test_it(world, reader, model, number):
        assert model.pop("name") == "weights"
        assert reader not in world.gather(os.getpid())
        assert len(set(world.gather(reader))) == 1
        assert LOG.read_text() == "set up "
    """,
    SHARED,
)
def test_all_ranks_of_all_tests_share_one_set_up_and_changes_stay_in_their_rank(worlds) -> None:
    """The value is of one process before the fork, and its dependent fixtures work as before."""
    worlds.run.assert_outcomes(passed=3)


@pytest.mark.program(
    """
    import pytest

    @pytest.fixture(scope="session")
    def model():
        raise OSError("no weights")

    @pytest.mark.multihost(ranks=2)
    def test_it(world, model):
        pass

    @pytest.mark.multihost(ranks=2)
    def test_without(world):
        pass
    """,
    SHARED,
)
def test_an_exception_of_a_shared_fixture_is_an_error_of_each_test_that_requests_it(worlds) -> None:
    """Tests that do not request it pass."""
    worlds.run.assert_outcomes(passed=1, errors=1)
    assert "OSError: no weights" in worlds.stdout


def test_the_teardown_of_a_shared_fixture_runs_once(run_worlds) -> None:
    """It runs when the server ends, after all tests; no rank runs it."""
    worlds = run_worlds(
        """
        import pytest
        from pathlib import Path

        @pytest.fixture(scope="session")
        def model():
            yield 1
            with open("torn-down", "a") as file:
                file.write("once ")

        @pytest.mark.multihost(ranks=2)
        @pytest.mark.parametrize("number", range(2))
        def test_it(world, model, number):
            assert not Path("torn-down").exists()
        """,
        SHARED,
    )
    worlds.run.assert_outcomes(passed=2)
    assert (worlds.path / "torn-down").read_text() == "once "


def test_a_server_of_its_own_shares_the_fixture_again(run_worlds) -> None:
    """A test with `env=` has another server, whose ranks share the value that it sets up."""
    worlds = run_worlds(
        """
        import os, pytest

        @pytest.fixture(scope="session")
        def model():
            return os.getpid()

        @pytest.mark.multihost(ranks=2, env={"A": "1"})
        def test_it(world, model):
            assert len(set(world.gather(model))) == 1
            assert model != os.getpid()
        """,
        SHARED,
    )
    worlds.run.assert_outcomes(passed=1)


def test_a_refusal_ends_the_run_before_any_test(run_worlds) -> None:
    """It says why, and what to do, without a traceback of the server."""
    worlds = run_worlds(
        """
        import pytest, socket

        @pytest.fixture(scope="session")
        def model():
            return socket.socket()

        @pytest.mark.multihost(ranks=2)
        def test_it(world, model):
            pass
        """,
        SHARED,
    )
    stderr = worlds.run.stderr.str()
    assert worlds.run.ret == pytest.ExitCode.USAGE_ERROR
    assert "the fixture 'model' cannot be shared by ranks" in stderr
    assert "Leave it out of multihost_shared_fixtures" in stderr
    assert "Traceback" not in stderr
