"""What users type: marker, options, environment, ini, and which tests become worlds."""

from __future__ import annotations

import re
import shlex

import pytest
from runtimes import needs_pytest

SIZES = """
import pytest

@pytest.mark.multihost
def test_bare(world):
    pass

@pytest.mark.multihost(ranks=3)
def test_fixed(world):
    pass
"""


def sizes(worlds) -> dict[str, int]:
    """Return the size of each world that ran."""
    return {name: verdict["world_size"] for name, verdict in worlds.verdicts.items()}


@pytest.mark.program(SIZES)
def test_a_bare_marker_means_two_ranks(worlds) -> None:
    """One rank would test nothing, and two are the cheapest world."""
    assert sizes(worlds) == {"test_bare": 2, "test_fixed": 3}


@pytest.mark.program(SIZES, "--ranks", "4")
def test_ranks_on_the_command_line_fill_in(worlds) -> None:
    """The command line decides for tests that do not fix their own number."""
    assert sizes(worlds) == {"test_bare": 4, "test_fixed": 3}


@pytest.mark.program(SIZES, "--ranks", "1,2,4")
def test_several_ranks_on_the_command_line_parametrize(worlds) -> None:
    """Each size is a test of its own, with the size at the end of its id."""
    assert sizes(worlds) == {
        "test_bare[1]": 1,
        "test_bare[2]": 2,
        "test_bare[4]": 4,
        "test_fixed": 3,
    }


def test_command_line_beats_environment_beats_ini(
    run_worlds, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Precedence: marker, command line, environment, ini, default."""
    pytester.makeini("[pytest]\nmultihost_ranks = 5\nmultihost_timeout = 50")
    assert sizes(run_worlds(SIZES))["test_bare"] == 5
    monkeypatch.setenv("PYTEST_MULTIHOST_RANKS", "4")
    assert sizes(run_worlds(SIZES))["test_bare"] == 4
    assert sizes(run_worlds(SIZES, "--ranks=1"))["test_bare"] == 1


@pytest.mark.parametrize(
    "table",
    [
        "tool.pytest.ini_options",
        pytest.param("tool.pytest", marks=needs_pytest((9, 0), "does not read this table")),
    ],
)
def test_pyproject_sets_options(run_worlds, pytester: pytest.Pytester, table: str) -> None:
    """In the table that every pytest reads, and in the typed one of pytest 9."""
    pytester.makepyprojecttoml(
        f"""
        [{table}]
        minversion = "8.3"
        multihost_ranks = "1,4"
        multihost_timeout = "50"
        multihost_require = true
        """
    )
    found = sizes(run_worlds(SIZES))
    assert found == {"test_bare[1]": 1, "test_bare[4]": 4, "test_fixed": 3}


@pytest.mark.parametrize("ranks", ["[1, 4]", '["1", "4"]'])
def test_a_list_in_pyproject_is_a_usage_error_that_says_what_to_write(
    run_worlds, pytester: pytest.Pytester, ranks: str
) -> None:
    """Pytest 9 refuses it by itself in the table that it alone reads."""
    pytester.makepyprojecttoml(f"[tool.pytest.ini_options]\nmultihost_ranks = {ranks}")
    worlds = run_worlds(SIZES)
    assert worlds.run.ret == pytest.ExitCode.USAGE_ERROR
    assert "multihost_ranks (ini): must be text, not the list" in worlds.run.stderr.str()
    assert 'write "1,4"' in worlds.run.stderr.str()


@pytest.mark.program(
    """
    import pytest

    @pytest.mark.parametrize("mode", ["a", "b"])
    @pytest.mark.multihost(ranks=[1, 2], backend=["none"])
    def test_it(world, mode):
        assert mode in "ab"
    """
)
def test_axes_with_several_values_come_last_in_the_id(worlds) -> None:
    """The test's own parameters keep their place; an axis with one value has no part."""
    assert list(worlds.verdicts) == [
        "test_it[a-1]",
        "test_it[a-2]",
        "test_it[b-1]",
        "test_it[b-2]",
    ]


@pytest.mark.program(
    """
    import pytest
    pytestmark = pytest.mark.multihost(ranks=3, timeout=50)

    @pytest.mark.multihost(2)
    class TestIt:
        def test_class(self, world):
            pass

        @pytest.mark.multihost(ranks=1)
        def test_function(self, world):
            pass

    def test_module(world):
        pass
    """
)
def test_markers_merge_from_outermost_to_innermost(worlds) -> None:
    """Each key is decided by the innermost marker that names it."""
    assert sizes(worlds) == {"test_class": 2, "test_function": 1, "test_module": 3}


BAD_MARKS = {
    "ranks=0": "ranks must be a whole number from 1 to 10000, or a list of different ones, not 0",
    "ranks=-1": "ranks must be a whole number",
    "ranks='four'": "ranks must be a whole number",
    "ranks=True": "ranks must be a whole number",
    "ranks=[2, 0]": "ranks must be a whole number",
    "2, 3": "takes one positional argument, ranks, not 2",
    "size=2": "has no key 'size'; there are: ranks, backend, timeout",
    "timeout=0": "timeout must be a positive number of seconds, at most 1e9, not 0",
    "startup_timeout='1'": "startup_timeout must be a positive number of seconds",
    "local_devices=0": "local_devices must be a whole number",
    "backend=3": "backend must be a name",
    "backend='mpi'": "unknown backend 'mpi'. There are: simulated, none, gloo",
    "faults=[1]": "faults must be a list of pytest_multihost.faults, not [1]",
    "hosts='two'": "hosts must be one of one, netns, netns:N",
    "hosts='docker'": "hosts must be one of one, netns, netns:N",
    "env={'A': 1}": "env must be a mapping of variable names to strings, not {'A': 1}",
}


@pytest.mark.parametrize("arguments", BAD_MARKS)
def test_a_wrong_marker_is_a_usage_error_that_names_the_test(run_worlds, arguments: str) -> None:
    """Pytest stops before any test runs, with exit code 4."""
    worlds = run_worlds(
        f"""
        import pytest

        def test_plain():
            print("RAN")

        @pytest.mark.multihost({arguments})
        def test_it(world):
            pass
        """,
        "-s",
    )
    assert worlds.run.ret == pytest.ExitCode.USAGE_ERROR
    errors = worlds.run.stderr.str()
    assert "test_worlds.py::test_it: @pytest.mark.multihost " in errors
    assert BAD_MARKS[arguments] in errors
    assert "RAN" not in worlds.stdout


def test_all_problems_of_all_tests_are_told_at_once(run_worlds) -> None:
    """Mending one only to meet the next is a waste of runs."""
    worlds = run_worlds(
        """
        import pytest

        @pytest.mark.multihost(ranks=0, timeout=-1)
        def test_one(world): pass

        @pytest.mark.multihost(size=1)
        def test_two(world): pass

        @pytest.mark.multihost(ranks=2)
        @pytest.mark.multihost_expect("straggler", culprits=[0, 7])
        def test_three(world): pass
        """
    )
    errors = worlds.run.stderr.str()
    assert all(word in errors for word in ("test_one", "ranks", "timeout", "test_two", "'size'"))
    assert "culprits has rank 7, and the world has ranks 0 to 1" in errors


@pytest.mark.parametrize(
    "option", ["--ranks=0", "--ranks=a", "--multihost-timeout=-1", "--multihost-mode=x"]
)
def test_a_wrong_option_is_a_usage_error_that_names_it(run_worlds, option: str) -> None:
    """The message says where the value was set."""
    worlds = run_worlds(SIZES, option)
    assert worlds.run.ret == pytest.ExitCode.USAGE_ERROR
    assert option.split("=", maxsplit=1)[0] in worlds.run.stderr.str()


def test_an_unknown_backend_of_the_run_is_refused_although_each_test_names_its_own(
    run_worlds,
) -> None:
    """A misspelled option is not ignored; the error has the nearest name."""
    source = (
        "import pytest\n@pytest.mark.multihost(ranks=2, backend='none')\ndef test_it(world): pass"
    )
    worlds = run_worlds(source, "--multihost-backend=glo")
    assert worlds.run.ret == pytest.ExitCode.USAGE_ERROR
    assert "--multihost-backend: unknown backend 'glo'" in worlds.run.stderr.str()
    assert "Did you mean gloo?" in worlds.run.stderr.str()


def test_an_id_with_a_size_that_does_not_exist_gets_a_hint(run_worlds, pytester) -> None:
    """The printed command runs; an id that is wrong for another reason gets no hint."""
    source = "import pytest\n@pytest.mark.multihost\ndef test_it(world): pass"
    refused = run_worlds(source, "test_worlds.py::test_it[4]").run
    assert refused.ret == pytest.ExitCode.USAGE_ERROR
    [command] = re.findall(r"with 4 ranks: pytest (.*)", refused.stderr.str())
    assert run_worlds(source, *shlex.split(command)).verdicts["test_it"]["world_size"] == 4


def test_an_id_that_is_wrong_for_another_reason_gets_no_hint_of_a_size(run_worlds) -> None:
    """Ordinary tests have numbers in their ids, too, and a marker may fix the size."""
    source = """
import pytest

@pytest.mark.parametrize("n", [1, 2])
def test_plain(n): pass

@pytest.mark.multihost(ranks=2)
def test_fixed(world): pass

@pytest.mark.multihost
@pytest.mark.parametrize("n", ["a"])
def test_it(world, n): pass
"""
    for wrong in ("test_plain[4]", "test_ti[4]", "test_ti"):
        refused = run_worlds(source, f"test_worlds.py::{wrong}").run
        assert "number of ranks" not in refused.stderr.str()
    refused = run_worlds(source, "test_worlds.py::test_fixed[4]").run
    assert "This test runs only with ranks 2." in refused.stderr.str()
    refused = run_worlds(source, "test_worlds.py::test_it[a-3]").run
    [command] = re.findall(r"with 3 ranks: pytest (.*)", refused.stderr.str())
    assert run_worlds(source, *shlex.split(command)).verdicts["test_it[a]"]["world_size"] == 3


@pytest.mark.program(
    """
    import pytest, unittest

    def test_function():
        '''
        >>> 1 + 1
        2
        '''

    class TestCase(unittest.TestCase):
        def test_method(self):
            pass

    @pytest.mark.no_multihost
    def test_alone():
        pass
    """,
    "--multihost-mode=auto",
    "--doctest-modules",
)
def test_mode_auto_makes_every_function_a_world(worlds) -> None:
    """Except those that say no, and doctests."""
    worlds.run.assert_outcomes(passed=4)
    assert sizes(worlds) == {"test_function": 2, "test_method": 2}


@pytest.mark.program(
    """
    import pytest, unittest
    from pytest_multihost import current_world

    @pytest.mark.multihost(ranks=3)
    class TestIt(unittest.TestCase):
        @classmethod
        def setUpClass(cls):
            cls.rank = current_world().rank

        def setUp(self):
            current_world().barrier("setUp")

        def test_pass(self):
            self.assertEqual(current_world().gather(self.rank), [0, 1, 2])

        def test_fail(self):
            self.assertNotEqual(current_world().rank, 2)

        @unittest.skip("no")
        def test_skip(self):
            pass
    """
)
def test_a_test_case_method_has_its_world(worlds) -> None:
    """Unittest methods take no fixtures; current_world() gives them what the fixture would."""
    worlds.run.assert_outcomes(passed=1, failed=1, skipped=1)
    assert "rank 2: AssertionError: 2 == 2" in worlds.stdout


def test_a_test_case_method_takes_one_size(run_worlds) -> None:
    """Pytest cannot parametrize unittest methods, so several sizes are a usage error."""
    worlds = run_worlds(
        """
        import pytest, unittest

        @pytest.mark.multihost
        class TestIt(unittest.TestCase):
            def test_it(self):
                pass
        """,
        "--ranks=1,2",
    )
    assert worlds.run.ret == pytest.ExitCode.USAGE_ERROR
    assert "takes one. Give it one on its marker." in worlds.run.stderr.str()


def test_a_marker_added_late_works(run_worlds, pytester: pytest.Pytester) -> None:
    """A conftest that marks tests in pytest_collection_modifyitems is a common habit."""
    pytester.makeconftest(
        """
        import pytest

        def pytest_collection_modifyitems(items):
            for item in items:
                item.add_marker(pytest.mark.multihost(ranks=3))
        """
    )
    assert sizes(run_worlds("def test_it(world): world.barrier()")) == {"test_it": 3}


@pytest.mark.program("def test_it(world): pass")
def test_outside_a_world_the_fixture_says_what_to_do(worlds) -> None:
    """An unmarked test that asks for the world fails with the remedy."""
    worlds.run.assert_outcomes(errors=1)
    assert "Mark the test with @pytest.mark.multihost(ranks=N)." in worlds.stdout


@pytest.mark.parametrize("option", ["--collect-only", "--setup-plan"])
def test_looking_at_tests_starts_no_world(run_worlds, option: str) -> None:
    """Neither a server nor an artifacts folder comes of it."""
    worlds = run_worlds(SIZES, option)
    assert worlds.run.ret == 0
    assert not (worlds.path / ".pytest_multihost").exists()


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("--ranks=4", "--ranks was given, but no selected test is marked"),
        ("--multihost-sweep", "--multihost-sweep was given, but no selected test is marked"),
        ("--multihost-fault=crash(rank=0)", "--multihost-fault was given, but no selected test"),
        ("--multihost-timeout=9", "1 passed in"),  # a setting, which may be in addopts
    ],
)
def test_an_option_for_multihost_tests_without_any_is_said_loudly(
    run_worlds, option: str, words: str
) -> None:
    """A typo in a marker must not turn a distributed suite green."""
    worlds = run_worlds("def test_it(): pass", option)
    assert worlds.run.ret == 0
    assert words in worlds.stdout


def test_multihost_tests_that_all_skip_are_said_loudly(run_worlds) -> None:
    """Selected and none run: the run shows nothing, and says so."""
    source = """
    import pytest

    @pytest.mark.skip
    @pytest.mark.multihost
    def test_it(world): pass
    """
    worlds = run_worlds(source)
    assert "1 multihost test was selected, and it did not run" in worlds.stdout
    assert worlds.run.ret == 0


@pytest.mark.parametrize(
    ("settings", "options"),
    [("multihost_require = true", []), ("", ["-W", "error"])],
    ids=["require", "warnings-are-errors"],
)
def test_no_world_can_be_made_a_failure(
    run_worlds, pytester: pytest.Pytester, settings: str, options: list[str]
) -> None:
    """For CI: the run fails although no test did."""
    pytester.makeini(f"[pytest]\n{settings}")
    worlds = run_worlds("def test_it(): pass", "--ranks=4", *options)
    assert worlds.run.ret == pytest.ExitCode.TESTS_FAILED
    assert "FAILED: --ranks was given" in worlds.stdout


def test_a_run_without_multihost_tests_is_left_alone(run_worlds) -> None:
    """No line, no folder, no process: who does not use us does not see us."""
    worlds = run_worlds("def test_it(): pass")
    worlds.run.assert_outcomes(passed=1)
    assert "multihost:" not in worlds.stdout
    assert not (worlds.path / ".pytest_multihost").exists()


def test_markers_are_declared(run_worlds) -> None:
    """--strict-markers accepts them, and `pytest --markers` explains them."""
    worlds = run_worlds(SIZES, "--strict-markers", "--markers")
    assert "@pytest.mark.multihost(ranks=None, *, backend=None" in worlds.stdout
    assert "@pytest.mark.no_multihost" in worlds.stdout


@pytest.mark.parametrize("launch", ["fork", "server", "spawn"])
def test_conftest_files_of_other_folders_do_not_matter(run_worlds, pytester, launch) -> None:
    """For a test that is not below one, pytest asks for the hooks of all plugins but that one."""
    for folder in ("one", "two"):
        path = pytester.mkdir(folder)
        path.joinpath("conftest.py").write_text("def pytest_runtest_setup(): pass\n")
        path.joinpath(f"test_{folder}.py").write_text(SIZES)
    assert run_worlds(SIZES, f"--multihost-launch={launch}").run.ret == pytest.ExitCode.OK


def test_a_setting_that_is_neither_true_nor_false_is_refused_by_its_name(run_worlds) -> None:
    """Before any test runs."""
    worlds = run_worlds("def test_plain(): pass", "-o", "multihost_require=maybe")
    assert worlds.run.ret == pytest.ExitCode.USAGE_ERROR
    assert "multihost_require: invalid truth value 'maybe'" in worlds.run.stderr.str()


MISTAKES = """
import pytest

@pytest.mark.multihost_expect("straggler")
def test_plain(): pass

@pytest.mark.multihost_sweep("late")
def test_swept(): pass

@pytest.mark.multihost(ranks=2, backend="GLOO")
def test_of_gloo(world): pass
"""


def test_mistakes_of_all_markers_are_reported_together(run_worlds) -> None:
    """Also those of tests that are no multihost tests, whose marker would have no effect."""
    worlds = run_worlds(MISTAKES)
    assert worlds.run.ret == pytest.ExitCode.USAGE_ERROR
    text = worlds.run.stderr.str()
    assert "test_plain: @pytest.mark.multihost_expect is on a test that is not a multihost" in text
    assert "test_swept: @pytest.mark.multihost_sweep is on a test that is not a multihost" in text
    assert "Did you mean gloo?" in text


def test_a_fault_of_the_command_line_is_not_blamed_on_the_marker(run_worlds) -> None:
    """The marker names no faults."""
    source = "import pytest\n@pytest.mark.multihost(ranks=2)\ndef test_it(world): pass"
    worlds = run_worlds(source, "--multihost-fault", "slow_io(rank=9, seconds=1)")
    assert worlds.run.ret == pytest.ExitCode.USAGE_ERROR
    assert "(--multihost-fault) faults.slow_io(rank=9" in worlds.run.stderr.str()


@pytest.mark.parametrize(("marker", "is_said"), [("(ranks=2)", True), ("", False)])
def test_a_size_of_the_command_line_that_no_test_takes_is_said(
    run_worlds, marker: str, *, is_said: bool
) -> None:
    """Each marker fixes a number of ranks, and the run would look as if it had tried others."""
    source = f"import pytest\n@pytest.mark.multihost{marker}\ndef test_it(world): pass"
    worlds = run_worlds(source, "--ranks=1")
    said = "--ranks has no effect, because the marker of each selected test has a number of ranks"
    assert (said in worlds.stdout) is is_said
