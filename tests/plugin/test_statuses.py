"""Skip and xfail: judged in the ranks, and the worst rank wins."""

from __future__ import annotations

import pytest
from runtimes import SUBTESTS

HEADER = """
import os, pytest, time
xfail, skipif = pytest.mark.xfail, pytest.mark.skipif
"""

CASES = {
    # A decorator, the body, and the status that the verdict must have.
    "all_ranks_skip": ("", "pytest.skip('no data')", "skipped"),
    "a_lone_skip_fails": ("", "if world.rank == 1: pytest.skip('no data')", "failed"),
    "a_boolean_skipif_skips": ("@skipif(True, reason='here')", "os.abort()", None),
    "a_false_skipif_runs": ("@skipif(False, reason='here')", "", "passed"),
    "a_string_skipif_is_judged_in_the_ranks": (
        "@skipif('int(os.environ[\"WORLD_SIZE\"]) == 3', reason='three')",
        "os.abort()",
        "skipped",
    ),
    "xfail_of_all_ranks": ("@xfail(reason='bug')", "assert False", "xfailed"),
    "xfail_of_one_rank": ("@xfail(reason='bug')", "assert world.rank", "xfailed"),
    "xpass_of_all_ranks": ("@xfail(reason='bug')", "", "xpassed"),
    "strict_xpass_of_all_ranks_fails": ("@xfail(reason='bug', strict=True)", "", "failed"),
    "strict_xpass_of_some_ranks": (
        "@xfail(reason='bug', strict=True)",
        "assert world.rank",
        "xfailed",
    ),
    "xfail_raises_what_was_expected": ("@xfail(raises=KeyError)", "{}[0]", "xfailed"),
    "xfail_raises_something_else": ("@xfail(raises=KeyError)", "[][0]", "failed"),
    "xfail_at_run_time": ("", "pytest.xfail('now')", "xfailed"),
    "xfail_without_running": ("@xfail(run=False, reason='bad')", "os.abort()", "xfailed"),
    "a_crash_under_a_plain_xfail": ("@xfail(reason='bug')", "os.abort()", "xfailed"),
    "a_crash_under_xfail_raises": ("@xfail(raises=KeyError)", "os.abort()", "failed"),
    "a_failure_beats_an_xfail": (
        "@xfail(raises=KeyError)",
        "{}[0] if world.rank else [][0]",
        "failed",
    ),
    "xfail_beats_pass": ("", "if world.rank: pytest.xfail('now')", "xfailed"),
    "a_lone_skip_beats_xfail": (
        "@xfail(reason='bug')",
        "pytest.skip('x') if world.rank else 1 / 0",
        "failed",
    ),
}


@pytest.fixture(scope="module")
def statuses(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str | None, str]]:
    """Run all cases once: pytest's outcome, and the status in the verdict."""
    import json
    import os
    import subprocess
    import sys

    directory = tmp_path_factory.mktemp("statuses")
    source = HEADER + "".join(
        f"\n{decorator}\n@pytest.mark.multihost(ranks=3)\n"
        f"def test_{name}(world):\n    {body or 'pass'}\n"
        for name, (decorator, body, _) in CASES.items()
    )
    (directory / "test_worlds.py").write_text(source)
    (directory / "pytest.ini").write_text("[pytest]\n")
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "COLUMNS": "160"}
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "multihost_hangs", "-v"],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    lines = (directory / ".pytest_multihost" / "verdicts.jsonl").read_text().splitlines()
    verdicts = {v["nodeid"].rpartition("::test_")[2]: v for v in map(json.loads, lines)}
    shown = {}
    for line in run.stdout.splitlines():
        if line.startswith("test_worlds.py::test_"):
            name, word = line.removeprefix("test_worlds.py::test_").split()[:2]
            shown.setdefault(name, word.lower())
    return {
        name: (verdicts[name]["status"] if name in verdicts else None, shown[name])
        for name in CASES
    }


SHOWN = {"xfailed": "xfail", "xpassed": "xpass", None: "skipped"}


@pytest.mark.parametrize("name", CASES)
def test_the_status_is(statuses: dict[str, tuple[str | None, str]], name: str) -> None:
    """What pytest shows and what the verdict says agree, and are what the rule demands."""
    expected = CASES[name][2]
    assert statuses[name] == (expected, SHOWN.get(expected, expected))


@pytest.mark.program(
    """
    import pytest, time

    @pytest.mark.xfail(reason="known")
    @pytest.mark.multihost(ranks=2, timeout=1)
    def test_it(world):
        time.sleep(600)
    """
)
def test_a_hang_under_a_plain_xfail_is_xfailed_and_still_written(worlds) -> None:
    """The expected failure may be a hang; its verdict is evidence all the same."""
    worlds.run.assert_outcomes(xfailed=1)
    verdict = worlds.verdicts["test_it"]
    assert (verdict["status"], verdict["outcome"]) == ("xfailed", "hung")


@pytest.mark.program(
    """
    import pytest

    @pytest.mark.multihost(ranks=3)
    def test_it(world):
        if world.rank == 2:
            pytest.skip("no shard")
    """
)
def test_a_lone_skip_names_rank_and_reason(worlds) -> None:
    """A test that half the ranks skipped has tested nothing."""
    assert "rank 2 skipped alone, ranks 0,1 did not; reason: no shard" in worlds.stdout


@pytest.mark.program(
    """
    import pytest

    @pytest.mark.xfail
    @pytest.mark.multihost(ranks=2)
    def test_it(world):
        assert False
    """,
    "--runxfail",
)
def test_runxfail_reports_the_failure(worlds) -> None:
    """--runxfail means the same in the ranks as everywhere."""
    worlds.run.assert_outcomes(failed=1)


@pytest.mark.program(
    """
    import pytest

    @pytest.fixture
    def data(world):
        assert world.rank != 1, "no data"

    @pytest.mark.multihost(ranks=3)
    def test_it(data):
        pass
    """
)
def test_a_fixture_that_fails_in_one_rank_is_an_error(worlds) -> None:
    """As in ordinary pytest: setup makes errors, the body makes failures."""
    worlds.run.assert_outcomes(errors=1)
    assert "rank 1: AssertionError: no data" in worlds.stdout
    verdict = worlds.verdicts["test_it"]
    assert (verdict["status"], verdict["outcome"]) == ("error", "error")


@pytest.mark.program(
    """
    import pytest

    @pytest.fixture
    def data(world):
        yield
        assert world.rank != 1, "not closed"

    @pytest.mark.multihost(ranks=3)
    def test_it(data):
        pass
    """
)
def test_a_fixture_that_fails_in_teardown_passes_the_test_and_is_an_error(worlds) -> None:
    """As in ordinary pytest: the test passed, and its teardown is an error beside it."""
    worlds.run.assert_outcomes(passed=1, errors=1)
    assert "rank 1: AssertionError: not closed" in worlds.stdout
    assert worlds.verdicts["test_it"]["status"] == "error"


@pytest.mark.parametrize(
    ("leave", "outcomes"),
    [
        ("pytest.skip('no device')", {"skipped": 1, "errors": 1}),
        ("pytest.xfail('known')", {"xfailed": 1, "errors": 1}),
    ],
)
@pytest.mark.program(
    """
    import pytest

    @pytest.fixture
    def saved(world):
        yield
        assert world.rank != 1, "disk quota exceeded"

    @pytest.mark.multihost(ranks=2)
    def test_it(world, saved):
        $leave
    """
)
def test_an_error_of_the_teardown_hides_no_skip_and_no_xfail(
    worlds, leave: str, outcomes: dict[str, int]
) -> None:
    """As in ordinary pytest: the call is what it was, and the teardown is an error beside it."""
    worlds.run.assert_outcomes(**outcomes)
    assert "disk quota exceeded" in worlds.stdout


def test_a_planned_kill_hides_no_failed_subtest_of_its_rank(run_worlds) -> None:
    """The rank had checked something before it was killed."""
    worlds = run_worlds(
        """
        import pytest
        from pytest_multihost import at, faults

        @pytest.mark.multihost(ranks=2, faults=[faults.kill(rank=1, at=at.sync_point("checked"))])
        def test_it(world, subtests):
            with subtests.test("sum"):
                assert world.rank == 0
            world.sync_point("checked")
        """,
        *SUBTESTS,
    )
    verdict = worlds.verdicts["test_it"]
    assert (verdict["status"], verdict["rank_results"][1]["outcome"]) == ("failed", "failed")
    assert "rank 1: contains 1 failed subtest" in worlds.stdout
