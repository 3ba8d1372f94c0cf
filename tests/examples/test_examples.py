"""The examples do what their READMEs say.

Each is copied and run as a user would, with the plugins that its install line names and no other:
some of the neighbours that are installed for our tests act without being asked.
"""

from __future__ import annotations

import importlib.metadata
import re
import shutil
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from programs import load_program
from runtimes import require, skip_if_missing

EXAMPLES = Path(__file__).parent.parent.parent / "conftest_examples"
ASKED_FOR = {
    "adopted_deepspeed",
    "adopted_hook",
    "adopted_spawn",
    "adopted_torch",
    "after_timeouts",
    "custom_backend",
    "custom_fault",
    "custom_transport",
    "first_hang",
    "github_actions",
    "hidden_hang",
    "hypothesis_skew",
    "megatron_groups",
    "mode_auto",
    "orbax_restore",
    "own_extension",
    "quickstart",
    "thousand_ranks",
    "torch_dcp_checkpoint",
    "torch_ddp",
    "trainer_and_engine",
    "unittest_style",
    "xdist",
}
NEEDS = {"megatron_groups": "megatron.core", "torch_dcp_checkpoint": "torch.distributed.checkpoint"}

SHOWN_BY = {
    "adopted_deepspeed": "extensions/adopt/test_adopt.py",
    "adopted_hook": "extensions/adopt/test_adopt.py",
    "adopted_spawn": "extensions/adopt/test_groups.py",
    "adopted_torch": "extensions/adopt/test_adopt.py",
    "after_timeouts": "extensions/clock/test_clock.py",
    "github_actions": "extensions/github/test_actions.py",
    "hidden_hang": "extensions/sweep/test_sweep.py",
    "megatron_groups": "unit/blame/test_recorded_facts.py",
    "mode_auto": "plugin/test_selection.py",
    "orbax_restore": "fixes/test_orbax_barrier.py",
    "thousand_ranks": "plugin/test_inherited.py",
    "torch_dcp_checkpoint": "smoke/test_smoke.py",
    "torch_ddp": "extensions/sweep/test_sweep.py",
    "trainer_and_engine": "plugin/test_roles.py",
    "xdist": "plugin/test_neighbours.py",
}
"""Examples of the full tier, and the files with tests of the fast tier of the same subject."""

FRESH = load_program(EXAMPLES / "in_fresh_environments.py")
PATHS = FRESH.examples()
TIERED = [
    pytest.param(path, id=path.name, marks=pytest.mark.worlds if path.name in SHOWN_BY else ())
    for path in PATHS
]


def plugins_of(install: tuple[str, ...]) -> list[str]:
    """Return the entry points of pytest plugins that an install line names, ours first."""
    found = ["multihost_hangs", "timeout"]
    for requirement in install:
        name = re.split(r"[\[<>=;]", requirement)[0]
        if name in ("-r", "requirements.txt", "pytest-multihost-hangs"):
            continue
        points = importlib.metadata.distribution(name).entry_points.select(group="pytest11")
        found += [point.name for point in points]
    return found


def test_all_examples_are_there() -> None:
    """Those that the documentation lists."""
    assert {path.name for path in PATHS} == ASKED_FOR
    assert [
        file for file in SHOWN_BY.values() if not (EXAMPLES.parent / "tests" / file).exists()
    ] == []


@pytest.mark.timeout(300)  # what a machine that is busy with more makes of importing torch
@pytest.mark.parametrize("path", TIERED)
@pytest.mark.claim("find my first hang, step by step")
@pytest.mark.claim("copy a working project")
def test_an_example_does_what_its_readme_says(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its output, its exit code, and nothing left behind."""
    if path.name in NEEDS:
        require(NEEDS[path.name])
    example = FRESH.read_example(path)
    work = tmp_path / path.name
    shutil.copytree(path, work, ignore=shutil.ignore_patterns(".*_cache", ".pytest_*"))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    for name in ("CI", "GITHUB_ACTIONS", "PYTEST_ADDOPTS", "PYTEST_XDIST_WORKER"):
        monkeypatch.delenv(name, raising=False)
    chosen = [arg for plugin in plugins_of(example.install) for arg in ("-p", plugin)]
    command = [sys.executable, *example.run, *chosen]
    ended = subprocess.run(
        command, cwd=work, capture_output=True, text=True, timeout=280, check=False
    )
    shown = f"{ended.stdout}\n{ended.stderr}"
    skip_if_missing(shown)
    assert ended.returncode == int(example.must_fail), shown
    assert example.missing(ended.stdout) == [], shown
    assert _at_work_in(work) == []


def _at_work_in(path: Path) -> list[str]:
    """Return the processes that still work below a directory."""
    found = []
    for process in psutil.process_iter():
        try:
            if Path(process.cwd()).is_relative_to(path):
                found.append(f"{process.pid} {' '.join(process.cmdline())}")
        except psutil.Error:  # gone meanwhile
            continue
    return found


README = """\
# Title

    pip install 'pytest-multihost-hangs[torch]' other

    python -m pytest --ranks 4

You will see

    HUNG  rank 0
    1 failed

More.
"""


def test_a_readme_is_read_as_it_is_meant(tmp_path: Path) -> None:
    """One line to install, one to run, and what is seen."""
    (tmp_path / "README.md").write_text(README)
    example = FRESH.read_example(tmp_path)
    assert example.install == ("pytest-multihost-hangs[torch]", "other")
    assert example.run == ("-m", "pytest", "--ranks", "4")
    assert example.seen == ("HUNG  rank 0", "1 failed")
    assert example.must_fail
    assert example.missing("... HUNG  rank 0 ...\n= 1 failed in 3 s =") == []
    assert example.missing("= 1 failed in 3 s =\nHUNG  rank 0") == ["1 failed"]


def test_a_readme_without_a_line_to_run_is_refused(tmp_path: Path) -> None:
    """It says what is missing."""
    (tmp_path / "README.md").write_text(README.replace("    python -m", "    pytest"))
    with pytest.raises(ValueError, match="has 0 lines that begin with 'python '"):
        FRESH.read_example(tmp_path)
