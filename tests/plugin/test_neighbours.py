"""Good neighbours: the real plugins together with ours, and pytest's own options."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

THREE = """
import pytest

@pytest.mark.multihost(ranks=2)
def test_good(world):
    world.barrier()

@pytest.mark.multihost(ranks=3)
def test_bad(world):
    assert world.rank != 1, "told"

def test_plain():
    pass
"""


OTHER_MODES = "loadscope", "loadfile", "loadgroup"


@pytest.mark.parametrize(
    "dist",
    ["load", "worksteal", *(pytest.param(each, marks=pytest.mark.worlds) for each in OTHER_MODES)],
)
@pytest.mark.program(THREE, "-p", "xdist", "-n", "2", "--dist", "$dist")
def test_xdist_runs_worlds_in_its_workers(worlds, dist: str) -> None:
    """Every --dist mode; a worker has threads, so its worlds come from a clean server."""
    worlds.run.assert_outcomes(passed=2, failed=1)
    assert {verdict["launch"] for verdict in worlds.all_verdicts} == {"server"}
    assert {verdict["worker"] for verdict in worlds.all_verdicts} <= {"gw0", "gw1"}
    assert "rank 1: AssertionError: told" in worlds.stdout


def test_xdist_groups_keep_their_node_ids(run_worlds) -> None:
    """--dist loadgroup appends the group's name in its workers only; the verdict has none."""
    worlds = run_worlds(
        """
        import pytest

        @pytest.mark.xdist_group("gpu")
        @pytest.mark.multihost(ranks=2)
        def test_it(world):
            pass
        """,
        *("-p", "xdist", "-n", "2", "--dist", "loadgroup"),
    )
    worlds.run.assert_outcomes(passed=1)
    assert worlds.all_verdicts[0]["nodeid"] == "test_worlds.py::test_it"


def test_xdist_workers_share_the_machine(run_worlds) -> None:
    """Ranks times processes is bounded: worlds that do not fit at once wait for each other."""
    places = max(8, 2 * (os.cpu_count() or 1))
    worlds = run_worlds(
        f"""
        import pytest, time

        @pytest.mark.parametrize("i", range(4))
        @pytest.mark.multihost(ranks={places // 2 + 1})
        def test_it(world, i):
            if world.is_primary:
                print(time.monotonic())
            time.sleep(0.2)
            world.barrier()
            if world.is_primary:
                print(time.monotonic())
        """,
        *("-p", "xdist", "-n", "2"),
    )
    worlds.run.assert_outcomes(passed=4)
    spans = sorted(
        tuple(float(line) for line in worlds.output(f"test_it[{i}]", 0).split()) for i in range(4)
    )
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))


def test_xdist_says_loudly_that_no_world_ran(run_worlds) -> None:
    """Only the workers know what was selected, and they tell."""
    quiet = run_worlds(THREE, *("-p", "xdist", "-n", "2", "--ranks=2", "-k", "good"))
    assert "no selected test is marked" not in quiet.stdout
    loud = run_worlds("def test_it(): pass", *("-p", "xdist", "-n", "2", "--ranks=2"))
    assert "--ranks was given, but no selected test is marked" in loud.stdout


def test_xdist_shows_what_is_wrong_with_a_marker(run_worlds) -> None:
    """As a failure of every multihost test: a worker that ran none would be an internal error."""
    worlds = run_worlds(
        """
        import pytest

        @pytest.mark.multihost(ranks=0)
        def test_wrong(world):
            pass

        @pytest.mark.multihost(ranks=2)
        def test_right(world):
            pass

        def test_ordinary():
            pass
        """,
        *("-p", "xdist", "-n", "2"),
    )
    worlds.run.assert_outcomes(passed=1, failed=2)
    assert "test_worlds.py::test_wrong: @pytest.mark.multihost ranks must be" in worlds.stdout
    assert "INTERNALERROR" not in worlds.stdout


def test_the_timeout_marker_is_the_worlds_deadline(run_worlds) -> None:
    """pytest-timeout would end pytest; our clock ends the ranks and shows their stacks."""
    worlds = run_worlds(
        """
        import pytest, time

        @pytest.mark.timeout(1)
        @pytest.mark.multihost(ranks=2)
        def test_it(world):
            while True:  # what polls cannot be proven to hang
                time.sleep(0.01)

        @pytest.mark.multihost(ranks=2)
        def test_next(world):
            pass
        """,
        *("-p", "timeout", "--timeout=50"),
    )
    worlds.run.assert_outcomes(failed=1, passed=1)
    assert "took longer than 1 s" in worlds.stdout
    assert (worlds.directory("test_it") / "rank-0.stacks").exists()


@pytest.mark.parametrize("mode", ["fork", "server", "spawn"])
def test_coverage_has_the_lines_that_only_ranks_run(
    run_worlds, pytester: pytest.Pytester, mode: str
) -> None:
    """Whatever the way of launching; one branch is run by rank 1 alone."""
    pytester.makepyfile(
        covered="""
        def choose(rank):
            if rank == 1:
                return "one"
            return "other"
        """
    )
    worlds = run_worlds(
        """
        import covered, pytest

        @pytest.mark.multihost(ranks=2)
        def test_it(world):
            covered.choose(world.rank)
        """,
        *("-p", "pytest_cov", "--cov=covered", "--cov-report=term", f"--multihost-launch={mode}"),
    )
    line = next(line for line in worlds.stdout.splitlines() if line.startswith("covered.py"))
    assert line.split()[-1] == "100%"
    assert [path.name for path in worlds.path.glob(".coverage*")] == [".coverage"]


@pytest.mark.parametrize("how", ["option", "marker"])
def test_reruns_are_attempts_of_the_whole_world(run_worlds, how: str) -> None:
    """A rank that reran alone would hang the others."""
    worlds = run_worlds(
        f"""
        import pytest

        {"@pytest.mark.flaky(reruns=2)" if how == "marker" else ""}
        @pytest.mark.multihost(ranks=2)
        def test_it(world, shared_tmp_path):
            marker = shared_tmp_path.parent.parent / f"seen-{{world.rank}}"
            is_first = not marker.exists()
            marker.touch()
            assert not is_first
        """,
        *("-p", "rerunfailures"),
        *(["--reruns=2"] if how == "option" else []),
    )
    worlds.run.assert_outcomes(passed=1)
    attempts = [(v["attempt"], v["status"]) for v in worlds.all_verdicts]
    assert attempts == [(1, "failed"), (2, "passed")]


def test_rerunfailures_beside_xdist_leads_to_a_clean_server(run_worlds) -> None:
    """Together the two start a thread in pytest's process, used or not."""
    worlds = run_worlds(THREE, *("-p", "rerunfailures", "-p", "xdist", "-k", "good"))
    worlds.run.assert_outcomes(passed=1)
    assert "launch: server (there are other Python threads: " in worlds.stdout


def test_randomly_shuffles_tests_and_agrees_on_seeds(run_worlds) -> None:
    """All ranks get randomly's seed, as all tests do."""
    worlds = run_worlds(
        """
        import pytest, random

        @pytest.mark.parametrize("i", range(3))
        @pytest.mark.multihost(ranks=2)
        def test_it(world, i):
            assert len(set(world.gather(random.random()))) == 1
        """,
        *("-p", "randomly"),
    )
    worlds.run.assert_outcomes(passed=3)


def test_hypothesis_draws_the_same_examples_in_all_ranks(run_worlds) -> None:
    """Each example is one step of the whole world."""
    worlds = run_worlds(
        """
        import pytest
        from hypothesis import given, strategies as st

        @pytest.mark.multihost(ranks=3)
        @given(x=st.integers(), y=st.lists(st.text()))
        def test_it(world, x, y):
            assert len(set(map(repr, world.gather((x, y))))) == 1
        """,
        *("-p", "_hypothesis_pytestplugin"),
    )
    worlds.run.assert_outcomes(passed=1)


def test_hypothesis_ends_at_the_first_failure_of_one_rank(run_worlds) -> None:
    """Neither shrinks nor replays: the other ranks would not be there for it."""
    worlds = run_worlds(
        """
        import pytest
        from hypothesis import assume, example, given, settings, strategies as st

        @pytest.mark.multihost(ranks=3, timeout=60)
        @settings(max_examples=40)
        @example(x=1000)
        @given(x=st.integers())
        def test_it(world, x):
            assume(x != 3)
            world.barrier()
            assert world.rank != 1 or x < 1000
        """,
        *("-p", "_hypothesis_pytestplugin"),
    )
    worlds.run.assert_outcomes(failed=1)
    assert "Falsifying example:" in worlds.stdout
    assert "x=1000" in worlds.stdout
    outcomes = [rank["outcome"] for rank in worlds.verdicts["test_it"]["rank_results"]]
    assert outcomes == ["collateral", "failed", "collateral"]


def test_xfail_holds_for_examples(run_worlds) -> None:
    """Also with `raises`, which a rank that only lost the others does not have to match."""
    worlds = run_worlds(
        """
        import pytest
        from hypothesis import given, strategies as st

        @pytest.mark.xfail(raises=AssertionError, strict=True)
        @pytest.mark.multihost(ranks=2, timeout=60)
        @given(x=st.integers())
        def test_expected(world, x):
            world.barrier()
            assert world.rank != 1

        @pytest.mark.xfail(raises=KeyError)
        @pytest.mark.multihost(ranks=2, timeout=60)
        @given(x=st.integers())
        def test_other(world, x):
            assert world.rank != 1
        """,
        *("-p", "_hypothesis_pytestplugin"),
    )
    worlds.run.assert_outcomes(xfailed=1, failed=1)
    assert worlds.verdicts["test_expected"]["status"] == "xfailed"


def test_asyncio_tests_run_in_ranks(run_worlds, pytester: pytest.Pytester) -> None:
    """pytest-asyncio's items, fixtures and loops are the ranks' own."""
    pytester.makeini("[pytest]\nasyncio_mode = auto\nasyncio_default_fixture_loop_scope = function")
    worlds = run_worlds(
        """
        import asyncio, pytest

        @pytest.fixture
        async def value():
            await asyncio.sleep(0)
            return 7

        @pytest.mark.multihost(ranks=2)
        async def test_it(world, value):
            await asyncio.sleep(0)
            assert world.gather(value) == [7, 7]
        """,
        *("-p", "asyncio"),
    )
    worlds.run.assert_outcomes(passed=1)


def test_anyio_tests_run_in_ranks(run_worlds) -> None:
    """Anyio's marker and its backend fixture work in every rank."""
    worlds = run_worlds(
        """
        import anyio, pytest

        @pytest.fixture
        def anyio_backend():
            return "asyncio"

        @pytest.mark.anyio
        @pytest.mark.multihost(ranks=2)
        async def test_it(world):
            await anyio.sleep(0)
            assert world.gather(1) == [1, 1]
        """,
        *("-p", "anyio"),
    )
    worlds.run.assert_outcomes(passed=1)


def test_mock_works_in_ranks(run_worlds) -> None:
    """pytest-mock's patches are the rank's own."""
    worlds = run_worlds(
        """
        import os, pytest

        @pytest.mark.multihost(ranks=2)
        def test_it(world, mocker):
            if world.rank:
                mocker.patch("os.cpu_count", return_value=99)
            assert (os.cpu_count() == 99) == bool(world.rank)
        """,
        *("-p", "pytest_mock"),
    )
    worlds.run.assert_outcomes(passed=1)


def test_all_neighbours_at_once(run_worlds, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every plugin that is installed loads by itself, ours among them."""
    monkeypatch.delenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD")
    worlds = run_worlds(THREE, "-n", "2", "--reruns=1", "--timeout=100", "--cov=.")
    worlds.run.assert_outcomes(passed=2, failed=1)
    assert "rank 1: AssertionError: told" in worlds.stdout


def test_autoload_alone_is_enough(run_worlds, monkeypatch: pytest.MonkeyPatch) -> None:
    """As users have it: installed, no option given."""
    monkeypatch.delenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD")
    worlds = run_worlds(THREE, "-k", "good", "-p", "no:asyncio")
    worlds.run.assert_outcomes(passed=1)


@pytest.mark.parametrize("earlier", [[], ["-p", "multihost_hangs"]], ids=["alone", "later"])
def test_the_plugin_can_be_switched_off(
    run_worlds, monkeypatch: pytest.MonkeyPatch, earlier: list[str]
) -> None:
    """-p no:multihost_hangs leaves nothing of us but an unknown marker, also after addopts."""
    monkeypatch.delenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD")
    path = Path.cwd()
    (path / "test_off.py").write_text(
        "import pytest\n@pytest.mark.multihost\ndef test_it(): pass\n"
    )
    run = subprocess.run(
        [sys.executable, "-m", "pytest", *earlier, "-p", "no:multihost_hangs", "-p", "no:asyncio"],
        cwd=path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "1 passed" in run.stdout
    assert "PytestUnknownMarkWarning" in run.stdout


def test_exit_first_stops_after_the_failing_world(run_worlds) -> None:
    """-x counts worlds, not ranks."""
    source = THREE.replace("test_good", "test_z")
    worlds = run_worlds(source, "-x", "-k", "test_bad or test_plain")
    worlds.run.assert_outcomes(failed=1)


def test_stepwise_goes_on_where_it_stopped(run_worlds) -> None:
    """--sw needs node ids that stay the same."""
    run_worlds(THREE, "--sw")
    worlds = run_worlds(THREE, "--sw")
    worlds.run.assert_outcomes(failed=1, deselected=1)


def test_junit_has_one_case_per_test(run_worlds) -> None:
    """With the headline as its message."""
    worlds = run_worlds(THREE, "--junitxml=out.xml")
    text = (worlds.path / "out.xml").read_text()
    assert text.count("<testcase ") == 3
    assert 'message="rank 1: AssertionError: told' in text


def test_no_capture_shows_output_live_with_ranks(run_worlds) -> None:
    """-s: each line says whose it is, and comes before the world has ended."""
    worlds = run_worlds(
        """
        import pytest, time

        @pytest.mark.multihost(ranks=2)
        def test_it(world):
            print("early", world.rank)
            time.sleep(1)
            print("late", world.rank, end="")
            assert world.rank
        """,
        "-s",
    )
    lines = worlds.stdout.splitlines()
    assert {"[rank 0] early 0", "[rank 1] early 1"} <= {line[-16:] for line in lines}
    assert "[rank 1] late 1" in worlds.stdout
    assert "Captured" not in worlds.stdout


@pytest.mark.parametrize("option", ["--pdb", "--trace"])
def test_without_a_terminal_ranks_do_not_stop_in_the_debugger(run_worlds, option: str) -> None:
    """A note says so; the controller does not stop in the plugin's own frames instead."""
    worlds = run_worlds(THREE, option)
    worlds.run.assert_outcomes(passed=2, failed=1)
    assert "--pdb and --trace do not stop in ranks" in worlds.stdout


@pytest.mark.parametrize(
    "options",
    [
        ["--setup-show"],
        ["-o", "log_cli=true"],
        ["-vv"],
        ["-q"],
        ["-p", "no:terminal"],
        ["-p", "no:capture"],
    ],
)
def test_output_options_do_no_harm(run_worlds, options: list[str]) -> None:
    """What they print of ranks is in the ranks' logs."""
    worlds = run_worlds(
        """
        import logging, pytest, time

        @pytest.mark.multihost(ranks=2)
        def test_it(world, tmp_path):
            logging.getLogger("x").warning("logged")
            time.sleep(1.2)
        """,
        *options,
    )
    assert worlds.run.ret == 0
    assert worlds.verdicts["test_it"]["status"] == "passed"


def test_basetemp_holds_the_worlds_directories(run_worlds, tmp_path: Path) -> None:
    """--basetemp is where users look for what tests have written."""
    worlds = run_worlds(
        """
        import pytest

        @pytest.mark.multihost(ranks=2)
        def test_it(world, tmp_path):
            print(tmp_path)
        """,
        f"--basetemp={tmp_path / 'base'}",
    )
    assert Path(worlds.output("test_it", 1).strip()).is_relative_to(tmp_path / "base")


FREEIPA = {
    "pytest_multihost/__init__.py": "from pytest_multihost.config import Config\n",
    "pytest_multihost/config.py": "class Config: pass\n",
    "pytest_multihost/plugin.py": textwrap.dedent(
        """
        def pytest_addoption(parser):
            parser.addoption("--multihost-config", dest="multihost_config")
        """
    ),
}
"""What FreeIPA's package installs, as far as it matters here: the same import name."""


def test_freeipas_package_in_our_place_is_named(tmp_path: Path) -> None:
    """Pip installs both without a word, and the last one owns __init__.py."""
    import pytest_multihost

    site = tmp_path / "site"
    source = Path(pytest_multihost.__file__).parent
    shutil.copytree(source, site / "pytest_multihost")
    for name, text in FREEIPA.items():
        (site / name).write_text(text)
    (tmp_path / "test_it.py").write_text("def test_it(): pass\n")
    run = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-p", "multihost_hangs"),
            *("-p", "pytest_multihost.plugin", "test_it.py"),
        ],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(site), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    output = run.stdout + run.stderr
    assert run.returncode == pytest.ExitCode.USAGE_ERROR, output
    assert "FreeIPA" in output
    assert "pip uninstall pytest-multihost" in output
    assert "Traceback" not in output
