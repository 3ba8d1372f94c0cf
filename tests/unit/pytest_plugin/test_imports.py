"""What the plugin imports in a run without tests of several ranks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import sys, pytest
assert pytest.main(["-p", "multihost_hangs", "-p", "no:cacheprovider", "-q"]) == 0
print(*(name for name in sys.modules if name.startswith("pytest_multihost.core.")))
"""
WORLDS = ("blame", "engine", "launch", "outcome", "proof", "rank", "report", "watch")


def test_a_run_without_worlds_imports_nothing_that_runs_them(tmp_path: Path) -> None:
    """Every run of pytest pays for what the plugin imports."""
    (tmp_path / "test_plain.py").write_text("def test_plain():\n    pass\n")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=tmp_path,
        env={"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    imported = done.stdout.splitlines()[-1].split()
    assert "pytest_multihost.core.pytest_plugin" in imported
    assert {each.split(".")[2] for each in imported} & {*WORLDS} == set()
    assert "pytest_multihost.core.model.event" not in imported
