"""Every hang of `shapes` is found with both of its lines, and none of the mended programs is."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import shapes

pytestmark = pytest.mark.worlds

SOURCE = Path(shapes.__file__)

PROGRAM = """
import pytest
import shapes

@pytest.mark.multihost(ranks={size}, backend="simulated")
@pytest.mark.parametrize("is_mended", [False, True], ids=["guilty", "mended"])
@pytest.mark.parametrize("name", shapes.BUGS)
def test_shape(world, shared_tmp_path, name, is_mended):
    shapes.BUGS[name](world, shared_tmp_path, is_mended)
"""


def marked(name: str, word: str) -> set[int]:
    """Return the numbers of the lines of a function that have a word in their last comment."""
    lines = SOURCE.read_text().splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith(f"def {name}("))
    code = shapes.BUGS[name].__code__
    last = max((line for *_, line in code.co_lines() if line), default=start)
    inside = range(start, last)
    called = [i for i, line in enumerate(lines) if line.startswith("def _reduce_losses")]
    if name == "stages_without_such_layers":
        inside = range(start, called[0] + 4)
    return {i + 1 for i in inside if word in re.findall(r"\w+", lines[i].rpartition("#")[2])}


def told(verdict: Mapping[str, Any]) -> set[int]:
    """Return the lines of `shapes` that a verdict names."""
    text = json.dumps(verdict["diagnosis"])
    pairs = re.findall(r'"file": "([^"]*)", "line": (\d+)', text)
    found = {int(line) for file, line in pairs if file.endswith("shapes.py")}
    return found | {int(line) for line in re.findall(r"shapes\.py:(\d+)", text)}


@pytest.fixture(scope="module")
def verdicts(pytester_factory: Any) -> Mapping[str, Mapping[str, Any]]:  # noqa: ANN401
    """Run all shapes at eight ranks, once; return their verdicts by test."""
    return pytester_factory(8)


@pytest.fixture(scope="module")
def pytester_factory(tmp_path_factory: pytest.TempPathFactory) -> Any:  # noqa: ANN401
    """Return a function that runs all shapes at a size."""
    import os
    import subprocess
    import sys

    def run(size: int) -> Mapping[str, Mapping[str, Any]]:
        folder = tmp_path_factory.mktemp("shapes")
        (folder / "pytest.ini").write_text("[pytest]\n")
        shutil.copy(SOURCE, folder)
        (folder / "test_worlds.py").write_text(PROGRAM.format(size=size))
        environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        for name in ("PYTEST_ADDOPTS", "PYTEST_XDIST_WORKER", "PYTEST_CURRENT_TEST"):
            environment.pop(name, None)
        command = [sys.executable, "-m", "pytest", "-q", "-p", "multihost_hangs"]
        subprocess.run(command, cwd=folder, env=environment, check=False, capture_output=True)
        lines = (folder / ".pytest_multihost" / "verdicts.jsonl").read_text().splitlines()
        found = map(json.loads, lines)
        return {each["nodeid"].partition("[")[2].rstrip("]"): each for each in found}

    return run


@pytest.mark.parametrize("name", shapes.BUGS)
def test_a_shape_that_hangs_is_told_with_both_lines(
    verdicts: Mapping[str, Mapping[str, Any]], name: str
) -> None:
    """By proof, and long before the deadline."""
    verdict = verdicts[f"{name}-guilty"]
    assert verdict["outcome"] == "hung"
    assert verdict["diagnosis"]["detected_by"] in ("proof", "mismatch")
    assert marked(name, "one") & told(verdict)
    assert marked(name, "other") & told(verdict)


@pytest.mark.parametrize("name", shapes.BUGS)
def test_a_mended_shape_passes(verdicts: Mapping[str, Mapping[str, Any]], name: str) -> None:
    """It is an innocent that looks like the guilty one."""
    assert verdicts[f"{name}-mended"]["outcome"] == "passed"
