"""`multihost sweep-merge`: results of shards are joined, and decide the exit code."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from sweeps import RUNS, SOUND, SWEEP

from pytest_multihost.core.command.main import main
from pytest_multihost.extensions.sweep.report import read_sweep, write_sweep
from pytest_multihost.extensions.sweep.result import SweepResult

FIRST = replace(SWEEP, runs=RUNS[:1], weaknesses=SWEEP.weaknesses[:1], shard=(1, 2))
SECOND = replace(SOUND, plan=SWEEP.plan, shard=(2, 2))


@pytest.fixture(autouse=True)
def not_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    """What our own CI would be told is none of its business."""
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)


@pytest.fixture
def merge(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str]]:
    """Return a function that writes results, merges them, and returns the code and the output."""

    def run(*results: SweepResult, args: tuple[str, ...] = ()) -> tuple[int, str]:
        for number, each in enumerate(results):
            folder = tmp_path / "shards" / f"shard-{number}"
            folder.mkdir(parents=True)
            write_sweep(folder, each)
        arguments = ["multihost", "sweep-merge", str(tmp_path / "shards"), *args]
        monkeypatch.setattr(sys, "argv", arguments)
        code = main()
        output = capsys.readouterr()
        return code, output.out + output.err

    (tmp_path / "shards").mkdir()
    return run


def test_the_weakness_of_one_shard_is_that_of_the_whole(merge) -> None:
    """And the runs of all are counted."""
    code, shown = merge(FIRST, SECOND)
    assert code == 1
    assert "LEFT WAITING  ranks 1-3 wait in barrier #4" in shown
    assert "survives 5 of 6 disturbances (1 weakness)" in shown


def test_shards_without_a_weakness_pass(merge) -> None:
    """The exit code is for a job that needs all shards."""
    code, shown = merge(replace(SECOND, shard=(1, 2)), SECOND)
    assert code == 0
    assert "(0 weaknesses)" in shown


def test_a_shard_without_a_result_is_told_and_fails(merge) -> None:
    """Its job has broken; what it was to run was not run."""
    code, shown = merge(replace(SECOND, shard=(3, 4)))
    assert code == 1
    assert "missing   the results of shard 1,2,4" in shown


def test_of_a_shard_that_was_run_twice_the_later_counts(merge) -> None:
    """A job was repeated."""
    again = replace(SECOND, shard=(1, 2), run_id="2026-11-24T00-00-00Z-1")
    code, _ = merge(FIRST, SECOND, again)
    assert code == 0


def test_results_are_written_where_they_are_wanted(merge, tmp_path: Path) -> None:
    """As value and as page."""
    merge(FIRST, SECOND, args=("--into", str(tmp_path / "all")))
    [path] = (tmp_path / "all").rglob("sweep.json")
    assert len(read_sweep(path).runs) == 6
    assert path.with_name("sweep.html").exists()


def test_without_any_result_it_says_what_is_missing(merge) -> None:
    """A green job that has merged nothing would deceive."""
    code, shown = merge()
    assert code == 1
    assert "include-hidden-files" in shown


def test_github_is_told_of_the_whole(
    merge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each weakness once, however many shards have found it."""
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    _, shown = merge(FIRST, replace(FIRST, shard=(2, 2)))
    assert shown.count("::error ") == 1
    assert "### Sweeps" in (tmp_path / "summary.md").read_text()
