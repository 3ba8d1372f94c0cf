"""A controller that cannot be forked soundly is refused, with the reason."""

from __future__ import annotations

import pytest

UNSOUND = {
    "jax": ("import jax.numpy as jnp; jnp.ones(3)", "jax has initialised its backend"),
    "thread": (
        "import threading, time; threading.Thread(target=time.sleep, args=(3,), name='t').start()",
        "it runs other Python threads: t",
    ),
    "torch pool": (
        "import torch; torch.set_num_threads(4); torch.ones(900, 900) @ torch.ones(900, 900)",
        "native code in it runs",
    ),
}


@pytest.mark.parametrize("name", UNSOUND)
def test_an_unsound_controller_is_a_usage_error_that_says_why(run_worlds, name: str) -> None:
    """Forked all the same, the ranks would hang: a hang of the harness's own making."""
    code, reason = UNSOUND[name]
    worlds = run_worlds(
        f"""
        import pytest
        {code}

        @pytest.mark.multihost(ranks=2)
        def test_it(world):
            pass
        """
    )
    assert worlds.run.ret == pytest.ExitCode.USAGE_ERROR
    errors = worlds.run.stderr.str()
    assert "cannot be forked into ranks: a rank would hang, not fail" in errors
    assert reason in errors


def test_an_innocent_pool_is_no_reason(run_worlds) -> None:
    """Numpy starts OpenBLAS's threads on import, and OpenBLAS itself ends them at a fork."""
    worlds = run_worlds(
        """
        import numpy, pytest

        @pytest.mark.multihost(ranks=2)
        def test_it(world):
            assert (numpy.ones((300, 300)) @ numpy.ones((300, 300)))[0, 0] == 300
        """
    )
    worlds.run.assert_outcomes(passed=1)


def test_tests_that_are_no_worlds_run_in_an_unsound_controller(run_worlds) -> None:
    """Nothing is forked, so nothing is refused."""
    worlds = run_worlds(
        """
        import threading, time

        def test_it():
            threading.Thread(target=time.sleep, args=(0.1,)).start()
        """
    )
    worlds.run.assert_outcomes(passed=1)


def test_an_ordinary_test_may_start_what_it_likes_between_worlds(run_worlds) -> None:
    """The server was forked before any test ran, so the next world is sound."""
    worlds = run_worlds(
        """
        import pytest, threading, time

        @pytest.mark.multihost(ranks=2)
        def test_first(world):
            world.barrier()

        def test_plain():
            threading.Thread(target=time.sleep, args=(5,), daemon=True).start()

        @pytest.mark.multihost(ranks=2)
        def test_second(world):
            assert threading.active_count() == 1
        """
    )
    worlds.run.assert_outcomes(passed=3)


def test_a_server_that_cannot_prepare_says_so(run_worlds, pytester: pytest.Pytester) -> None:
    """A project's own hook that raises is named, and the ranks are not started without it."""
    pytester.makeconftest(
        """
        def pytest_multihost_server_start(config):
            raise OSError("no such model")
        """
    )
    worlds = run_worlds(
        """
        import pytest

        @pytest.mark.multihost(ranks=2)
        def test_it(world):
            pass
        """
    )
    worlds.run.assert_outcomes(errors=1)
    assert "the server could not prepare itself: OSError: no such model" in worlds.stdout


def test_what_the_server_loads_is_there_in_every_rank(
    run_worlds, pytester: pytest.Pytester
) -> None:
    """Loaded once, in one process, before the first fork."""
    pytester.makeconftest(
        """
        import os
        LOADED = []

        def pytest_multihost_server_start(config):
            LOADED.append(os.getpid())
        """
    )
    worlds = run_worlds(
        """
        import os, pytest, conftest

        @pytest.mark.multihost(ranks=3)
        def test_it(world):
            assert conftest.LOADED == [os.getppid()]
        """
    )
    worlds.run.assert_outcomes(passed=1)
