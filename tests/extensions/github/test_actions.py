"""Runs in a workflow of GitHub Actions: what is written where it looks."""

from __future__ import annotations

from pathlib import Path

import pytest

TESTS = """
import pytest, time

@pytest.mark.multihost(ranks=3, timeout=60)
def test_late(world):
    if world.rank == 1:
        time.sleep(600)
    world.barrier("b")

@pytest.mark.multihost(ranks=2)
def test_wrong(world):
    assert world.rank == 0

@pytest.mark.multihost(ranks=2)
def test_fine(world):
    pass
"""
ERRORS = [
    (
        "::error file=project/test_worlds.py,line=7,title=HUNG test_worlds.py%3A%3Atest_late::"
        "rank 1 never reached world.barrier 'b'%0Astraggler, certain: found "
    ),
    "::error file=project/test_worlds.py,line=12,title=FAILED test_worlds.py%3A%3Atest_wrong::",
]


@pytest.fixture
def workflow(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Be a step whose repository has the tests in a folder of its own; return its summary."""
    summary = pytester.path / "summary.md"
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_WORKSPACE", str(pytester.path))
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    pytester.chdir()
    project = pytester.path / "project"
    project.mkdir()
    (project / "pytest.ini").write_text("[pytest]\n")
    (project / "test_worlds.py").write_text(TESTS)
    return summary


@pytest.mark.parametrize(
    "args",
    [(), ("-p", "xdist", "-n", "2")],
    ids=["alone", "xdist"],
)
@pytest.mark.smoke
@pytest.mark.claim("annotate a pull request")
def test_a_workflow_is_told_once(
    run_worlds, pytester: pytest.Pytester, workflow: Path, args: tuple[str, ...]
) -> None:
    """Errors at the lines, relative to the repository, and the verdicts in the step's summary."""
    del run_worlds  # for its environment, and its look at what is left
    result = pytester.runpytest_subprocess(
        "-p", "multihost_hangs", "--rootdir=project", "project", *args, timeout=100
    )
    result.assert_outcomes(failed=2, passed=1)
    found = sorted(line for line in result.outlines if line.startswith("::"))
    wanted = sorted(ERRORS)
    assert len(found) == len(wanted)
    assert all(line.startswith(start) for line, start in zip(found, wanted, strict=True))
    text = workflow.read_text()
    assert text.count("### Multi-host tests") == 1
    assert "3 tests ran on several ranks: 1 failed, 1 hung, 1 passed" in text
    assert text.count("<details>") == 2


def test_elsewhere_nothing_is_told(run_worlds, monkeypatch: pytest.MonkeyPatch) -> None:
    """A summary may be named by whoever started us; only workflows set the other."""
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", "summary.md")
    worlds = run_worlds(TESTS, "-k", "wrong or fine")
    assert "::error" not in worlds.stdout
    assert not (worlds.path / "summary.md").exists()


def test_a_summary_that_cannot_be_written_fails_no_run(
    run_worlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is said."""
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", "/nowhere/summary.md")
    worlds = run_worlds(TESTS, "-k", "fine")
    worlds.run.assert_outcomes(passed=1)
    assert worlds.run.ret == 0
    assert "the summary of the step: [Errno 2]" in worlds.stdout


def test_a_run_without_worlds_adds_nothing(
    run_worlds, monkeypatch: pytest.MonkeyPatch, pytester: pytest.Pytester
) -> None:
    """Its verdicts would be those of an older run."""
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(pytester.path / "summary.md"))
    worlds = run_worlds("def test_it(): pass")
    worlds.run.assert_outcomes(passed=1)
    assert not (worlds.path / "summary.md").exists()
