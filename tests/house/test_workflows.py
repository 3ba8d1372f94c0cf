"""The workflows for GitHub Actions: ours, and the one that users copy."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

ROOT = Path(__file__).parent.parent.parent
OURS = ROOT / ".github" / "workflows" / "ci.yml"
NIGHTLY = ROOT / ".github" / "workflows" / "nightly.yml"
RELEASE = ROOT / ".github" / "workflows" / "release.yml"
THEIRS = ROOT / "conftest_examples" / "github_actions" / ".github" / "workflows" / "multihost.yml"
SWEEP = ROOT / "conftest_examples" / "hidden_hang" / ".github" / "workflows" / "sweep.yml"


def read(path: Path) -> dict[str, Any]:
    """Return a workflow."""
    found: dict[str, Any] = YAML(typ="safe").load(path.read_text())
    return found


def check(path: Path) -> subprocess.CompletedProcess[str]:
    """Hold a workflow against the schema that check-jsonschema brings along; no network."""
    command = ["-m", "check_jsonschema", "--builtin-schema", "vendor.github-workflows", str(path)]
    return subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, check=False, timeout=60
    )


@pytest.mark.parametrize(
    "path", [OURS, NIGHTLY, RELEASE, THEIRS, SWEEP], ids=lambda path: path.stem
)
def test_a_workflow_follows_the_schema(path: Path) -> None:
    """As GitHub publishes it."""
    ended = check(path)
    assert ended.returncode == 0, ended.stdout


def test_the_schema_refuses_what_github_would(tmp_path: Path) -> None:
    """A misspelt key, say."""
    wrong = tmp_path / "wrong.yml"
    wrong.write_text(THEIRS.read_text().replace("runs-on:", "run-on:"))
    assert check(wrong).returncode != 0


def test_our_workflow_runs_targets_that_exist() -> None:
    """And gives them variables that they know."""
    makefile = (ROOT / "Makefile").read_text()
    workflows = (read(OURS), read(NIGHTLY), read(RELEASE))
    jobs = [job for workflow in workflows for job in workflow["jobs"].values()]
    steps = [step for job in jobs for step in job["steps"]]
    calls = [step["run"] for step in steps if step.get("run", "").startswith("make ")]
    assert {call.split()[1] for call in calls} == {
        "lint",
        "docs",
        "worlds",
        "test",
        "test-all",
        "corpus",
        "mutants",
        "bench-since",
        "test-pytest8",
        "demo",
        "wheel-check",
    }
    for call in calls:
        assert re.search(rf"^{call.split()[1]}:", makefile, re.MULTILINE), call
        for variable in re.findall(r"\b([A-Z0-9_]+)=", call):
            assert re.search(rf"^{variable} \?=", makefile, re.MULTILINE), call


def test_our_workflow_has_every_python_rank_and_backend() -> None:
    """Those that the package names, and all backends that need no GPU."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = [each.rpartition(" ")[2] for each in project["classifiers"]]
    jobs = read(OURS)["jobs"]
    for name in ("worlds", "test"):
        matrix = jobs[name]["strategy"]["matrix"]
        assert matrix["python"] == [each for each in named if re.fullmatch(r"3\.\d+", each)]
    assert jobs["worlds"]["strategy"]["matrix"]["backend"] == ["none", "gloo", "jax"]
    assert len(jobs["worlds"]["strategy"]["matrix"]["ranks"]) > 1


def test_our_workflow_runs_the_suite_on_the_oldest_pytest_and_on_the_newest() -> None:
    """The oldest is the one that the package asks for; the newest is pinned for all other jobs."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    (oldest,) = (each for each in project["project"]["dependencies"] if each.startswith("pytest>="))
    (pinned,) = (each for each in project["dependency-groups"]["test"] if "pytest==" in each)
    run = read(OURS)["jobs"]["pytest8"]["strategy"]["matrix"]["pytest"]
    default = re.search(r"^PYTEST8 \?= (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert default
    assert default[1] == run[0]
    assert run[0].startswith(f"{oldest.removeprefix('pytest>=')}.")
    assert project["tool"]["pytest"]["ini_options"]["minversion"] == oldest.removeprefix("pytest>=")
    assert pinned.startswith("pytest==9.")


@pytest.mark.parametrize(
    "path", [OURS, NIGHTLY, RELEASE, THEIRS, SWEEP], ids=lambda path: path.stem
)
def test_jobs_are_bounded_and_may_only_read(path: Path) -> None:
    """A hang of the workflow itself would cost six hours."""
    workflow = read(path)
    assert workflow["permissions"] == {"contents": "read"}
    assert all("timeout-minutes" in job for job in workflow["jobs"].values())


@pytest.mark.parametrize("path", [OURS, THEIRS], ids=["ours", "theirs"])
def test_artifacts_are_kept_on_failure_with_their_hidden_folder(path: Path) -> None:
    """The action leaves out what begins with a dot, unless it is told otherwise."""
    steps = [step for job in read(path)["jobs"].values() for step in job["steps"]]
    uploads = [step for step in steps if "upload-artifact" in step.get("uses", "")]
    assert uploads
    assert all(step["if"] == "failure()" for step in uploads)
    hidden = [step["with"] for step in uploads if ".pytest_multihost/" in step["with"]["path"]]
    assert hidden
    assert all(each["include-hidden-files"] for each in hidden)


def test_a_release_is_published_by_one_job_that_runs_no_code_of_the_project() -> None:
    """Only it may ask for an identity, and it gets what the build job has checked."""
    jobs = read(RELEASE)["jobs"]
    assert [name for name, job in jobs.items() if "permissions" in job] == ["publish"]
    publish = jobs["publish"]
    assert publish["permissions"] == {"id-token": "write"}
    assert publish["needs"] == "build"
    actions = [step["uses"].partition("@")[0] for step in publish["steps"]]
    assert actions == ["actions/download-artifact", "pypa/gh-action-pypi-publish"]
    assert publish["steps"][-1]["with"] == {"attestations": True}
    assert any(step.get("run") == "make wheel-check" for step in jobs["build"]["steps"])


def test_the_nightly_run_compares_with_the_last_release() -> None:
    """The table is shown and kept also when something is worse, and without a release skipped."""
    steps = read(NIGHTLY)["jobs"]["since"]["steps"]
    assert steps[0]["with"] == {"fetch-depth": 0}  # a shallow clone has no tags
    [found] = [number for number, step in enumerate(steps) if step.get("id") == "release"]
    assert all("steps.release.outputs.tag != ''" in step["if"] for step in steps[found + 1 :])
    assert [step["if"].startswith("always()") for step in steps[-2:]] == [True, True]
    assert "build/since.md" in steps[-2]["run"]
    assert "build/since.md" in steps[-1]["with"]["path"]


def test_the_changelog_knows_the_version() -> None:
    """The release workflow refuses a tag without its section."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert f"\n## {version} (" in (ROOT / "CHANGELOG.md").read_text()
