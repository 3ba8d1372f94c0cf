"""What a run leaves on disk, where, and for how long."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

PASSING = """
import pytest

@pytest.mark.multihost(ranks=2)
def test_it(world):
    print("rank", world.rank)
"""


@pytest.mark.program(PASSING)
def test_every_attempt_has_its_verdict_and_logs(worlds) -> None:
    """Passed or not: other programs rely on it."""
    files = sorted(path.name for path in worlds.directory("test_it").iterdir())
    assert files == ["history.jsonl", "rank-0.log", "rank-1.log", "verdict.json"]
    assert worlds.output("test_it", 1) == "rank 1\n"


def test_latest_and_verdicts_are_those_of_the_newest_run(run_worlds) -> None:
    """The file is cut when a run starts, not appended to for ever."""
    run_worlds(PASSING)
    worlds = run_worlds(PASSING)
    base = worlds.path / ".pytest_multihost"
    assert (base / "latest").resolve().name == worlds.verdicts["test_it"]["run_id"]
    assert len((base / "verdicts.jsonl").read_text().splitlines()) == 1
    assert (base / "latest" / "verdicts.jsonl").read_text() == (base / "verdicts.jsonl").read_text()


def test_the_last_three_runs_are_kept(run_worlds) -> None:
    """And git never sees any of them."""
    for _ in range(4):
        worlds = run_worlds(PASSING)
    base = worlds.path / ".pytest_multihost"
    assert len([path for path in base.iterdir() if path.name[:2] == "20"]) == 3
    assert "*" in (base / ".gitignore").read_text().splitlines()


def test_the_directory_can_be_chosen(run_worlds, tmp_path: Path) -> None:
    """An absolute path, or one relative to rootdir."""
    run_worlds(PASSING, f"--multihost-artifacts={tmp_path}/here")
    lines = (tmp_path / "here" / "verdicts.jsonl").read_text().splitlines()
    assert json.loads(lines[0])["status"] == "passed"


@pytest.mark.program(PASSING)
def test_the_history_tells_the_gates_in_order(worlds) -> None:
    """No rank is torn down before every rank has left its test body."""
    text = (worlds.directory("test_it") / "history.jsonl").read_text()
    events = [json.loads(line) for line in text.splitlines()]
    kinds = [event["kind"] for event in events]
    last_parked = max(i for i, kind in enumerate(kinds) if kind == "parked")
    torn_down = [i for i, event in enumerate(events) if event["detail"].get("phase") == "teardown"]
    assert last_parked < min(torn_down)


def test_a_test_that_is_rerun_has_an_attempt_each(run_worlds, pytester: pytest.Pytester) -> None:
    """pytest-rerunfailures sees one report per attempt, and so does the reader."""
    worlds = run_worlds(
        """
        import pytest

        @pytest.mark.multihost(ranks=2)
        def test_it(world, shared_tmp_path):
            marker = shared_tmp_path.parent.parent / f"seen-{world.rank}"
            is_first = not marker.exists()
            marker.touch()
            assert not is_first
        """,
        "-p",
        "rerunfailures",
        "--reruns=2",
    )
    worlds.run.assert_outcomes(passed=1)
    assert [(v["attempt"], v["status"]) for v in worlds.all_verdicts] == [
        (1, "failed"),
        (2, "passed"),
    ]


@pytest.mark.program(
    """
    import pytest

    @pytest.mark.multihost(ranks=2)
    def test_it(world):
        print("head")
        print("x" * 5_000_000)
        print("tail")
        assert world.rank
    """
)
def test_huge_output_is_kept_whole_in_the_log_and_cut_in_the_report(worlds) -> None:
    """Head and tail are shown, and that something is missing is said."""
    assert len(worlds.output("test_it", 0)) > 5_000_000
    assert "bytes left out; all of it:" in worlds.stdout
    assert "head\n" in worlds.stdout
    assert "tail\n" in worlds.stdout
    assert len(worlds.stdout) < 200_000
