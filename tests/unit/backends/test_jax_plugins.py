"""Jax's search for plugins is made once for all forked ranks, unless there may be some."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from runtimes import needs

pytestmark = needs("jax")

SEARCHED = """
import importlib.metadata, sys
import jax
from pytest_multihost.core.jax_private import search_plugins_once
{before}
search_plugins_once()
{after}
jax.config.update("jax_platforms", "cpu")
print(len(jax.devices()), "devices")
"""

REFUSE = """
def refuse(**_):
    raise AssertionError("searched again")
importlib.metadata.entry_points = refuse
"""


def add_plugin(folder: Path) -> str:
    """Write a package with a plugin for jax; return the statement that makes it importable."""
    info = folder / "late-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: late\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[jax_plugins]\nlate = late_plugin\n")
    (folder / "late_plugin.py").write_text("def initialize():\n    print('initialised')\n")
    return f"sys.path.insert(0, {str(folder)!r})"


def output_of(*, before: str = "", after: str = "") -> str:
    """Run a process that searches, with statements before the search and after it."""
    program = SEARCHED.format(before=before, after=after)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_rank_does_not_search_again() -> None:
    """The metadata of all installed packages are read once."""
    assert output_of(after=REFUSE) == "1 devices\n"


def test_a_plugin_is_initialised_in_each_rank(tmp_path: Path) -> None:
    """It was there when the server searched."""
    assert output_of(before=add_plugin(tmp_path)) == "initialised\n1 devices\n"


def test_a_plugin_of_a_path_that_was_added_later_is_found(tmp_path: Path) -> None:
    """Pytest adds the folder of a test's file after the server has searched."""
    assert output_of(after=add_plugin(tmp_path)) == "initialised\n1 devices\n"
