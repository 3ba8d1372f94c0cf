"""Every way of launching: chosen by soundness and by need, and said in the header."""

from __future__ import annotations

import textwrap

import pytest

JAX_AT_MODULE_LEVEL = """
import jax, jax.numpy as jnp, pytest

ONES = jnp.ones(3)

@pytest.mark.multihost(ranks=2, backend="jax")
def test_it(world):
    assert jax.process_count() == 2
    assert float(ONES.sum()) == 3
"""

THREAD = (
    "import threading, time; "
    "threading.Thread(target=time.sleep, args=(60,), name='t', daemon=True).start()"
)

UNSOUND = {
    "thread": (THREAD, "there are other Python threads: t"),
    "torch pool": (
        "import torch; torch.set_num_threads(4); torch.ones(900, 900) @ torch.ones(900, 900)",
        "native code in it runs",
    ),
}


NATIVE_THREAD = """
import _thread, ctypes, time

def run():
    ctypes.CDLL(None).prctl(15, {name!r}, 0, 0, 0)  # PR_SET_NAME
    time.sleep(60)

_thread.start_new_thread(run, ())  # none of threading's
time.sleep(0.2)
"""


def launch_of(worlds, test: str = "test_it") -> str:
    """Return the way of launching that the verdict names."""
    return worlds.verdicts[test]["launch"]


def test_a_sound_controller_is_forked(run_worlds) -> None:
    """The cheapest way, and no reason is given for it."""
    worlds = run_worlds(
        """
        import pytest

        @pytest.mark.multihost(ranks=2)
        def test_it(world):
            world.barrier()
        """
    )
    assert launch_of(worlds) == "fork"
    assert "multihost: 1 test runs on several ranks\n" in worlds.stdout


def test_a_thread_that_a_plugin_has_started_leads_to_a_clean_server(
    run_worlds, pytester: pytest.Pytester
) -> None:
    """Only the controller has the thread: a new interpreter without it can be forked."""
    pytester.makeconftest(
        """
        import os, threading, time

        def pytest_sessionstart():
            if "PYTEST_MULTIHOST_SERVER" not in os.environ:
                threading.Thread(target=time.sleep, args=(60,), name="t", daemon=True).start()
        """
    )
    worlds = run_worlds(
        """
        import pytest, threading

        @pytest.mark.multihost(ranks=2)
        def test_it(world):
            assert threading.active_count() == 1
        """
    )
    worlds.run.assert_outcomes(passed=1)
    assert "launch: server (there are other Python threads: t)" in worlds.stdout


@pytest.mark.parametrize("name", UNSOUND)
def test_a_module_that_cannot_be_imported_before_a_fork_gets_fresh_interpreters(
    run_worlds, name: str
) -> None:
    """Neither the controller nor a server that collects the module may be forked."""
    code, reason = UNSOUND[name]
    worlds = run_worlds(
        f"""
        import pytest
        {code}

        @pytest.mark.multihost(ranks=2)
        def test_it(world):
            world.barrier()
        """
    )
    worlds.run.assert_outcomes(passed=1)
    assert launch_of(worlds) == "spawn"
    assert f"launch: spawn ({reason}" in worlds.stdout


@pytest.mark.parametrize(
    ("name", "launch"), [(b"jemalloc_bg_thd", "fork"), (b"another_bg_thd", "spawn")]
)
def test_the_thread_of_jemalloc_is_forked_with_its_own_handlers(
    run_worlds, name: bytes, launch: str
) -> None:
    """Importing pyarrow starts it; of other native threads nothing is known."""
    code = textwrap.indent(NATIVE_THREAD.format(name=name), "        ")
    worlds = run_worlds(
        f"""
        import pytest
        {code.strip()}

        @pytest.mark.multihost(ranks=2)
        def test_it(world):
            world.barrier()
        """
    )
    worlds.run.assert_outcomes(passed=1)
    assert launch_of(worlds) == launch


LIBRARY = """
import os, threading, time

PID = os.getpid()
if {has_thread}:
    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
"""


@pytest.mark.parametrize("has_thread", [False, True])
def test_spawned_ranks_import_tests_themselves_and_libraries_once(
    run_worlds, pytester: pytest.Pytester, *, has_thread: bool
) -> None:
    """But a library after whose import no fork is sound is imported by each rank, too."""
    installed = pytester.mkdir("site-packages")
    (installed / "a_library.py").write_text(LIBRARY.format(has_thread=has_thread))
    pytester.makeini("[pytest]\npythonpath = site-packages")
    worlds = run_worlds(
        """
        import os, pytest
        import a_library

        PID = os.getpid()

        @pytest.mark.multihost(ranks=2)
        def test_it(world):
            assert world.gather(PID == os.getpid()) == [True, True]
            print(len(set(world.gather(a_library.PID))), a_library.PID == os.getpid())
        """,
        "--multihost-launch=spawn",
    )
    worlds.run.assert_outcomes(passed=1)
    for rank in range(2):
        assert worlds.output("test_it", rank).endswith("2 True\n" if has_thread else "1 False\n")


def test_a_spawned_rank_collects_the_file_of_its_test_alone(
    run_worlds, pytester: pytest.Pytester
) -> None:
    """What other tests of the run need may take long to import."""
    pytester.makepyfile(
        test_other="""
        import pytest, sys

        @pytest.mark.multihost(ranks=1)
        def test_b():
            assert "test_worlds" not in sys.modules
        """
    )
    worlds = run_worlds(
        """
        import pytest, sys

        @pytest.mark.multihost(ranks=1)
        def test_a():
            assert "test_other" not in sys.modules
        """,
        "--multihost-launch=spawn",
    )
    worlds.run.assert_outcomes(passed=2)


def test_a_module_level_jax_array_works(run_worlds) -> None:
    """Jax must be initialised before its first array, so the backend starts before collection."""
    worlds = run_worlds(JAX_AT_MODULE_LEVEL)
    worlds.run.assert_outcomes(passed=1)
    assert launch_of(worlds) == "spawn"
    assert "jax has initialised its backend" in worlds.stdout


@pytest.mark.program(
    """
    import pytest, torch

    HAS_GPU = torch.cuda.is_available()

    @pytest.mark.multihost(ranks=2, backend="gloo")
    def test_it(world):
        torch.distributed.barrier()
    """
)
def test_a_module_level_look_for_a_gpu_works(worlds) -> None:
    """Without a GPU it opens no driver, so the controller may be forked all the same."""
    worlds.run.assert_outcomes(passed=1)


@pytest.mark.parametrize("mode", ["fork", "server"])
def test_a_way_that_is_not_sound_is_refused_when_it_is_asked_for(run_worlds, mode: str) -> None:
    """Forked all the same, the ranks would hang: a hang of the harness's own making."""
    worlds = run_worlds(
        f"""
        import pytest
        {THREAD}

        @pytest.mark.multihost(ranks=2)
        def test_it(world):
            pass
        """,
        f"--multihost-launch={mode}",
    )
    assert worlds.run.ret == pytest.ExitCode.USAGE_ERROR
    errors = worlds.run.stderr.str()
    assert "cannot be forked into ranks: a rank would hang, not fail" in errors
    assert "there are other Python threads: t" in errors
    assert "--multihost-launch=auto" in errors


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
    assert launch_of(worlds) == "fork"


ORDINARY = """
import os, pathlib, pytest, sys, unittest
from pytest_multihost import current_world

@pytest.fixture(scope="session")
def session_data():
    return os.getpid()

@pytest.mark.parametrize("letter", ["a", "ü /"])
@pytest.mark.multihost(ranks=2)
def test_parameters(world, letter, session_data, tmp_path, shared_tmp_path, capsys):
    assert session_data == os.getpid()
    print(letter)
    assert capsys.readouterr().out == letter + "\\n"
    assert len(set(world.gather(tmp_path))) == 2

@pytest.mark.multihost(ranks=3)
class TestCase(unittest.TestCase):
    def test_case(self):
        self.assertEqual(current_world().size, 3)

@pytest.mark.multihost(ranks=2)
def test_fails(world):
    assert world.rank == 0, "told"

@pytest.mark.multihost(ranks=2)
def test_dies(world):
    if world.rank:
        os._exit(0)

@pytest.mark.multihost(ranks=2, timeout=2)
def test_hangs(world):
    if world.rank == 0:
        world.barrier("never")
    import time
    time.sleep(600)

@pytest.mark.xfail(strict=True)
@pytest.mark.multihost(ranks=2)
def test_xfails(world):
    assert False

@pytest.mark.multihost(ranks=2)
def test_path(world):
    assert world.gather(sys.path)[0] == sys.path
    assert pathlib.Path.cwd() == pathlib.Path(__file__).parent
"""


@pytest.mark.parametrize("mode", ["fork", "server", "spawn"])
def test_every_way_of_launching_gives_the_same_results(run_worlds, mode: str) -> None:
    """Fixtures, parameters, unittest, failures, deaths and hangs: nobody need know the way."""
    worlds = run_worlds(ORDINARY, f"--multihost-launch={mode}")
    worlds.run.assert_outcomes(passed=4, failed=3, xfailed=1)
    assert {launch_of(worlds, name) for name in worlds.verdicts} == {mode}
    outcomes = {name: verdict["outcome"] for name, verdict in worlds.verdicts.items()}
    assert (outcomes["test_fails"], outcomes["test_dies"], outcomes["test_hangs"]) == (
        "failed",
        "crashed",
        "hung",
    )
    assert "rank 1: AssertionError: told" in worlds.stdout


def test_env_is_in_place_before_the_interpreter_starts(run_worlds) -> None:
    """PYTHONHASHSEED is read once, at the start: no fork of pytest's process could have it."""
    worlds = run_worlds(
        """
        import os, pytest, sys

        AT_IMPORT = os.environ.get("SOME_SETTING")

        @pytest.mark.multihost(ranks=2, env={"PYTHONHASHSEED": "7", "SOME_SETTING": "here"})
        def test_it(world):
            assert sys.flags.hash_randomization
            assert AT_IMPORT == "here"
            print(hash("text"))

        @pytest.mark.multihost(ranks=2)
        def test_plain(world):
            assert AT_IMPORT is None
        """
    )
    worlds.run.assert_outcomes(passed=2)
    assert (launch_of(worlds), launch_of(worlds, "test_plain")) == ("server", "fork")
    assert "server (env={'PYTHONHASHSEED': '7', 'SOME_SETTING': 'here'})" in worlds.stdout
    assert worlds.output("test_it", 0) == worlds.output("test_it", 1)


def test_a_test_that_a_rank_collects_differently_is_an_error_that_says_so(run_worlds) -> None:
    """A random value in an id: the server's collection has no such test."""
    worlds = run_worlds(
        """
        import os, pytest

        @pytest.mark.parametrize("x", [os.getpid()])
        @pytest.mark.multihost(ranks=2)
        def test_it(world, x):
            pass

        @pytest.mark.multihost(ranks=2)
        def test_next(world):
            pass
        """,
        "--multihost-launch=server",
    )
    worlds.run.assert_outcomes(errors=1, passed=1)
    assert "the rank did not collect the test that the controller has collected" in worlds.stdout
    assert "Make collection depend on nothing that differs between processes" in worlds.stdout


@pytest.mark.program(
    """
    import os, pytest
    assert "PYTEST_MULTIHOST_RANK" not in os.environ, "not here"

    @pytest.mark.multihost(ranks=2)
    def test_it(world):
        pass
    """,
    "--multihost-launch=spawn",
)
def test_a_module_that_a_rank_cannot_import_is_an_error_that_says_so(worlds) -> None:
    """The rank's log has pytest's own words."""
    worlds.run.assert_outcomes(errors=1)
    assert "the rank could not collect the test" in worlds.stdout
    assert "AssertionError: not here" in worlds.stdout


@pytest.mark.program(
    """
    import os, pytest
    assert "PYTEST_MULTIHOST_SERVER" not in os.environ, "not here"

    @pytest.mark.multihost(ranks=2)
    def test_it(world):
        pass
    """,
    "--multihost-launch=server",
)
def test_a_server_that_cannot_collect_says_why(worlds) -> None:
    """What pytest said in the server is in the report of the test."""
    worlds.run.assert_outcomes(errors=1)
    assert "the rank could not collect the test" in worlds.stdout
    assert "AssertionError: not here" in worlds.stdout


def test_options_with_side_effects_act_once(run_worlds, pytester: pytest.Pytester) -> None:
    """A server runs pytest too: it must not write, clear or rerun anything of its own."""
    pytester.makeini("[pytest]\ncache_dir = .cache")
    worlds = run_worlds(
        """
        import pytest

        @pytest.mark.multihost(ranks=2)
        def test_it(world, tmp_path):
            (tmp_path / "file").touch()
            assert world.rank == 0
        """,
        "--multihost-launch=server",
        "--junitxml=out.xml",
        "--log-file=out.log",
        "--cache-clear",
        f"--basetemp={pytester.path / 'base'}",
    )
    worlds.run.assert_outcomes(failed=1)
    assert (worlds.path / "out.xml").read_text().count("<testcase ") == 1
    again = run_worlds("", "--lf", "--multihost-launch=server")
    again.run.assert_outcomes()


def test_last_failed_works_with_a_server(run_worlds) -> None:
    """The server collects the files of the selected items, whatever selected them."""
    source = """
        import pytest

        @pytest.mark.multihost(ranks=2)
        def test_bad(world):
            assert world.rank == 0

        @pytest.mark.multihost(ranks=2)
        def test_good(world):
            pass
        """
    run_worlds(source)
    worlds = run_worlds(source, "--lf", "--multihost-launch=server")
    worlds.run.assert_outcomes(failed=1)


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
    assert worlds.run.ret == pytest.ExitCode.USAGE_ERROR
    assert "the server could not prepare itself: OSError: no such model" in (
        worlds.run.stderr.str()
    )


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


@pytest.mark.program(
    """
    import threading, time

    def test_it():
        threading.Thread(target=time.sleep, args=(0.1,)).start()
    """
)
def test_tests_that_are_no_worlds_run_in_an_unsound_controller(worlds) -> None:
    """Nothing is forked, so nothing is looked at."""
    worlds.run.assert_outcomes(passed=1)


@pytest.mark.program(
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
def test_an_ordinary_test_may_start_what_it_likes_between_worlds(worlds) -> None:
    """The server was forked before any test ran, so the next world is sound."""
    worlds.run.assert_outcomes(passed=3)


@pytest.mark.program(
    """
    import pytest

    @pytest.mark.multihost(ranks=2)
    def test_it(world):
        print("mine")
    """,
    "--multihost-launch=spawn",
)
def test_the_log_of_a_spawned_rank_has_only_the_output_of_its_test(worlds) -> None:
    """And not the header of the pytest that collects in it."""
    assert [worlds.output("test_it", rank) for rank in (0, 1)] == ["mine\n", "mine\n"]
