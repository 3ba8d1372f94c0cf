"""What docs/extending.md says of hooks, held against real worlds."""

from __future__ import annotations

import pytest

CONFTEST = """
import os
from pytest_multihost.core.backends import Backend
from pytest_multihost.faults.kind import FaultKind, seconds

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


ANALYST = """
from pytest_multihost.hookspecs import Analysis, Annotation, Renderer, Section, Span

def pytest_multihost_analyse(item, attempt):
    if attempt.judged.finding.status != "passed":
        return None
    section = Section("sums of the ranks", ((Span("rank 1 has another sum"),),))
    return Analysis(
        name="sums",
        record={"differ": True},
        headline=f"SUMS  differ in {item.name}",
        fails_test=item.name == "test_it",
        sections=lambda files, columns: [section],
        summary=f"{item.name}: sums were compared",
        has_findings=True,
    )

def pytest_multihost_renderers():
    def write(directory, judged):
        (directory / "sums.txt").write_text(judged.result.spec.nodeid)

    return [Renderer(name="sums.txt", write=write, files={"sums.txt": "the sums of all ranks"})]
"""


def test_an_analysis_fails_a_test_that_passed(run_worlds, pytester: pytest.Pytester) -> None:
    """With its headline and its section; its record is in the verdict, its line at the end."""
    pytester.makeconftest(ANALYST)
    worlds = run_worlds(
        """
        import pytest

        @pytest.mark.multihost(ranks=2)
        def test_it(world):
            pass

        @pytest.mark.multihost(ranks=2)
        def test_other(world):
            pass

        @pytest.mark.multihost(ranks=2)
        def test_bad(world):
            assert not world.rank
        """
    )
    worlds.run.assert_outcomes(passed=1, failed=2)
    worlds.run.stdout.fnmatch_lines(
        [
            "SUMS  differ in test_it",
            "*- sums of the ranks -*",
            "rank 1 has another sum",
            "test_it: sums were compared",
            "FAILED test_worlds.py::test_it - SUMS  differ in test_it",
        ]
    )
    assert worlds.verdicts["test_it"]["sums"] == {"differ": True}
    assert worlds.verdicts["test_it"]["status"] == "passed"
    assert "sums" not in worlds.verdicts["test_bad"]


def test_a_renderer_writes_a_file_beside_the_page(run_worlds, pytester: pytest.Pytester) -> None:
    """The page says what it is."""
    pytester.makeconftest(ANALYST)
    worlds = run_worlds(
        """
        import pytest

        @pytest.mark.multihost(ranks=2)
        def test_bad(world):
            assert not world.rank
        """
    )
    directory = worlds.directory("test_bad")
    assert (directory / "sums.txt").read_text() == "test_worlds.py::test_bad"
    assert "the sums of all ranks" in (directory / "report.html").read_text()


OPTION = """
import os, dataclasses, pytest
from pytest_multihost.hookspecs import MarkerKey, Option, is_count, must_be, parse_count

SEATS = Option(
    name="seats",
    metavar="N",
    help="Seats of each rank",
    parse=parse_count,
    default=1,
    key=MarkerKey(must_be(is_count, "a number of seats"), int),
)

def pytest_multihost_options():
    return [SEATS]

def pytest_multihost_plan(item, settings):
    return ["needs fewer seats"] if settings.get(SEATS) > 9 else []

@pytest.hookimpl(wrapper=True)
def pytest_multihost_prepare(plan, spec):
    spec = yield
    return dataclasses.replace(spec, local_devices=plan.settings.get(SEATS))

def pytest_multihost_backends():
    from pytest_multihost.core.backends import Backend

    def start(spec):
        os.environ["SEATS"] = str(spec.world.local_devices)

    return [Backend(name="none", start=start)]
"""


def test_an_option_of_a_third_party_is_set_like_a_built_in_one(
    run_worlds, pytester: pytest.Pytester
) -> None:
    """By the command line, the ini file and the marker; a wrong one is named with the others."""
    pytester.makeconftest(OPTION)
    source = """
        import os, pytest

        @pytest.mark.multihost(ranks=2)
        def test_run(world):
            assert os.environ["SEATS"] == "3"

        @pytest.mark.multihost(ranks=2, seats=5)
        def test_own(world):
            assert os.environ["SEATS"] == "5"
        """
    run_worlds(source, "--multihost-seats=3").run.assert_outcomes(passed=2)
    run_worlds(source, "-o", "multihost_seats=3").run.assert_outcomes(passed=2)
    wrong = run_worlds(source.replace("seats=5", "seats=0"), "--multihost-seats=12").run
    assert wrong.ret == pytest.ExitCode.USAGE_ERROR
    assert "test_own: @pytest.mark.multihost seats must be a number of seats" in wrong.stderr.str()
    assert "test_run: @pytest.mark.multihost needs fewer seats" in wrong.stderr.str()
